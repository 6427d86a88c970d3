//go:build linux && amd64

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// The table stands between these lines of a file.
const (
	tableBegin = "<!-- go run ./test/faults -update test/README.md writes what follows -->\n"
	tableEnd   = "<!-- up to here -->\n"
)

// update replaces in the table of a file the rows that were tried.
func update(path string, rows []row) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(tableBegin))
	old, after, ok2 := bytes.Cut(rest, []byte(tableEnd))
	if !ok || !ok2 {
		return fmt.Errorf("%s has no table between the lines %q and %q", path, tableBegin, tableEnd)
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(tableBegin)
	b.WriteString(table(string(old), rows))
	b.WriteString(tableEnd)
	b.Write(after)
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// table is the table with these rows, and those of old that they do not
// replace, in the order of the operations and faults.
func table(old string, rows []row) string {
	lines := map[string]string{}
	key := func(op, kind, fault string) string { return "| " + op + " | " + kind + " | " + fault + " |" }
	for line := range strings.Lines(old) {
		if c := strings.SplitN(line, "|", 5); len(c) == 5 {
			lines[strings.Join(c[:4], "|")+"|"] = line
		}
	}
	for _, r := range rows {
		lines[key(r.op, r.kind, r.fault)] = fmt.Sprintf("%s %d | %d | %d |\n", key(r.op, r.kind, r.fault), r.points, r.tried, len(r.bad))
	}
	var b strings.Builder
	b.WriteString("| operation | store | what happens | points | tried | violations |\n|---|---|---|---|---|---|\n")
	for _, op := range operations() {
		for _, kind := range []string{"file", "s3"} {
			for _, f := range faultList() {
				b.WriteString(lines[key(op.name, kind, f.name)])
			}
		}
	}
	return b.String()
}
