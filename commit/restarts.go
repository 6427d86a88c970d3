package commit

import (
	"context"
	"slices"
)

// Restarts says how often each commit was restored for a training that has
// committed nothing since: by the declared attempts above every attempt that
// has ever committed anything. It counts attempts of which is recorded that
// their restore came to its end (PutReady of node 0 if there is one node, a
// start that says go if there are several); one that failed says nothing of the
// commit. An attempt that went on from no commit of this run ends the count:
// its owner has decided something.
//
// It lists the attempts' objects once more, if there is anything to count.
func (s *Store) Restarts(ctx context.Context, v *View) (map[ID]int, error) {
	tail := v.fruitless()
	if len(tail) == 0 {
		return nil, nil
	}
	ended, started := map[int]bool{}, map[int]bool{}
	for o, err := range s.list(ctx, "attempts/") {
		switch {
		case err != nil:
			return nil, err
		case o.Kind == KindReady && o.Node == 0:
			ended[o.ID.Attempt] = true
		case o.Kind == KindStart:
			started[o.ID.Attempt] = true
		}
	}
	count := map[ID]int{}
	for _, a := range tail {
		if a.Nodes > 1 {
			ended[a.Attempt] = false
			if started[a.Attempt] {
				st, err := s.GetStart(ctx, a.Attempt)
				if err != nil {
					return nil, err
				}
				ended[a.Attempt] = st.Decision == StartGo
			}
		}
		if ended[a.Attempt] {
			count[*a.Base]++
		}
	}
	return count, nil
}

// fruitless are the declared attempts with a base, the newest first, above
// every attempt that has committed anything, and above the newest that began
// without a base.
func (v *View) fruitless() []Attempt {
	last := 0
	for _, c := range v.Commits {
		last = max(last, c.Attempt)
	}
	for id := range v.Retired {
		last = max(last, id.Attempt)
	}
	var out []Attempt
	for _, a := range slices.Backward(v.Attempts) {
		switch {
		case a.Attempt <= last, a.Declared && a.Base == nil && !v.Excluded[a.Attempt]:
			return out
		case a.Declared && !v.Excluded[a.Attempt]:
			out = append(out, a)
		}
	}
	return out
}
