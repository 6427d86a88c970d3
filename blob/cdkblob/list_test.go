package cdkblob

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// A store that lists in another order is found out, and sorted from then on.
func TestUnordered(t *testing.T) {
	pages := func(yield func([]blob.Info, error) bool) {
		_ = yield([]blob.Info{{Key: "a"}, {Key: "c"}, {Key: "d/"}}, nil) && yield([]blob.Info{{Key: "b"}, {Key: "c"}}, nil)
	}
	var unordered atomic.Bool
	var err error
	for _, err = range inOrder("", &unordered, pages) {
	}
	wantClass(t, err, blob.ErrTemporary)
	var keys []string
	for info, err := range inOrder("", &unordered, pages) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if !slices.Equal(keys, []string{"a", "b", "c"}) {
		t.Errorf("%q", keys)
	}
}
