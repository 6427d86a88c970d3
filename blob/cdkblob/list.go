package cdkblob

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ckptsync/ckptsync/blob"
)

// inOrder yields what is in the pages, ascending and each key once, without
// placeholders: keys that end in a slash, which consoles and other tools leave.
// A store that lists in another order than ours is found out by the first such
// listing, which then fails as blob.ErrTemporary; later ones are read to their
// end and sorted before the first object is yielded.
func inOrder(prefix string, unordered *atomic.Bool, pages iter.Seq2[[]blob.Info, error]) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if unordered.Load() {
			sorted(pages, yield)
			return
		}
		last := ""
		for page, err := range pages {
			if err != nil {
				yield(blob.Info{}, err)
				return
			}
			for _, info := range page {
				switch {
				case info.Key == "" || strings.HasSuffix(info.Key, "/") || info.Key == last:
					continue
				case info.Key < last:
					unordered.Store(true)
					yield(blob.Info{}, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q after %q; sorting from now on", info.Key, last))
					return
				}
				last = info.Key
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

func sorted(pages iter.Seq2[[]blob.Info, error], yield func(blob.Info, error) bool) {
	var all []blob.Info
	for page, err := range pages {
		if err != nil {
			yield(blob.Info{}, err)
			return
		}
		for _, info := range page {
			if info.Key != "" && !strings.HasSuffix(info.Key, "/") {
				all = append(all, info)
			}
		}
	}
	slices.SortFunc(all, func(x, y blob.Info) int { return cmp.Compare(x.Key, y.Key) })
	all = slices.CompactFunc(all, func(x, y blob.Info) bool { return x.Key == y.Key })
	for _, info := range all {
		if !yield(info, nil) {
			return
		}
	}
}
