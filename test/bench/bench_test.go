package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/test/stores"
)

// program is the ckptsync that the smoke tests measure.
var program string

// TestMain is a child of the bench where the environment has a job for one.
func TestMain(m *testing.M) {
	if text := os.Getenv(jobEnv); text != "" {
		if err := runJob(context.Background(), text, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(testAll(m))
}

func testAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ckptsync-bench-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "ckptsync")
	if out, err := exec.Command("go", "build", "-race=false", "-o", program, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// smoke runs a command at a tiny size and returns what it printed and kept.
func smoke(t *testing.T, args ...string) (string, *report) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	args = append(args, "-bin", program, "-dir", t.TempDir(), "-json", file, "-rounds", "1")
	var out bytes.Buffer
	if err := start(t.Context(), args, &out); err != nil {
		t.Fatalf("bench %v: %v\n%s", args, err, out.Bytes())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return out.String(), &r
}

// judged fails unless something with these words was judged, ok or MISSED.
func (r *report) judged(t *testing.T, words string) {
	t.Helper()
	for _, v := range r.Verdicts {
		if strings.Contains(v.What, words) && v.Word != unmeasured {
			return
		}
	}
	t.Errorf("nothing was judged of %q: %v", words, r.Verdicts)
}

func TestSmokeMove(t *testing.T) {
	profiles := t.TempDir()
	out, r := smoke(t, "-size", "17MiB", "-files", "10", "-cases", "big,small,again,again-big", "-stores", "sink", "-peers=false", "-profiles", profiles)
	for _, name := range []string{"big", "small"} {
		for _, way := range []string{up, down} {
			for _, scheme := range []string{"http", "https"} {
				table := r.table(name, way, "sink", scheme)
				for _, mover := range []string{nameFloor, nameDigests, nameProgram, engineMover().name} {
					row := table.row(mover)
					if row == nil {
						t.Fatalf("%s %s over %s: %s was not measured\n%s", name, way, scheme, mover, out)
					}
					if s := row.Samples[0]; s.Wall <= 0 || s.CPU <= 0 || s.Peak < 2 {
						t.Errorf("%s %s over %s: %s took %+v", name, way, scheme, mover, s)
					}
				}
				if s := table.row(nameProgram).Samples[0]; way == up && s.DataIn < table.Bytes {
					t.Errorf("%s over %s: the sink got %d of %d bytes", name, scheme, s.DataIn, table.Bytes)
				}
			}
		}
	}
	for _, name := range []string{"again", "again-big"} {
		if r.table(name, up, "sink", "http").row(nameProgram) == nil {
			t.Errorf("%s was not measured", name)
		}
	}
	r.judged(t, "nothing unchanged is sent, again up")
	r.judged(t, "CPU, big up, sink over http:")
	r.judged(t, "CPU, big up, sink over https:")
	r.judged(t, "wall time against the floor, big down")
	r.judged(t, "memory at defaults, small down")
	if list, err := filepath.Glob(filepath.Join(profiles, "big-*.prof")); err != nil || len(list) != 4 {
		t.Errorf("profiles: %v, %v", list, err)
	}
}

func TestSmokeMoveOnARealServer(t *testing.T) {
	stores.Versitygw(t) // skips where there is none
	_, r := smoke(t, "-size", "6MiB", "-files", "20", "-cases", "big", "-stores", "versitygw", "-peers=false")
	for _, scheme := range []string{"http", "https"} {
		for _, way := range []string{up, down} {
			for _, mover := range []string{nameFloor, nameDigests, nameProgram} {
				if r.table("big", way, "versitygw", scheme).row(mover) == nil {
					t.Errorf("%s over %s: %s was not measured", way, scheme, mover)
				}
			}
		}
	}
}

// Every peer that is installed moves files; one that is not is a line.
func TestSmokePeers(t *testing.T) {
	b := &bench{root: filepath.Join("..", "..")}
	out, r := smoke(t, "-size", "1MiB", "-cases", "big", "-ways", up, "-stores", "sink", "-schemes", "http", "-only", "s5cmd,gocloud,transfermanager")
	for name, installed := range map[string]string{"s5cmd": "s5cmd", "gocloud": "go", "transfermanager": "go"} {
		_, err := b.program(installed, "")
		if measured := r.table("big", up, "sink", "http").row(name) != nil; measured != (err == nil) {
			t.Errorf("%s: measured %t, installed: %v\n%s", name, measured, err, out)
		}
		if said := strings.Contains(out, name+": not measured: not installed: test/bench/setup "+installed); said != (err != nil) {
			t.Errorf("%s: said that it is missing: %t, installed: %v\n%s", name, said, err, out)
		}
	}
	t.Setenv("CKPTSYNC_CACHE", t.TempDir())
	if path, err := b.program("s5cmd", ""); err == nil {
		t.Errorf("s5cmd was found in an empty cache: %s", path)
	}
}

func TestSmokeTrainer(t *testing.T) {
	out, r := smoke(t, "trainer", "-size", "4MiB", "-slice", "100ms", "-quads", "1", "-loads", "half,waits", "-threads", "2")
	text, err := json.Marshal(r.Series["trainer"])
	if err != nil {
		t.Fatal(err)
	}
	var quads []quad
	if err := json.Unmarshal(text, &quads); err != nil || len(quads) != 6 {
		t.Fatalf("quads %v, %v", quads, err)
	}
	for _, q := range quads {
		if q.Alone <= 0 || q.With <= 0 || q.Beside == alone && q.Moved != 0 || q.Moved < 0 {
			t.Errorf("%+v", q)
		}
	}
	if !strings.Contains(out, "and waits a tenth of the time") {
		t.Errorf("no word of the load: %s", out)
	}
}

func TestIntervalOf(t *testing.T) {
	t.Parallel()
	if i := intervalOf([]float64{3, 3, 3}); i != (interval{3, 3, 3}) {
		t.Errorf("of what is all the same: %v", i)
	}
	few, many := intervalOf([]float64{0, 1, 2, 3}), intervalOf(slices.Repeat([]float64{0, 1, 2, 3}, 16))
	for _, i := range []interval{few, many} {
		if i.mean != 1.5 || i.low >= 1.5 || i.high <= 1.5 {
			t.Errorf("of 0 to 3: %v", i)
		}
	}
	if wide, narrow := few.high-few.low, many.high-many.low; narrow > wide/2 {
		t.Errorf("16 times as many values: from %v to %v", few, many)
	}
}

func TestSmokeShaped(t *testing.T) {
	out, r := smoke(t, "shaped", "-seconds", "300ms", "-connections", "1,2", "-rtt", "4ms")
	for _, words := range []string{"slow network up, connections: 1", "slow network down, connections: 2"} {
		if !strings.Contains(out, words) {
			t.Errorf("no word of %q: %v", words, r.Verdicts)
		}
	}
}

func TestSmokeLag(t *testing.T) {
	_, r := smoke(t, "lag", "-step-size", "4MiB")
	r.judged(t, "commit after the evidence")
}

func TestSmokeMemory(t *testing.T) {
	_, r := smoke(t, "memory", "-huge", "33MiB")
	r.judged(t, "memory of a push with defaults")
	r.judged(t, "memory of a restore with --memory 96MiB")
}

func TestSmokeRestart(t *testing.T) {
	stores.Versitygw(t)
	_, r := smoke(t, "restart", "-size", "48MiB", "-outage", "200ms")
	r.judged(t, "bytes sent twice after a kill")
	r.judged(t, "the server away in mid-upload")
}

func TestCheckEndsWithAnError(t *testing.T) {
	for word, want := range map[string]error{ok: nil, unmeasured: nil, missed: errMissed} {
		b := &bench{out: &bytes.Buffer{}, s: settings{Check: true}}
		b.report.Verdicts = []verdict{{"x", word, "y"}}
		if err := b.conclude(); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"nothing"}, {"-size", "big"}, {"-rounds", "0"}, {"left", "over"}, {"memory", "-huge", "0"}, {"-cases", "none", "-bin", "x"}} {
		if err := start(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("bench %v ends without an error", args)
		}
	}
}
