package syncer

import (
	"context"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
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
			if c.Step != s.Number || c.Attempt == e.st.Attempt {
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
	if err != nil || e.st.Born[s.Name] == t.Fingerprint() {
		return "", nil //nolint:nilerr // what cannot be looked at is no copy; and what was born before is passed over anyhow
	}
	m, err := e.manifest(ctx, id)
	if err != nil || m == nil || m.Name != s.Name {
		return "", err
	}
	times := make(map[string]int64, len(t.Entries))
	for _, le := range t.Entries {
		times[le.Path] = le.Mod
	}
	for i := range m.Files {
		if f := &m.Files[i]; f.Type == commit.TypeFile && times[f.Path] != f.MTime {
			return "", nil
		}
	}
	same, err := e.sameContent(ctx, m, t)
	if err != nil || !same {
		return "", err
	}
	return t.Fingerprint(), nil
}

// onDisk reports whether a single-node commit is under the root with the same
// content, by digest. A commit that cannot be understood is on no disk.
func (e *Engine) onDisk(ctx context.Context, id commit.ID) (bool, error) {
	m, err := e.manifest(ctx, id)
	if err != nil || m == nil {
		return false, err
	}
	t, err := e.cfg.capture(e.cfg.Root, m.Name, nil)
	if err != nil {
		return false, nil //nolint:nilerr // what cannot be looked at is not there
	}
	return e.sameContent(ctx, m, t)
}
