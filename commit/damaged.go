package commit

import "context"

// Damaged lists the commits that are marked damaged. It reads no object.
func (s *Store) Damaged(ctx context.Context) (map[ID]bool, error) {
	out := map[ID]bool{}
	for o, err := range s.list(ctx, "marks/") {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindMark && o.Word == Damaged {
			out[o.ID] = true
		}
	}
	return out, nil
}
