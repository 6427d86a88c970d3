package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// An upload in parts that a killed process has begun is continued by the next
// one, which knows it from the journal. One that no journal knows will never be
// ended: its state was lost, its answer was lost, its step was deleted or saved
// again, its attempt is over. Its parts are paid for, so it is given up
// (protocol R11), but only if it is
//
//   - of this run's data, as its key says; nothing foreign is touched;
//   - of this node in this attempt, and in none of its journals; or of an
//     attempt before this one that does not rank above it, whoever's;
//   - older than the grace by two times of the store: the upload's beginning,
//     and that of an object written now. The local clock has no say (O-36).
//
// Whoever still works on it after all loses what was sent: its parts are
// refused, and the file is sent anew. A commit never depends on it.

// tidyEvery is how often it is looked for such uploads, after the first time.
const tidyEvery = 6 * time.Hour

// tidy gives up stale uploads, when it is time for that and there is nothing
// else to do. That the store cannot be asked is no matter.
func (e *Engine) tidy(ctx context.Context) {
	now := e.cfg.now()
	if !e.attached || ctx.Err() != nil || !e.tidied.IsZero() && now.Sub(e.tidied) < tidyEvery {
		return
	}
	e.tidied = now
	n, err := e.abortStale(ctx)
	if n > 0 {
		e.cfg.Log.Info("unfinished uploads that nobody would end were given up", "uploads", n)
	}
	if err != nil && ctx.Err() == nil {
		e.cfg.Log.Warn("unfinished uploads could not be looked for", "err", err)
	}
}

func (e *Engine) abortStale(ctx context.Context) (n int, err error) {
	found, err := e.strangers(ctx)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	now, err := e.store.Now(ctx)
	if err != nil || now.IsZero() {
		return 0, err
	}
	for _, u := range found {
		if u.Started.IsZero() || now.Sub(u.Started) < e.cfg.StaleUploads {
			continue
		}
		done, err := e.store.AbortUpload(ctx, u)
		if err != nil {
			return n, err
		}
		if done {
			n++
		}
	}
	return n, nil
}

// strangers are the unfinished uploads that nobody is known to end.
func (e *Engine) strangers(ctx context.Context) ([]blob.UnfinishedUpload, error) {
	lister, ok := blob.As[blob.UploadLister](e.store.Bucket())
	if !ok {
		return nil, nil
	}
	var ours, before []blob.UnfinishedUpload
	for u, err := range lister.Uploads(ctx, e.store.Key("data/")) {
		if blob.Class(err) == blob.ErrUnsupported {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		o, ok := commit.ParseKey(strings.TrimPrefix(u.Key, e.store.Key("")))
		switch {
		case !ok || o.Kind != commit.KindData:
		case o.ID.Attempt < e.st.Attempt:
			before = append(before, u)
		case o.ID.Attempt == e.st.Attempt && o.Node == e.st.Node:
			ours = append(ours, u)
		}
	}
	out, err := e.unknown(ours)
	if err != nil || len(before) == 0 {
		return out, err
	}
	v, err := e.store.View(ctx)
	if err != nil {
		return nil, err
	}
	for _, u := range before {
		o, _ := commit.ParseKey(strings.TrimPrefix(u.Key, e.store.Key("")))
		if v.Rank(o.ID.Attempt) <= v.Rank(e.st.Attempt) {
			out = append(out, u)
		}
	}
	return out, nil
}

// unknown are those of these uploads that no journal of this attempt knows.
func (e *Engine) unknown(ups []blob.UnfinishedUpload) ([]blob.UnfinishedUpload, error) {
	if len(ups) == 0 {
		return nil, nil
	}
	known := map[string]bool{}
	err := filepath.WalkDir(journalDir(e.cfg.StateDir, e.st.Attempt), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		j, err := peekJournal(p)
		for _, r := range j.ups {
			known[e.store.Key(r.Object)+" "+r.Upload] = true
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read journals: %w", err)
	}
	var out []blob.UnfinishedUpload
	for _, u := range ups {
		if !known[u.Key+" "+u.ID] {
			out = append(out, u)
		}
	}
	return out, nil
}

// peekJournal reads what can be read of a journal that another may be writing
// to, and leaves it alone.
func peekJournal(path string) (*journal, error) {
	j := &journal{path: path, files: map[string]record{}, ups: map[string]record{}, parts: map[string]map[int]record{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return j, err
	}
	defer f.Close()
	j.read(f)
	return j, nil
}
