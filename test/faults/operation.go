//go:build linux && amd64

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// operation is a command of the program, and what has to hold around it.
type operation struct {
	name   string
	config string
	args   []string
	// build makes the site that the command finds.
	build func(ctx context.Context, s *site) error
	// until, of a command that goes on for ever, says when it may be asked to
	// end, the first time or when it was run again.
	until func(s *site, again bool) bool
	// broken checks what holds at any moment, end what holds when the command
	// was run again and ended well. printed is what it printed.
	broken func(ctx context.Context, s *site) error
	end    func(ctx context.Context, s *site, printed string) error
}

const (
	hfConfig = "layout: hf-trainer\nsettle: 0s\nscan_interval: 100ms\n"
	retained = hfConfig + "retention: {keep_last: 2, grace: 0s}\n"
)

func operations() []*operation {
	return []*operation{push(), daemon(), restoreOp(), prune(), markOp("excluded", "pinned"), exportDir(), exportStore()}
}

// step has a trainer save a step of n files beside its own below root.
func (s *site) step(root string, number, n int, opts ...layouttest.Option) error {
	for i := range n {
		opts = append(opts, layouttest.With(fmt.Sprintf("data_%02d.bin", i), fmt.Appendf(nil, "%d of %d", i, number)))
	}
	dir, err := layouttest.HFStep(root, number, opts...)
	if err != nil {
		return err
	}
	name := filepath.Base(dir)
	s.saves[name], err = readTree(root, name)
	return err
}

// elsewhere has another node commit steps.
func (s *site) elsewhere(ctx context.Context, files int, steps ...int) error {
	dir := filepath.Join(s.base, "trainer")
	for _, n := range steps {
		if err := s.step(filepath.Join(dir, "out"), n, files); err != nil {
			return err
		}
	}
	_, err := s.must(ctx, "push", "--root", filepath.Join(dir, "out"))
	return err
}

// trained is a node with three steps of which nothing was sent.
func trained(_ context.Context, s *site) error {
	for _, n := range []int{100, 200, 300} {
		if err := s.step(s.root, n, 0); err != nil {
			return err
		}
	}
	return nil
}

// holds checks what holds at any moment of a command that leaves the root
// alone.
func holds(ctx context.Context, s *site) error {
	if _, err := s.check(ctx, s.head); err != nil {
		return err
	}
	return s.rootIsAsFound()
}

func push() *operation {
	return &operation{
		name: "push", config: hfConfig, args: []string{"push"}, build: trained, broken: holds,
		end: func(ctx context.Context, s *site, _ string) error { return s.isCommitted(ctx, 100, 200, 300) },
	}
}

// isCommitted checks the end of what sends steps.
func (s *site) isCommitted(ctx context.Context, steps ...int64) error {
	v, err := s.check(ctx, commit.ID{Step: 300})
	if err != nil {
		return err
	}
	if err := committed(v, steps...); err != nil {
		return err
	}
	return s.isWhole(ctx)
}

// isWhole checks a node that has nothing left to do.
func (s *site) isWhole(ctx context.Context) error {
	if err := s.rootIsAsFound(); err != nil {
		return err
	}
	if err := s.nothingLeft(); err != nil {
		return err
	}
	return s.restores(ctx, "checkpoint-300")
}

// daemon finds an older commit that has to go, and three steps. It prunes when it
// has committed; one that finds everything committed does not, for an hour. So
// in the end a prune of our own has to find the rest.
func daemon() *operation {
	return &operation{
		name: "daemon", config: retained, args: []string{"daemon", "--grace", "5s"}, broken: holds,
		build: func(ctx context.Context, s *site) error {
			if err := s.step(s.root, 50, 0); err != nil {
				return err
			}
			if _, err := s.must(ctx, "push"); err != nil {
				return err
			}
			return trained(ctx, s)
		},
		until: func(s *site, again bool) bool {
			there := func(pattern string) bool {
				found, _ := filepath.Glob(filepath.Join(s.objects, runName, pattern))
				return len(found) > 0
			}
			return there("commits/*300-*.json") && there("commits/*200-*.json") && (there("commits/*100-*.json") || there("tombs/*100-*.json")) &&
				(again || there("tombs/*050-*.json") && !there("commits/*050-*.json"))
		},
		end: func(ctx context.Context, s *site, _ string) error {
			if _, err := s.check(ctx, commit.ID{Step: 300}); err != nil {
				return err
			}
			if err := s.nothingLeft(); err != nil {
				return err
			}
			if _, err := s.must(ctx, "prune", "--yes"); err != nil {
				return err
			}
			return s.isCommitted(ctx, 200, 300)
		},
	}
}

// restoreOp is that of a node with an older step of the run and a torn newer
// one.
func restoreOp() *operation {
	return &operation{
		name: "restore", config: hfConfig, args: []string{"restore"},
		build: func(ctx context.Context, s *site) error {
			if err := s.elsewhere(ctx, 30, 100, 200, 300); err != nil {
				return err
			}
			if err := s.step(s.root, 100, 30); err != nil {
				return err
			}
			_, err := layouttest.HFStep(s.root, 400, layouttest.Without("trainer_state.json", "rng_state.pth"))
			return err
		},
		broken: func(ctx context.Context, s *site) error {
			if _, err := s.check(ctx, s.head); err != nil {
				return err
			}
			return s.rootHasWholeSteps()
		},
		end: func(ctx context.Context, s *site, printed string) error {
			if _, err := s.check(ctx, s.head); err != nil {
				return err
			}
			if want := filepath.Join(s.root, "checkpoint-300"); printed != want {
				return fmt.Errorf("printed %q and not %q", printed, want)
			}
			if err := s.rootHasWholeSteps(); err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Join(s.root, "checkpoint-400")); err == nil {
				return fmt.Errorf("the torn step 400 is still there")
			}
			got, err := readTree(s.root, "checkpoint-300")
			if err != nil {
				return err
			}
			if why := got.differs(s.saves["checkpoint-300"]); why != "" {
				return fmt.Errorf("what was restored is not what was saved: %s", why)
			}
			return s.nothingLeft()
		},
	}
}

