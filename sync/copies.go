package syncer

import (
	"context"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// findCopies finds the steps on this disk that are copies of what other
// attempts have committed. A restore brought them here, and was killed before
// its attempt was this host's: nobody has trained them under the present one.
func (e *Engine) findCopies(ctx context.Context, v *commit.View) error {
	steps, err := e.find()
	if err != nil {
		return nil //nolint:nilerr // the scan says so
	}
	copies := map[string]copied{}
	for _, s := range steps {
		if b := e.st.Base; b != nil && !e.st.Declared && s.Number <= b.Step {
			continue // passed over without reading it
		}
		for _, c := range v.Commits {
			if c.Step != s.Number || c.Attempt == e.st.Attempt || e.stray(v, c.Attempt) {
				continue
			}
			print, err := e.copyOf(ctx, s, c.ID)
			if err != nil {
				return err
			}
			if print != "" {
				copies[s.Name] = copied{print, c.ID}
			}
		}
	}
	e.mu.Lock()
	e.copies = copies
	e.mu.Unlock()
	return nil
}

// stray reports whether an attempt is one that nobody declared and that counts
// for less than this host's: what a daemon on a copy of this disk has committed
// hides no step of this attempt.
func (e *Engine) stray(v *commit.View, attempt int) bool {
	declared := slices.ContainsFunc(v.Attempts, func(a commit.Attempt) bool { return a.Attempt == attempt && a.Declared })
	return !declared && v.Rank(attempt) < v.Rank(e.st.Attempt)
}

// copied is a local step that is a copy of a commit.
type copied struct {
	print string // its fingerprint
	of    commit.ID
}

// copyOf returns the fingerprint of a local step if it is a copy of a commit:
// the same bytes with the same times, which a step that was trained again does
// not have.
func (e *Engine) copyOf(ctx context.Context, s layout.Step, id commit.ID) (string, error) {
	t, err := e.cfg.capture(e.cfg.Root, s.Name, nil)
	if err != nil || e.st.Born[s.Name] == e.ownPrint(s, t) {
		return "", nil //nolint:nilerr // what cannot be looked at is no copy; and what was born before is passed over anyhow
	}
	parts, err := e.parts(ctx, id)
	if err != nil || len(parts) == 0 || parts[0].Name != s.Name || !sameTimes(parts, t) {
		return "", err
	}
	same, err := e.samePart(ctx, parts, t)
	if err != nil || !same {
		return "", err
	}
	return e.ownPrint(s, t), nil
}

// sameTimes reports whether the files of a local step have the times that a
// commit's have, of which several nodes may have saved one path.
func sameTimes(parts []*commit.Manifest, t *tree.Tree) bool {
	times := map[string][]int64{}
	for _, m := range parts {
		for i := range m.Files {
			if f := &m.Files[i]; f.Type == commit.TypeFile {
				times[f.Path] = append(times[f.Path], f.MTime)
			}
		}
	}
	for _, le := range t.Entries {
		if of := times[le.Path]; len(of) > 0 && !slices.Contains(of, le.Mod) {
			return false
		}
	}
	return true
}

func stepOf(m *commit.Manifest) layout.Step {
	dir := len(m.Files) > 0 && m.Files[0].Path == m.Name && m.Files[0].Type == commit.TypeDir
	return layout.Step{Name: m.Name, Number: m.Step, Dir: dir, Layout: m.Layout}
}
