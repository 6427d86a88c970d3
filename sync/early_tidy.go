package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// tidyAhead deletes what was sent ahead in vain: of files that changed since, of
// steps that went, or that were committed without it, and of attempts that are
// over. It ends early when stop is done; what is left is found the next time.
func (e *Engine) tidyAhead(ctx, stop context.Context) error {
	if !e.early.untidy {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(e.cfg.StateDir, "journal", "*", "*"+earlyExt))
	if err != nil {
		return err
	}
	live := e.liveJournals()
	if live == nil {
		return nil // the root cannot be looked at: nothing is known to be gone
	}
	n := &names{e: e}
	for _, path := range found {
		if err := e.tidyOne(ctx, stop, path, live[strings.TrimSuffix(path, earlyExt)], n); err != nil || stop.Err() != nil {
			return err
		}
	}
	e.early.untidy = false
	return nil
}

// tidyOne deletes what one journal knows, or, if its step is alive, what of that
// is trash.
func (e *Engine) tidyOne(ctx, stop context.Context, path string, alive bool, n *names) error {
	var j *journal
	if a := e.early.of; a != nil && a.j.path == path {
		j = a.j
	} else {
		var err error
		if j, err = openEarly(path); err != nil {
			return err
		}
		defer j.close()
	}
	trash := j.trash
	if !alive {
		trash = j.everything()
	}
	if err := e.discardAll(ctx, stop, trash, n); err != nil || stop.Err() != nil {
		return err
	}
	if !alive || len(j.files)+len(j.ups) == 0 {
		err := j.reduce(nil)
		if dir := filepath.Dir(path); dir != journalDir(e.cfg.StateDir, e.st.Attempt) {
			_ = os.Remove(dir) // of an attempt that is over; if it is empty
		}
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trash = nil
	return j.rewriteLocked(j.all())
}

// liveJournals are the journals, by their paths without extension, of steps that
// may still be committed; nil if the root could not be looked at.
func (e *Engine) liveJournals() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.sawRoot {
		return nil
	}
	live := map[string]bool{}
	for _, l := range e.lives {
		if l.stage != Committed && l.stage != Skipped && l.stage != Vanished {
			live[filepath.Join(journalDir(e.cfg.StateDir, e.st.Attempt), fileName(l.step.Name))] = true
		}
	}
	return live
}

// discardAll gives up the uploads and deletes the objects. The journal says
// that nothing names them; but a state directory may be an old copy. So an
// object is deleted only if this node sent it, and if every manifest that may
// name it is there and does not; else it is left for the prune.
func (e *Engine) discardAll(ctx, stop context.Context, trash []record, n *names) error {
	g, work := errgroup.WithContext(ctx)
	g.SetLimit(e.cfg.Concurrency)
	for _, r := range trash {
		if stop.Err() != nil || work.Err() != nil {
			break
		}
		if r.Upload != "" {
			g.Go(func() error {
				_, err := e.store.AbortUpload(work, blob.UnfinishedUpload{Key: e.store.Key(r.Object), ID: r.Upload})
				return err
			})
			continue
		}
		o, ok := commit.ParseKey(r.Object)
		if !ok || o.Kind != commit.KindData || o.Node != e.st.Node {
			continue
		}
		names, err := n.since(ctx, o.ID)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		if !names[everyObject] && !names[r.Object] {
			g.Go(func() error { return e.store.Bucket().Delete(work, e.store.Key(r.Object)) })
		}
	}
	return g.Wait()
}

// names knows what manifests name.
type names struct {
	e     *Engine
	view  *commit.View // nil until it is asked for
	parts []commit.PartKey
	known map[commit.ID]map[string]bool
}

// everyObject stands for any; it is no key.
const everyObject = "*"

// since are the objects that the manifests of that revision and of later ones of
// the same step and attempt name; every object if one of them is retired, and
// may be gone, or cannot be read.
func (n *names) since(ctx context.Context, id commit.ID) (map[string]bool, error) {
	if n.view == nil {
		parts, err := n.e.store.AllParts(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for manifests: %w", err)
		}
		if n.view, err = n.e.store.View(ctx); err != nil {
			return nil, err
		}
		n.parts, n.known = parts, map[commit.ID]map[string]bool{}
	}
	if n.known[id] != nil {
		return n.known[id], nil
	}
	later := func(o commit.ID) bool {
		return o.Attempt == id.Attempt && o.Step == id.Step && o.Revision >= id.Revision
	}
	out := map[string]bool{}
	for o := range n.view.Retired {
		out[everyObject] = out[everyObject] || later(o)
	}
	for _, p := range n.parts {
		if !later(p.ID) {
			continue
		}
		m, _, err := n.e.store.GetManifest(ctx, p.ID, p.Node, p.Claim)
		if err != nil && (blob.Ambiguous(err) || errors.Is(err, blob.ErrDenied)) {
			return nil, err
		}
		if err != nil {
			out[everyObject] = true
			continue
		}
		for i := range m.Files {
			out[m.Files[i].Object] = true
		}
	}
	n.known[id] = out
	return out, nil
}
