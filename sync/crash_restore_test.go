package syncer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// aRestore is a node before a restore, and what that has to lead to.
type aRestore struct {
	name  string
	build func(s *site)
	step  *int64 // that is asked for; nil: the head
	want  commit.ID
	aside []string // steps that must not stay under the root
}

// restores are the nodes on which a restore is interrupted.
func restores() []aRestore {
	torn := layouttest.Without("trainer_state.json", "rng_state.pth")
	return []aRestore{{
		name:  "fresh node",
		build: func(s *site) { s.elsewhere(100, 200, 300) },
		want:  id(300, 1, 0),
	}, {
		name: "reboot",
		build: func(s *site) {
			s.step(100)
			s.step(200)
			s.push()
			s.step(300) // saved just before
			s.saved()
			s.step(400, torn) // being saved at that moment
		},
		want: id(300, 1, 0), aside: []string{"checkpoint-400"},
	}, {
		name: "stale node",
		build: func(s *site) {
			s.step(100)
			s.saved()
			s.push()
			s.elsewhere(200, 300)
			s.step(400, torn)
		},
		want: id(300, 2, 0), aside: []string{"checkpoint-400"},
	}, {
		name: "older step",
		build: func(s *site) {
			s.step(100)
			s.step(200)
			s.push()
			s.step(300)
			s.saved()
		},
		step: new(int64(100)), want: id(100, 1, 0), aside: []string{"checkpoint-200", "checkpoint-300"},
	}}
}

// elsewhere has another node go on with the run, and commit these steps.
func (s *site) elsewhere(steps ...int) {
	s.t.Helper()
	n := siteAt(s.t, filepath.Join(s.t.TempDir(), "out"), s.bucket)
	if len(s.view().Commits) > 0 {
		n.bringBack(RestoreOptions{})
	}
	for _, step := range steps {
		n.step(step)
	}
	n.push()
	n.saved()
	for name, content := range n.want {
		s.want[name] = content
	}
}

// interrupted builds the node and checks what holds after a first restore that
// was cut off, whatever that was: a second one ends it, and training goes on.
func (r *aRestore) interrupted(s *site, first func()) {
	s.t.Helper()
	r.build(s)
	before := map[string]map[string][]byte{}
	for _, name := range s.local() {
		before[name] = files(s.t, s.root, name)
	}
	first()
	s.check()
	for _, name := range s.local() { // nothing half is under a step's name
		if now := files(s.t, s.root, name); !same(now, s.want[name]) && !same(now, before[name]) {
			s.t.Errorf("%s under the root is no whole step", name)
		}
	}
	var o RestoreOptions
	o.Step = r.step
	res := s.bringBack(o)
	s.check()
	if res.ID != r.want || !same(files(s.t, s.root, res.Name), s.want[res.Name]) {
		s.t.Fatalf("restored %v, want %v, whole", res.ID, r.want)
	}
	for _, name := range r.aside {
		if slices.Contains(s.local(), name) {
			s.t.Errorf("%s is still under the root", name)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.root+".ckptsync", "staging")); err == nil && len(left) > 0 {
		s.t.Errorf("%d entries left in staging", len(left))
	}
	r.goesOn(s, res)
}

// goesOn trains on after the restore.
func (r *aRestore) goesOn(s *site, res Restored) {
	s.t.Helper()
	commits := s.commits()
	s.push()
	if now := s.commits(); !slices.Equal(commits, now) {
		s.t.Errorf("a push before training went on committed: %v, there were %v", now, commits)
	}
	s.step(500)
	s.saved()
	s.push()
	s.check()
	if head, _ := s.view().Head(); head != id(500, res.Attempt, 0) {
		s.t.Errorf("the head is %v, want step 500 of attempt %d", head, res.Attempt)
	}
}

// local are the names under the root.
func (s *site) local() []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.root)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestCrashAtEveryPointOfARestore(t *testing.T) {
	for _, r := range restores() {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			dry := newSite(t, filepath.Join(t.TempDir(), "out"))
			r.build(dry)
			points, _ := die(t, crashJob{Root: dry.root, Store: dry.storeDir, Restore: true, Step: r.step})
			for _, want := range []string{"rescued", "attempt drawn", "progress: place", "brought back", "put aside", "state saved"} {
				if !slices.Contains(points, want) && !(want == "progress: place" && r.want.Attempt == 1 && r.name != "fresh node") {
					t.Fatalf("no restore passes %q: %q", want, points)
				}
			}
			for _, k := range chosen(points, false) {
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					t.Parallel()
					at := []string{"the end"}
					s := newSite(t, filepath.Join(t.TempDir(), "out"))
					r.interrupted(s, func() {
						if name, died := die(t, crashJob{Root: s.root, Store: s.storeDir, Restore: true, Step: r.step, At: k}); died {
							at = name
						}
					})
					if t.Failed() {
						t.Logf("killed at %s", at[0])
					}
				})
			}
		})
	}
}
