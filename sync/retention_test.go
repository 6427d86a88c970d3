package syncer

import (
	"os"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/retain"
)

func TestDaemonLetsOldCommitsGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(c *Config) { c.Retention = &Retention{Policy: retain.Policy{KeepLast: 2}} }
	for _, n := range []int{100, 200, 300} {
		w.step(n)
	}
	w.push()
	w.wantCommits("100-a1-r0", "200-a1-r0", "300-a1-r0")

	e := w.engine()
	defer e.Close()
	p := prune.New()
	if err := e.prune(t.Context(), p, []commit.ID{id(100, 1, 0)}); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0", "300-a1-r0") // what was just committed stays
	if err := e.prune(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("200-a1-r0", "300-a1-r0")
}

func TestMissingOrEmptyRootDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(c *Config) { c.Retention = &Retention{Policy: retain.Policy{KeepLast: 1}} }
	w.step(100)
	w.step(200)
	w.push()
	e := w.engine()
	defer e.Close()
	for _, empty := range []func() error{
		func() error { return os.Rename(w.root, w.root+".away") },
		func() error { return os.Mkdir(w.root, 0o755) },
	} {
		if err := empty(); err != nil {
			t.Fatal(err)
		}
		if err := e.prune(t.Context(), prune.New(), nil); err != nil {
			t.Fatal(err)
		}
		w.wantCommits("100-a1-r0", "200-a1-r0")
	}
	if told := w.noticedOf("retention"); !strings.Contains(told, "is its disk mounted?") {
		t.Errorf("told: %q", told)
	}
}

// A daemon of an attempt that others have left behind must not judge what is
// old.
func TestZombieDoesNotPrune(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(c *Config) { c.Retention = &Retention{Policy: retain.Policy{KeepLast: 1}} }
	w.step(100)
	w.step(200)
	w.push()
	zombie := w.engine()
	defer zombie.Close()

	next := w.fresh()
	r := next.engine()
	if _, err := r.Restore(t.Context(), RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	next.step(300)
	next.push()
	if err := zombie.prune(t.Context(), prune.New(), nil); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0", "300-a2-r0")
	if told := w.noticedOf("retention"); !strings.Contains(told, "another attempt leads") {
		t.Errorf("told: %q", told)
	}
}

// noticedOf is what was last noticed of a path.
func (w *world) noticedOf(path string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := ""
	for _, e := range w.events {
		if n, ok := e.(Noticed); ok && n.Path == path {
			out = n.Text
		}
	}
	return out
}
