//go:build linux && amd64

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

// TestSample tries, of each operation on each store, two of the faults at a
// point each. Which they are changes from run to run; CKPTSYNC_FAULTS_SEED
// repeats them. `go run ./test/faults` tries all.
func TestSample(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("CKPTSYNC_FAULTS_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("CKPTSYNC_FAULTS_SEED=%d", seed)
	stores.Setenv(t)
	if _, err := stores.BuildVersitygw(t.Context()); err != nil {
		if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	program, err := buildProgram(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i, op := range operations() {
		for j, kind := range []string{"file", "s3"} {
			rng := rand.New(rand.NewPCG(seed, uint64(2*i+j)))
			t.Run(strings.ReplaceAll(op.name, " ", "_")+"/"+kind, func(t *testing.T) {
				t.Parallel()
				sample(t, program, op, kind, rng)
			})
		}
	}
}

func sample(t *testing.T, program string, op *operation, kind string, rng *rand.Rand) {
	s, err := prepare(t.Context(), program, t.TempDir(), kind, op)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	all := faultList()
	if kind == "file" {
		all = all[:5]
	}
	local := all[rng.IntN(5)]
	try := []fault{local, all[len(all)-1-rng.IntN(5)]}
	if kind == "file" {
		try = try[:1]
	}
	for _, f := range try {
		points, err := s.measure(t.Context(), op, f)
		if err != nil {
			t.Fatal(err)
		}
		if points == 0 {
			continue // a prune on S3 writes nothing here
		}
		n := 1 + rng.IntN(points)
		what, err := s.try(t.Context(), op, f, n)
		if err != nil {
			t.Errorf("go run ./test/faults -op '^%s$' -store %s -fault '^%s$' -point %d\nat %s: %v", op.name, kind, f.name, n, what, err)
		}
		t.Log(f.name, n, "of", points, what)
	}
}

// TestDisk has changes made by a shell and looks at what a power cut leaves.
func TestDisk(t *testing.T) {
	for _, c := range []struct{ script, before, after string }{
		{"echo new > a", "", ""},                            // neither name nor content is durable
		{"echo new > a; sync -d a; sync .", "", "a=new\n"},  // both are
		{"echo new > a; sync .", "", "a="},                  // the name is
		{"mv a b; sync .", "a", "b=a\n"},                    // a move is
		{"mv a b", "a", "a=a\n"},                            // or not
		{"echo more >> a", "a", "a=a\n"},                    // what was appended goes
		{"echo new > a", "a", "a=a\n"},                      // so does what replaced
		{"mv b a", "a b", "a=a\nb=b\n"},                     // and what was replaced comes back
		{"rm a", "a", "a=a\n"},                              // as does what was removed
		{"rm a; sync .", "a", ""},                           // but for what is durable
		{"mkdir d; echo x > d/f; sync d/f; sync d", "", ""}, // what is in a directory that is not
		{"mkdir d; sync .; echo x > d/f; sync d/f d; mv d e; sync .", "", "e/f=x\n"},
	} {
		if got := powerCut(t, c.script, c.before); got != c.after {
			t.Errorf("%s: a power cut leaves %q, and should leave %q", c.script, got, c.after)
		}
	}
}

// powerCut runs a script where these files are, and returns what is left.
func powerCut(t *testing.T, script, before string) string {
	t.Helper()
	base := t.TempDir()
	work := base + "/work"
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(before) {
		if err := os.WriteFile(work+"/"+name, []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := newDisk(base + "/limbo")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	tr := &trace{below: base, leave: func(c *call) { must(t, d.after(c)) }}
	tr.enter = func(c *call) verdict { must(t, d.before(c)); return verdict{} }
	if err := tr.run(shell(work, script), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := d.cut(nil); err != nil {
		t.Fatal(err)
	}
	left, err := readTree(work, ".")
	must(t, err)
	var out []string
	for p, e := range left {
		if e.mode.IsRegular() {
			out = append(out, fmt.Sprintf("%s=%s", p, e.data))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shell runs a script; the processes that it starts are watched too.
func shell(dir, script string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	return cmd
}

// TestStateSurvives cuts the power when a step was committed and others are on
// their way: the attempt must not be lost, or they would never be committed.
func TestStateSurvives(t *testing.T) {
	program, err := buildProgram(t.Context(), t.TempDir())
	must(t, err)
	s, err := prepare(t.Context(), program, t.TempDir(), "file", push())
	must(t, err)
	t.Cleanup(s.close)
	f := faultList()[1]
	points, err := s.measure(t.Context(), push(), f)
	must(t, err)
	for _, n := range []int{points * 6 / 10, points * 8 / 10} {
		if what, err := s.try(t.Context(), push(), f, n); err != nil || what == "" {
			t.Errorf("%s at %d of %d, %s: %v", f.name, n, points, what, err)
		}
	}
}
