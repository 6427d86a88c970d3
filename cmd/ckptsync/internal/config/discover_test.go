package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scratch makes directories below a new one, and a configuration beside them
// with these entries of runs:, in which $T stands for it.
func scratch(t *testing.T, entries string, dirs ...string) (string, *Config) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, base+"/ckptsync.yaml", "store: file:///srv\nruns:\n"+strings.ReplaceAll(entries, "$T", base))
	return base, mustLoad(t, base, "", nil, nil)
}

// served is what was found, as name=path below base.
func served(base string, f Found) []string {
	out := []string{}
	for _, r := range f.Runs {
		out = append(out, r.Name+"="+strings.TrimPrefix(r.Root, base+"/"))
	}
	return out
}

// skipped is what was skipped, as path: reason.
func skipped(base string, f Found) []string {
	out := []string{}
	for _, s := range f.Skipped {
		out = append(out, strings.ReplaceAll(s.Path+": "+s.Reason, base+"/", ""))
	}
	return out
}

func wantFound(t *testing.T, base string, f Found, runs []string, reasons ...string) {
	t.Helper()
	if d := cmp.Diff(runs, served(base, f)); d != "" {
		t.Errorf("runs, -want +got\n%s", d)
	}
	got := skipped(base, f)
	for i := range max(len(got), len(reasons)) {
		switch {
		case i >= len(got):
			t.Errorf("not said: %s", reasons[i])
		case i >= len(reasons):
			t.Errorf("said besides: %s", got[i])
		case !strings.HasPrefix(got[i], reasons[i]):
			t.Errorf("said %s\nwant %s", got[i], reasons[i])
		}
	}
}

func TestDiscoverNamesRunsByTheirStars(t *testing.T) {
	base, cfg := scratch(t, "- {name: '{2}.{1}', roots: '$T/*/exp-*/out', state_dir: '$T/state/{1}-{2}', layout: deepspeed}\n",
		"a/exp-1/out", "a/exp-2/out", "b/exp-1/out", "b/exp-3", "b/.exp-4/out", "b/other/out")
	write(t, base+"/b/exp-5/out", "a file")
	wantFound(t, base, cfg.Discover(nil), []string{"1.a=a/exp-1/out", "1.b=b/exp-1/out", "2.a=a/exp-2/out"})
	r := cfg.Runs[0]
	if r.StateDir != base+"/state/a-1" || r.Layout != "deepspeed" || len(cfg.Runs) != 3 {
		t.Errorf("%+v", cfg.Runs)
	}
}

// State directories lie beside the roots, where a star finds them as well.
func TestDiscoverTakesNoStateDirectoryAndNoStoreForARun(t *testing.T) {
	base, cfg := scratch(t, "- {name: '{1}', roots: '$T/*'}\n", "a", "a.ckptsync", "store/runs", "bad name")
	cfg.Store = store(t, "file://"+base+"/store")
	wantFound(t, base, cfg.Discover(nil), []string{"a=a"}, `bad name: it gives no run name: run name "bad name"`)
	cfg.Store = store(t, "file://"+base+"/a/store")
	wantFound(t, base, cfg.Discover(nil), []string{"store=store"}, "a: the store "+"a/store and it lie one inside the other", "bad name: ")
}

func TestDiscoverRefusesOneNameForTwoDirectories(t *testing.T) {
	base, cfg := scratch(t, "- {name: '{2}', roots: '$T/*/*/out'}\n- {name: listed, root: '$T/else'}\n", "a/x/out", "b/x/out", "b/y/out", "c/listed/out")
	wantFound(t, base, cfg.Discover(nil), []string{"y=b/y/out"},
		"a/x/out: it gives the run name x, and so does b/x/out: neither is served",
		"b/x/out: it gives the run name x, and so does a/x/out: neither is served",
		"c/listed/out: it gives the name of run listed, which is listed with the root else")
	if _, err := load(base, "", nil, map[string]string{"run": "x"}); err == nil || !strings.Contains(err.Error(), "b/x/out") || !strings.Contains(err.Error(), "a/x/out") {
		t.Errorf("chosen: %v", err)
	}
	// The one that is served keeps its name, also after a restart.
	serving := []Run{{Name: "x", Root: base + "/b/x/out"}}
	wantFound(t, base, cfg.Discover(serving), []string{"x=b/x/out", "y=b/y/out"},
		"a/x/out: it gives the run name x, which b/x/out has already", "c/listed/out: ")
	write(t, base+"/a/x/out.ckptsync/lock", "")
	wantFound(t, base, cfg.Discover(nil), []string{"x=a/x/out", "y=b/y/out"},
		"b/x/out: it gives the run name x, which a/x/out has already", "c/listed/out: ")
	wantFound(t, base, cfg.Discover(serving), []string{"x=b/x/out", "y=b/y/out"},
		"a/x/out: it gives the run name x, which b/x/out has already", "c/listed/out: ")
}

