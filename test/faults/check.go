//go:build linux && amd64

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// check holds the store and the node against what has to hold at any moment:
// each commit is, byte for byte, one save of the trainer; none is there twice;
// the head is one of them, and none older than before; the watched tree is as
// it was. It returns what it saw.
func (s *site) check(ctx context.Context, head commit.ID) (*commit.View, error) {
	st := s.store()
	v, err := st.View(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[string]commit.ID{}
	for _, c := range v.Commits {
		name, err := s.checkCommit(ctx, st, c.ID)
		if err != nil {
			return nil, err
		}
		if twin, ok := seen[name]; ok {
			return nil, fmt.Errorf("%s and %s are the same step", twin, c.ID)
		}
		seen[name] = c.ID
	}
	now, ok := v.Head()
	switch {
	case !ok && (len(v.Commits) > 0 || head != commit.ID{}):
		return nil, fmt.Errorf("no head, of %d commits", len(v.Commits))
	case now.Step < head.Step:
		return nil, fmt.Errorf("the head went back from %v to %v", head, now)
	}
	return v, nil
}

// checkCommit proves that a commit is a save of the trainer, and returns the
// step's name.
func (s *site) checkCommit(ctx context.Context, st *commit.Store, id commit.ID) (string, error) {
	_, parts, err := st.Load(ctx, id)
	if err != nil {
		return "", fmt.Errorf("a torn commit: %w", err)
	}
	if len(parts) != 1 {
		return "", fmt.Errorf("%s has %d parts", id, len(parts))
	}
	m := parts[0]
	save := s.saves[m.Name]
	if len(m.Files) != len(save) {
		return "", fmt.Errorf("%s: %d entries, and the trainer saved %d in %q", id, len(m.Files), len(save), m.Name)
	}
	for i := range m.Files {
		f := &m.Files[i]
		want, ok := save[f.Path]
		switch {
		case !ok:
			return "", fmt.Errorf("%s: %s is nothing that the trainer saved", id, f.Path)
		case f.Type != commit.TypeFile:
			continue
		case f.MTime != want.mtime:
			return "", fmt.Errorf("%s: %s has another time", id, f.Path)
		}
		got, err := blob.ReadAll(ctx, s.bucket, st.Key(f.Object), 1<<30)
		if err != nil {
			return "", fmt.Errorf("a torn commit: %s: %w", id, err)
		}
		if string(got) != want.data {
			return "", fmt.Errorf("%s: %s is not what the trainer saved", id, f.Path)
		}
	}
	return m.Name, nil
}

// rootIsAsFound fails if anything in the watched tree is not as it was.
func (s *site) rootIsAsFound() error {
	now, err := readTree(s.root, ".")
	if err != nil {
		return err
	}
	if why := now.differs(s.found); why != "" {
		return fmt.Errorf("the watched tree was changed: %s", why)
	}
	return nil
}

// rootHasWholeSteps fails if an entry of the root is neither as it was found
// nor a whole step.
func (s *site) rootHasWholeSteps() error {
	names, err := os.ReadDir(s.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	now, err := readTree(s.root, ".")
	if err != nil {
		return err
	}
	for _, d := range names {
		is, n := now.below(d.Name()), d.Name()
		if why := is.differs(s.saves[n]); why != "" && is.differs(s.found.below(n)) != "" {
			return fmt.Errorf("%s in the watched tree is no whole step: %s", n, why)
		}
	}
	return nil
}

// nothingLeft fails if a finished command left holds or staging behind.
func (s *site) nothingLeft() error {
	for _, dir := range []string{"holds", "staging"} {
		names, err := os.ReadDir(filepath.Join(s.state(), dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if len(names) > 0 {
			return fmt.Errorf("%d entries are left in %s, as %s", len(names), dir, names[0].Name())
		}
	}
	return nil
}

// restores fails unless a node that has nothing gets the step whole.
func (s *site) restores(ctx context.Context, name string) error {
	to := filepath.Join(s.base, "elsewhere", "out")
	if _, err := s.must(ctx, "restore", "--read-only", "--to", to, "--root", to); err != nil {
		return err
	}
	return s.hasStep(to, name)
}

// hasStep fails unless a directory holds that step, whole, and no other.
func (s *site) hasStep(dir, name string) error {
	got, err := readTree(dir, name)
	if err != nil {
		return err
	}
	if why := got.differs(s.saves[name]); why != "" {
		return fmt.Errorf("%s restored is not what was saved: %s", name, why)
	}
	names, err := os.ReadDir(dir)
	for _, d := range names {
		if d.Name() != name && strings.HasPrefix(d.Name(), "checkpoint-") {
			return fmt.Errorf("%s holds %s as well", dir, d.Name())
		}
	}
	return err
}

// committed fails unless these steps, and no others, are committed.
func committed(v *commit.View, steps ...int64) error {
	var have []int64
	for _, c := range v.Commits {
		have = append(have, c.Step)
	}
	if fmt.Sprint(have) != fmt.Sprint(steps) {
		return fmt.Errorf("committed are %v, and should be %v", have, steps)
	}
	return nil
}
