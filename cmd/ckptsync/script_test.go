package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata/script run the program as a process: the test binary
// is started again under its name.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ckptsync": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":  cmdStatus,
			"json":    cmdJSON,
			"waitfor": cmdWaitFor,
			"nobody":  cmdNobody,
			"flip":    cmdFlip,
			"save":    cmdSave,
		},
	})
}

// cmdStatus runs a command that must end with the given exit status:
//
//	status 2 ckptsync list
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		if _, err := fmt.Sscanf(err.Error(), "exit status %d", &got); err != nil {
			ts.Fatalf("%s: %v", args[1], err)
		}
	}
	if got != want {
		ts.Fatalf("%s ended with status %d, want %d\nstdout: %s\nstderr: %s", args[1], got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// cmdFlip changes one bit in the middle of each file of a glob.
func cmdFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: flip glob")
	}
	names, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(names) == 0 {
		ts.Fatalf("no file is named %s", args[0])
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		ts.Check(err)
		data[len(data)/2] ^= 1
		ts.Check(os.WriteFile(name, data, 0o644))
	}
}

// cmdSave saves a step as a trainer does, from what a directory holds: the file
// DONE is written last. (What cp -r copies first depends on the file system.)
//
//	save step out/epoch-7
func cmdSave(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: save from to")
	}
	from, to := ts.MkAbs(args[0]), ts.MkAbs(args[1])
	entries, err := os.ReadDir(from)
	ts.Check(err)
	ts.Check(os.MkdirAll(to, 0o755))
	var names []string
	for _, e := range entries {
		if e.Name() != "DONE" {
			names = append(names, e.Name())
		}
	}
	for _, name := range append(names, "DONE") {
		data, err := os.ReadFile(filepath.Join(from, name))
		ts.Check(err)
		ts.Check(os.WriteFile(filepath.Join(to, name), data, 0o644))
	}
}

// cmdWaitFor waits until a file or a directory is there that holds something; it
// is given as a glob. How long it waits only guards against a hang.
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor glob")
	}
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		paths, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		for _, path := range paths {
			if fi, err := os.Stat(path); err == nil && !fi.IsDir() && fi.Size() > 0 {
				return
			}
			if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
				return
			}
		}
	}
	ts.Fatalf("%s stays empty", args[0])
}

// cmdJSON compares a value in a JSON file with the given JSON:
//
//	json stdout .commits.0.state "head"
//
// A path ends at its last step; "keys" as the wanted value compares the keys
// of an object instead: json stdout . keys step name path
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: json file path value | json file path keys key...")
	}
	var v any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		ts.Fatalf("%s is not JSON: %v", args[0], err)
	}
	if dec.More() {
		ts.Fatalf("%s holds more than one JSON value", args[0])
	}
	for key := range strings.SplitSeq(strings.Trim(args[1], "."), ".") {
		if key == "" {
			continue
		}
		switch in := v.(type) {
		case map[string]any:
			next, ok := in[key]
			if !ok {
				ts.Fatalf("%s: there is no %q", args[1], key)
			}
			v = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(in) {
				ts.Fatalf("%s: there is no element %q of %d", args[1], key, len(in))
			}
			v = in[i]
		default:
			ts.Fatalf("%s: %v has nothing below it", args[1], v)
		}
	}
	if args[2] == "keys" {
		checkKeys(ts, args[1], v, args[3:])
		return
	}
	got, err := json.Marshal(v)
	ts.Check(err)
	var want bytes.Buffer
	if err := json.Compact(&want, []byte(strings.Join(args[2:], " "))); err != nil {
		ts.Fatalf("%s: the wanted value is not JSON: %v", args[1], err)
	}
	if string(got) != want.String() {
		ts.Fatalf("%s is %s, want %s", args[1], got, want.String())
	}
}

func checkKeys(ts *testscript.TestScript, path string, v any, want []string) {
	m, ok := v.(map[string]any)
	if !ok {
		ts.Fatalf("%s is no object: %v", path, v)
	}
	for _, k := range want {
		if _, ok := m[k]; !ok {
			ts.Fatalf("%s has no %q", path, k)
		}
		delete(m, k)
	}
	for k := range m {
		ts.Fatalf("%s has a %q that is not in the contract", path, k)
	}
}
