package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// What becomes of a setting that is another when a running daemon reads its
// configuration again, by the names of Config's fields.
var (
	// The store is opened anew, and the engines with it.
	reopened = []string{"Concurrency", "Memory", "Bandwidth", "Patience", "Stall"}
	// The engines that have it are begun again; so are those of a Run that changed.
	rebegun = []string{"Layouts", "ScanInterval", "Grace", "EarlyUpload", "DropCache", "StopWhenSuperseded"}
	// It holds at once, or is none of a daemon's.
	atOnce = []string{"File", "Runs", "Patterns", "Log", "Direct", "JoinTimeout", "CrashLoop", "Warnings"}
)

// Reload makes c the successor of the configuration that a daemon runs with.
// What cannot change while it runs stays as it was, and its keys in the file
// are returned. reopen says that the store is to be opened anew.
func (c *Config) Reload(old *Config) (kept []string, reopen bool) {
	now, was := reflect.ValueOf(c).Elem(), reflect.ValueOf(old).Elem()
	for i := range now.NumField() {
		field := now.Type().Field(i)
		if !field.IsExported() || reflect.DeepEqual(now.Field(i).Interface(), was.Field(i).Interface()) {
			continue
		}
		switch {
		case slices.Contains(reopened, field.Name):
			reopen = true
		case slices.Contains(rebegun, field.Name), slices.Contains(atOnce, field.Name):
		default:
			kept = append(kept, keyOf(field.Name))
			now.Field(i).Set(was.Field(i))
		}
	}
	if c.Log.Format != old.Log.Format {
		kept = append(kept, "log.format")
		c.Log.Format = old.Log.Format
	}
	return kept, reopen
}

// keyOf is the key in the file of a field of Config.
func keyOf(field string) string {
	if f, ok := reflect.TypeFor[file]().FieldByName(field); ok {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		return key
	}
	return strings.ToLower(field)
}

// Print is the same for as long as nothing changes that the engine of a run
// cannot change while it works.
func (c *Config) Print(r Run) string {
	of := map[string]any{"run": r, "root": r.realRoot, "state": r.realState}
	v := reflect.ValueOf(c).Elem()
	for _, name := range append(rebegun, reopened...) {
		of[name] = v.FieldByName(name).Interface()
	}
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // none of them is of a kind that has no JSON
	}
	return string(text)
}

// Place is the directory of a run's root, whatever links lead there; empty if
// it has no root.
func (r Run) Place() string { return r.realRoot }