func TestDiscoverServesADirectoryOnce(t *testing.T) {
	base, cfg := scratch(t, "- {name: 'p-{1}', roots: '$T/*/out'}\n- {name: 'q-{1}', roots: '$T/*/out'}\n- {name: fixed, root: '$T/d/out'}\n- {name: 'n-{1}', roots: '$T/m/out/*'}\n",
		"m/out/inner", "d/out")
	for from, to := range map[string]string{"a": "m", "z": "m", "k": "d"} {
		if err := os.Symlink(to, filepath.Join(base, from)); err != nil {
			t.Fatal(err)
		}
	}
	wantFound(t, base, cfg.Discover(nil), []string{"p-m=m/out"},
		"a/out: it is the same directory as m/out, which run p-m has",
		"k/out: it is the same directory as d/out, which run fixed has",
		"z/out: it is the same directory as m/out, which run p-m has",
		"a/out: it is the same directory as m/out, which run p-m has",
		"k/out: it is the same directory as d/out, which run fixed has",
		"z/out: it is the same directory as m/out, which run p-m has",
		"m/out/inner: it is inside m/out, the root of run p-m")
}

func TestDiscoverIsBounded(t *testing.T) {
	base, cfg := scratch(t, "- {name: '{1}', roots: '$T/*/out', max_runs: 3}\n")
	for i := range 9 {
		if err := os.MkdirAll(fmt.Sprintf("%s/r%d/out", base, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	wantFound(t, base, cfg.Discover(nil), []string{"r0=r0/out", "r1=r1/out", "r2=r2/out"},
		"*/out: 9 directories have this form, and max_runs is 3; not served: out (r3), out (r4), out (r5), out (r6), out (r7) and 1 more")
	wantFound(t, base, cfg.Discover([]Run{{Name: "r8", Root: base + "/r8/out"}}), []string{"r0=r0/out", "r1=r1/out", "r8=r8/out"}, "*/out: 9 ")
}

func TestDiscoverSaysWhatItCannotSee(t *testing.T) {
	base, cfg := scratch(t, "- {name: '{1}-{2}', roots: '$T/*/*'}\n", "a/1", "b/2")
	if err := os.Chmod(base+"/b", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(base+"/b", 0o755) })
	if os.Getuid() == 0 {
		// Root may look anywhere: a loop of links stands in.
		if err := os.Symlink("loop", base+"/loop"); err != nil {
			t.Fatal(err)
		}
		f := cfg.Discover(nil)
		if len(f.Unsure) != 1 || f.Unsure[0] != base+"/loop" {
			t.Errorf("unsure %v", f.Unsure)
		}
		return
	}
	f := cfg.Discover(nil)
	wantFound(t, base, f, []string{"a-1=a/1"}, "b: it cannot be looked at: ")
	if len(f.Unsure) != 1 || f.Unsure[0] != base+"/b" {
		t.Errorf("unsure %v", f.Unsure)
	}
}

// A command for one run needs no directory to be there: a restore makes it.
func TestChoosingADiscoveredRun(t *testing.T) {
	base, cfg := scratch(t, "- {name: 'job-{1}', roots: '$T/*/out', settle: 3s}\n- {name: '{1}-{2}', roots: '$T/*/runs/*'}\n", "here/out")
	if _, err := cfg.One(NeedRun); err == nil || !strings.Contains(err.Error(), "say which with --run") {
		t.Errorf("none chosen: %v", err)
	}
	for name, root := range map[string]string{"job-here": base + "/here/out", "job-new": base + "/new/out", "x-y": ""} {
		cfg := mustLoad(t, base, "", nil, map[string]string{"run": name})
		r, err := cfg.One(NeedRun)
		if err != nil || r.Name != name || r.Root != root || root != "" && (r.StateDir != root+".ckptsync" || *r.Settle != 3e9) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if _, err := mustLoad(t, base, "", nil, map[string]string{"run": "x-y"}).One(NeedRoot); err == nil || !strings.Contains(err.Error(), "no root") {
		t.Errorf("a root that the name does not tell: %v", err)
	}
	r, err := mustLoad(t, base, "", nil, map[string]string{"run": "job-here", "root": "/elsewhere"}).One(NeedRoot)
	if err != nil || r.Root != "/elsewhere" || r.StateDir != "/elsewhere.ckptsync" {
		t.Errorf("another root: %+v, %v", r, err)
	}
	if _, err := load(base, "", nil, map[string]string{"run": "other"}); err == nil || !strings.Contains(err.Error(), `run "other" is not in the configuration, which has those of `+base) {
		t.Errorf("no pattern gives it: %v", err)
	}
	if _, err := load(base, "", nil, map[string]string{"root": "/elsewhere"}); err == nil || !strings.Contains(err.Error(), "--root: the configuration lists several runs") {
		t.Errorf("a root for several: %v", err)
	}
}
