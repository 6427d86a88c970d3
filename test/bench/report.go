package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// report is everything that a run found out.
type report struct {
	Started  time.Time
	Machine  machine
	Settings settings
	Tables   []*table       `json:",omitempty"`
	Series   map[string]any `json:",omitempty"` // of the other commands, by name
	Verdicts []verdict
}

// Words of a verdict.
const (
	ok         = "ok"
	missed     = "MISSED"
	unmeasured = "not measured"
)

// verdict says whether one thing that is asked of ckptsync holds.
type verdict struct {
	What   string
	Word   string
	Detail string
}

// judge notes a verdict.
func (r *report) judge(what string, holds bool, format string, args ...any) {
	word := missed
	if holds {
		word = ok
	}
	r.Verdicts = append(r.Verdicts, verdict{what, word, fmt.Sprintf(format, args...)})
}

// skip notes that something was not looked at.
func (r *report) skip(what, format string, args ...any) {
	r.Verdicts = append(r.Verdicts, verdict{what, unmeasured, fmt.Sprintf(format, args...)})
}

// keep notes the samples of a command.
func (r *report) keep(name string, samples any) {
	if r.Series == nil {
		r.Series = map[string]any{}
	}
	r.Series[name] = samples
}

func (r *report) missed() bool {
	return slices.ContainsFunc(r.Verdicts, func(v verdict) bool { return v.Word == missed })
}

func (r *report) print(w io.Writer) {
	fmt.Fprintln(w, "\n=== what is asked of ckptsync")
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "%-12s %s: %s\n", v.Word, v.What, v.Detail)
	}
}

func (r *report) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// table finds a table; nil if it was not filled.
func (r *report) table(name, way, store, scheme string) *table {
	i := slices.IndexFunc(r.Tables, func(t *table) bool {
		return t.Case == name && t.Way == way && t.Store == store && t.Scheme == scheme
	})
	if i < 0 {
		return nil
	}
	return r.Tables[i]
}
