package restore

import (
	"context"
	"errors"

	"github.com/ckptsync/ckptsync/commit"
)

// First returns the commit that [Newest] would restore first, of the run as v
// shows it, and what it would pass over before that. It reads the commit's
// marker and manifests and none of its data. The errors are those of Newest, and
// ErrOvertaken if the run has changed since v was listed.
//
// Whoever draws an attempt's number calls it with the listing that the number
// is from (protocol R7).
func First(ctx context.Context, o Options, p Policy, v *commit.View) (commit.ID, []Skipped, error) {
	if err := o.complete(); err != nil {
		return commit.ID{}, nil, err
	}
	if err := empty(v); err != nil {
		return commit.ID{}, nil, err
	}
	candidates, err := choose(v, &p)
	if err != nil {
		return commit.ID{}, nil, err
	}
	var first commit.ID
	p.Chosen = func(_ context.Context, id commit.ID) error {
		first = id
		return errChosen
	}
	w := &walk{o: &o, p: &p}
	if w.guard, err = newGuard(ctx, &o, &p, v); err != nil {
		return commit.ID{}, nil, err
	}
	if _, err = w.over(ctx, candidates); errors.Is(err, errChosen) {
		return first, w.skipped, nil
	}
	return commit.ID{}, w.skipped, err
}

// errChosen ends a walk that is to read no data.
var errChosen = errors.New("chosen")
