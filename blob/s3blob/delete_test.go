package s3blob

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func fill(f *fake, keys ...string) {
	for _, key := range keys {
		f.put("p/"+key, &object{body: []byte("x"), etag: `"e"`})
	}
}

func countOps(f *fake) map[string]int {
	n := map[string]int{}
	for _, op := range f.ops() {
		n[op]++
	}
	return n
}

// TestO38DeleteBatches: 2,500 objects go with three requests, one in ten of
// which is not there.
func TestO38DeleteBatches(t *testing.T) {
	f := newFake(t)
	var keys []string
	for i := range 2500 {
		keys = append(keys, fmt.Sprintf("k<&>%04d", i))
		if i%10 != 0 {
			fill(f, keys[i])
		}
	}
	fill(f, "k", "kk")
	b := f.open("", Options{})
	if failed := blob.DeleteBatch(t.Context(), b, keys); len(failed) != 0 {
		t.Fatal(failed)
	}
	if got, err := keysOf(t, b, ""); err != nil || !slices.Equal(got, []string{"k", "kk"}) {
		t.Errorf("left: %q, %v", got, err)
	}
	if n := countOps(f); n["DeleteObjects"] != 3 || n["DeleteObject"] != 0 {
		t.Errorf("requests: %v", n)
	}
}

// TestDeleteBatchAnswers: each key has its own outcome, and one that the answer
// does not name is not known to be gone.
func TestDeleteBatchAnswers(t *testing.T) {
	f := newFake(t)
	f.on(func(c *call) bool {
		if c.Op != "DeleteObjects" {
			return false
		}
		c.xml("DeleteResult", "<Deleted><Key>p/gone</Key></Deleted><Deleted><Key>other</Key></Deleted>"+
			"<Error><Key>p/absent</Key><Code>NoSuchKey</Code></Error>"+
			"<Error><Key>p/locked</Key><Code>AccessDenied</Code><Message>it is locked</Message></Error>"+
			"<Error><Key>p/busy</Key><Code>SlowDown</Code></Error><Error><Key>p/odd</Key><Code>Whatever</Code></Error>")
		return true
	})
	failed := f.open("", Options{}).DeleteBatch(t.Context(), []string{"gone", "absent", "locked", "busy", "odd", "unnamed", "other"})
	want := map[string]error{
		"locked": blob.ErrDenied, "busy": blob.ErrThrottled, "odd": blob.ErrTemporary, "unnamed": blob.ErrTemporary, "other": blob.ErrTemporary,
	}
	if got := slices.Sorted(maps.Keys(failed)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Fatalf("failed: %v", failed)
	}
	for key, class := range want {
		wantClass(t, failed[key], class)
	}
	if !strings.Contains(failed["locked"].Error(), "it is locked") || !strings.Contains(failed["locked"].Error(), `"locked"`) {
		t.Errorf("error %v does not say what and why", failed["locked"])
	}
}

// TestDeleteBatchWhole: what befalls the request befalls all of its keys.
func TestDeleteBatchWhole(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*call) bool
		class  error
	}{
		"Denied":     {func(c *call) bool { return c.fail(403, "AccessDenied") }, blob.ErrDenied},
		"SlowDown":   {func(c *call) bool { return c.fail(503, "SlowDown") }, blob.ErrThrottled},
		"Error":      {func(c *call) bool { return c.fail(500, "InternalError") }, blob.ErrTemporary},
		"ErrorIn200": {func(c *call) bool { return c.fail(200, "InternalError") }, blob.ErrTemporary},
		"Dropped":    {(*call).drop, blob.ErrTemporary},
		"Lost":       {(*call).lose, blob.ErrTemporary},
		"Nothing":    {func(c *call) bool { return true }, blob.ErrTemporary},
		"Portal":     {func(c *call) bool { fmt.Fprint(c.W, "<html>please log in</html>"); return true }, blob.ErrTemporary},
		"NoBucket":   {func(c *call) bool { return c.fail(404, "NoSuchBucket") }, blob.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(func(q *call) bool { return q.Op == "DeleteObjects" && c.answer(q) })
			failed := f.open("", Options{}).DeleteBatch(t.Context(), []string{"a", "b"})
			if len(failed) != 2 {
				t.Fatalf("failed: %v", failed)
			}
			for _, err := range failed {
				wantClass(t, err, c.class)
			}
			if n := countOps(f); n["DeleteObject"] != 0 {
				t.Errorf("requests: %v", n)
			}
		})
	}
}

// TestDeleteBatchUnsupported: a store that has no such request is asked once,
// and its objects are deleted one by one.
func TestDeleteBatchUnsupported(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*call) bool
		asked  int // in two calls
	}{
		"501": {func(c *call) bool { return c.fail(501, "NotImplemented") }, 1},
		"400": {func(c *call) bool { return c.fail(400, "NotImplemented") }, 1},
		"405": {func(c *call) bool { return c.fail(405, "MethodNotAllowed") }, 1},
		// Perhaps it is something else that it does not like: each batch is tried,
		// with both checksums.
		"InvalidRequest": {func(c *call) bool { return c.fail(400, "InvalidRequest") }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(func(q *call) bool { return q.Op == "DeleteObjects" && c.answer(q) })
			b := f.open("", Options{})
			for _, keys := range [][]string{{"a", "b"}, {"c", "d"}} {
				fill(f, keys...)
				if failed := b.DeleteBatch(t.Context(), keys); len(failed) != 0 {
					t.Fatal(failed)
				}
				if got, err := keysOf(t, b, ""); err != nil || len(got) != 0 {
					t.Fatalf("left: %q, %v", got, err)
				}
			}
			if n := countOps(f); n["DeleteObjects"] != c.asked || n["DeleteObject"] != 4 {
				t.Errorf("requests: %v, want %d batches", n, c.asked)
			}
		})
	}
}

// TestDeleteBatchChecksum: the protocol demands one, and stores differ on
// which; what is found out is remembered.
func TestDeleteBatchChecksum(t *testing.T) {
	for header, asked := range map[string]int{"Content-Md5": 2, "X-Amz-Checksum-Crc32c": 3} {
		f := newFake(t)
		f.on(func(c *call) bool {
			return c.Op == "DeleteObjects" && c.R.Header.Get(header) == "" && c.fail(400, "InvalidRequest")
		})
		b := f.open("", Options{})
		for range 2 {
			fill(f, "a", "b")
			if failed := b.DeleteBatch(t.Context(), []string{"a", "b"}); len(failed) != 0 {
				t.Fatal(failed)
			}
		}
		if n := countOps(f); n["DeleteObjects"] != asked || n["DeleteObject"] != 0 {
			t.Errorf("%s: requests: %v, want %d batches", header, n, asked)
		}
	}
}
