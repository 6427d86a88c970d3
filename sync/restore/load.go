package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// loaded is a commit as the bucket describes it, proven against its marker.
type loaded struct {
	Marker    *commit.Marker
	Manifests []*commit.Manifest // in node order
	Tree      *Tree              // what is wanted of it; merge makes it
}

// merge makes the tree, or refuses the commit.
func (l *loaded) merge(sel Selection) (err error) {
	l.Tree, err = NewTree(l.Marker, l.Manifests, sel)
	if err == nil && sel.Partial() && !slices.ContainsFunc(l.Tree.Entries, func(e Entry) bool { return e.Type != commit.TypeDir }) {
		err = fmt.Errorf("no file of commit %s is chosen by --include %q and --exclude %q: 'ckptsync show %d' lists them", l.Marker.ID, sel.Include, sel.Exclude, l.Marker.Step)
	}
	return err
}

// missing is what exact resume lacks.
func (l *loaded) missing() []string { return commit.Missing(l.Marker, l.Manifests) }

// loadParallel bounds how many manifests are read at a time.
const loadParallel = 8

// load reads the marker and the manifests. Everything that proves the commit
// unusable is asked for twice.
func load(ctx context.Context, o *Options) (*loaded, error) {
	m, err := twice(ctx, o, "its marker", false, func() (*commit.Marker, error) {
		return o.Store.Marker(ctx, o.ID)
	})
	if err != nil {
		return nil, err
	}
	l := &loaded{Marker: m, Manifests: make([]*commit.Manifest, len(m.Parts))}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(loadParallel)
	for i, ref := range m.Parts {
		g.Go(func() (err error) {
			l.Manifests[i], err = twice(gctx, o, fmt.Sprintf("the manifest of node %d", ref.Node), true, func() (*commit.Manifest, error) {
				return o.Store.Manifest(gctx, m, ref)
			})
			return err
		})
	}
	return l, g.Wait()
}

// twice reads an object of the commit, and once more if the answer would make
// the commit unusable, and says what the second such answer means. proven says
// that its bytes are checked before they are parsed: if they break the rules
// then, they were written so.
func twice[T any](ctx context.Context, o *Options, what string, proven bool, read func() (*T, error)) (*T, error) {
	v, err := read()
	if err == nil {
		return v, nil
	}
	if bad := wrongObject(err); bad != "" {
		wait := backoff
		if o.test.wait != nil {
			wait = o.test.wait
		}
		if werr := wait(ctx, 1); werr != nil {
			return nil, werr
		}
		if v, err = read(); err == nil {
			return v, nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	switch bad := wrongObject(err); {
	case errors.Is(err, commit.ErrFormat):
		return nil, fmt.Errorf("commit %s: %s: %w: a newer ckptsync is needed, or an older step (--before %d)", o.ID, what, err, o.ID.Step)
	case errors.Is(err, blob.ErrArchived):
		return nil, &ArchivedError{ID: o.ID, Object: what, Err: err}
	case bad == "":
		return nil, &StoreError{Op: fmt.Sprintf("read commit %s", o.ID), Err: err}
	case errors.Is(err, commit.ErrUntrusted), proven && errors.Is(err, commit.ErrInvalid):
		return nil, &RefusedError{ID: o.ID, Reason: what, Err: err}
	case errors.Is(err, blob.ErrNotExist):
		return nil, missing(ctx, o, what, err)
	default:
		return nil, &DamagedError{ID: o.ID, Object: what, Chunk: -1, Reason: bad, Err: err}
	}
}

// wrongObject says what an answer has against an object of the commit; empty
// if it says nothing about it.
func wrongObject(err error) string {
	switch {
	case errors.Is(err, blob.ErrNotExist):
		return "it is missing"
	case errors.Is(err, blob.ErrCorrupt):
		return "its bytes are not those that were committed"
	case errors.Is(err, commit.ErrInvalid):
		return "it breaks the rules of its format"
	case errors.Is(err, commit.ErrUntrusted):
		return err.Error()
	}
	return ""
}

// missing tells a commit that was retired from one that lost an object.
func missing(ctx context.Context, o *Options, what string, err error) error {
	why, lerr := o.Store.Lost(ctx, o.ID)
	if lerr != nil {
		return &StoreError{Op: fmt.Sprintf("look whether commit %s was retired", o.ID), Err: lerr}
	}
	if why == "retired" {
		return fmt.Errorf("commit %s: %w", o.ID, ErrGone)
	}
	_, merr := o.Store.Marker(ctx, o.ID)
	if errors.Is(merr, blob.ErrNotExist) {
		return fmt.Errorf("commit %s: its marker is not there: %w", o.ID, ErrGone)
	}
	return &DamagedError{ID: o.ID, Object: what, Chunk: -1, Reason: "it is missing", Err: err}
}

// stillThere returns err, unless the commit was retired while it was being
// read: then its objects went with it, and nothing is damaged.
func stillThere(ctx context.Context, o *Options, err error) error {
	var damaged *DamagedError
	if !errors.As(err, &damaged) {
		return err
	}
	switch why, lerr := o.Store.Lost(ctx, o.ID); {
	case lerr != nil:
		return &StoreError{Op: fmt.Sprintf("look whether commit %s was retired", o.ID), Err: errors.Join(lerr, err)}
	case why == "retired":
		return fmt.Errorf("commit %s: %w (%s)", o.ID, ErrGone, err.Error())
	}
	return err
}
