package config

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"
)

// Every field is in one of the lists, or stays; a name in a list is a field.
func TestReloadKnowsWhatMayChange(t *testing.T) {
	stay := []string{"Store", "Listen", "Nice", "Nodes"}
	all := slices.Concat(reopened, rebegun, atOnce)
	typ := reflect.TypeFor[Config]()
	for _, name := range append(all, stay...) {
		if _, ok := typ.FieldByName(name); !ok {
			t.Errorf("Config has no %s", name)
		}
	}
	for i, name := range all {
		if slices.Contains(all[:i], name) {
			t.Errorf("%s is in two lists", name)
		}
	}
}

func TestReload(t *testing.T) {
	dir := t.TempDir()
	base := "store: file:///s\nrun: a\nroot: /r\n"
	read := func(more string) *Config {
		t.Helper()
		write(t, dir+"/ckptsync.yaml", base+more)
		return mustLoad(t, dir, "", nil, nil)
	}
	for _, c := range []struct {
		was, now string
		kept     string
		reopen   bool
		again    bool // the engine is begun again
		holds    func(*Config) bool
	}{
		{"", "", "[]", false, false, func(*Config) bool { return true }},
		{"", "log: {level: debug}", "[]", false, false, func(c *Config) bool { return c.Log.Level == slog.LevelDebug }},
		{"settle: 1s", "settle: 1s", "[]", false, false, func(c *Config) bool { return *c.Runs[0].Settle == time.Second }},
		{"settle: 1s", "settle: 2s", "[]", false, true, func(c *Config) bool { return *c.Runs[0].Settle == 2*time.Second }},
		{"", "retention: {keep_last: 4}", "[]", false, true, func(c *Config) bool { return c.Runs[0].Retention.Policy.KeepLast == 4 }},
		{"", "scan_interval: 3s", "[]", false, true, func(c *Config) bool { return c.ScanInterval == 3*time.Second }},
		{"", "bandwidth: 1MB/s", "[]", true, true, func(c *Config) bool { return len(c.Bandwidth) == 1 }},
		{"listen: :1", "listen: :2\nnice: true\nlog: {format: json}", "[listen nice log.format]", false, false, func(c *Config) bool { return c.Listen == "127.0.0.1:1" && !c.Nice && c.Log.Format == "" }},
		{"", "nodes: 2\njoin: x", "[nodes]", false, false, func(c *Config) bool { return c.Nodes.Nodes == "" }},
	} {
		was := read(c.was)
		now := read(c.now)
		kept, reopen := now.Reload(was)
		if fmt.Sprint(kept) != c.kept || reopen != c.reopen || !c.holds(now) {
			t.Errorf("%q to %q: kept %v, reopen %v: %+v", c.was, c.now, kept, reopen, now)
		}
		if again := now.Print(now.Runs[0]) != was.Print(was.Runs[0]); again != c.again {
			t.Errorf("%q to %q: begun again: %v", c.was, c.now, again)
		}
	}
}