// prunedSteps are committed before a prune keeps the last two; one is pinned.
const prunedSteps = 28

func prune() *operation {
	protected := func(ctx context.Context, s *site) error {
		v, err := s.check(ctx, s.head)
		if err != nil {
			return err
		}
		have := map[int64]bool{}
		for _, c := range v.Commits {
			have[c.Step] = true
		}
		for _, n := range []int64{3, prunedSteps - 1, prunedSteps} {
			if !have[n] {
				return fmt.Errorf("step %d is protected, and is gone", n)
			}
		}
		return s.rootIsAsFound()
	}
	return &operation{
		name: "prune", config: "layout: steps\nsettle: 0s\nretention: {keep_last: 2, grace: 0s}\nlayouts: [{name: steps, step: \"step-{step}.txt\", kind: file}]\n",
		args: []string{"prune", "--yes"},
		build: func(ctx context.Context, s *site) error {
			if err := os.MkdirAll(s.root, 0o755); err != nil {
				return err
			}
			for n := 1; n <= prunedSteps; n++ {
				name := fmt.Sprintf("step-%d.txt", n)
				if err := os.WriteFile(filepath.Join(s.root, name), []byte(name), 0o644); err != nil {
					return err
				}
				var err error
				if s.saves[name], err = readTree(s.root, name); err != nil {
					return err
				}
			}
			if _, err := s.must(ctx, "push"); err != nil {
				return err
			}
			_, err := s.must(ctx, "mark", "3", "pinned", "--reason", "the paper")
			return err
		},
		broken: protected,
		end: func(ctx context.Context, s *site, _ string) error {
			if err := protected(ctx, s); err != nil {
				return err
			}
			if _, err := s.must(ctx, "prune", "--yes"); err != nil { // what the first retired, the second removes
				return err
			}
			v, err := s.check(ctx, s.head)
			if err != nil {
				return err
			}
			for o, err := range s.store().Data(ctx) {
				if err != nil {
					return err
				}
				if v.Retired[o.ID] {
					return fmt.Errorf("%s of a retired commit is left", o.Name)
				}
			}
			return committed(v, 3, prunedSteps-1, prunedSteps)
		},
	}
}

func markOp(words ...string) *operation {
	return &operation{
		name: "mark", config: hfConfig, args: []string{"mark", "300", words[0], "--reason", "loss is up"},
		build: func(ctx context.Context, s *site) error { return s.elsewhere(ctx, 0, 100, 200, 300) },
		broken: func(ctx context.Context, s *site) error {
			_, err := s.check(ctx, commit.ID{Step: 200})
			return err
		},
		end: func(ctx context.Context, s *site, _ string) error {
			v, err := s.check(ctx, commit.ID{Step: 200})
			if err != nil {
				return err
			}
			if head, _ := v.Head(); head.Step != 200 {
				return fmt.Errorf("step 300 is excluded, and the head is %v", head)
			}
			return s.restores(ctx, "checkpoint-200")
		},
	}
}

func exportDir() *operation {
	whole := func(s *site) error {
		now, err := readTree(filepath.Join(s.work, "plain"), "checkpoint-300")
		if err != nil || len(now) == 0 {
			return err
		}
		if why := now.differs(s.saves["checkpoint-300"]); why != "" {
			return fmt.Errorf("the directory holds a torn step: %s", why)
		}
		return nil
	}
	return &operation{
		name: "export to a directory", config: hfConfig, args: []string{"export", "300", "plain"},
		build: func(ctx context.Context, s *site) error { return s.elsewhere(ctx, 0, 100, 200, 300) },
		broken: func(ctx context.Context, s *site) error {
			if _, err := s.check(ctx, s.head); err != nil {
				return err
			}
			return whole(s)
		},
		end: func(ctx context.Context, s *site, _ string) error {
			if _, err := s.check(ctx, s.head); err != nil {
				return err
			}
			return s.hasStep(filepath.Join(s.work, "plain"), "checkpoint-300")
		},
	}
}

// exportStore exports to another run of a directory store.
func exportStore() *operation {
	other := func(s *site) *site {
		o := &site{program: s.program, base: s.base, work: s.work, root: s.root, kind: "file", saves: s.saves}
		o.objects = filepath.Join(s.work, "other")
		o.url = "file://" + o.objects + "?create=true"
		return o
	}
	at := func(ctx context.Context, s *site) (*commit.View, error) {
		if _, err := s.check(ctx, s.head); err != nil {
			return nil, err
		}
		o := other(s)
		b, err := openDir(o.objects)
		if err != nil {
			return nil, err
		}
		o.bucket = b
		return o.check(ctx, commit.ID{})
	}
	return &operation{
		name: "export to a store", config: hfConfig, args: []string{"export", "300", "file://OTHER?create=true"},
		build:  func(ctx context.Context, s *site) error { return s.elsewhere(ctx, 0, 100, 200, 300) },
		broken: func(ctx context.Context, s *site) error { _, err := at(ctx, s); return err },
		end: func(ctx context.Context, s *site, _ string) error {
			v, err := at(ctx, s)
			if err != nil {
				return err
			}
			if err := committed(v, 300); err != nil {
				return err
			}
			return other(s).restores(ctx, "checkpoint-300")
		},
	}
}
