package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdNobody checks that no process works in a directory or below it, where
// the system tells:
//
//	nobody dir
func cmdNobody(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nobody dir")
	}
	dir := ts.MkAbs(args[0])
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	ts.Check(err)
	for _, l := range links {
		cwd, err := os.Readlink(l)
		if err == nil && strings.HasPrefix(cwd, dir) {
			ts.Fatalf("process %s is still in %s", filepath.Base(filepath.Dir(l)), cwd)
		}
	}
}
