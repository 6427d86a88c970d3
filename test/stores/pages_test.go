package stores

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// TestO38PagesOfARealServer: with 1,200 commits, and a step of 1,500 objects,
// the newest is found, all objects are listed, and all of them go.
func TestO38PagesOfARealServer(t *testing.T) {
	g := Versitygw(t)
	Setenv(t)
	b, err := s3blob.Open(t.Context(), g.URL(g.Bucket(t, "bucket"), "p"), s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := committest.In(t, b, "exp1")
	r.Declare(nil)
	// Where the server keeps its objects: it makes 2,700 of them in no time.
	dir := filepath.Join(g.DataDir(), "bucket", "p", "exp1")
	write := func(sub, format string, n int) {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := os.WriteFile(filepath.Join(dir, sub, fmt.Sprintf(format, i)), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("commits", "%012d-a000001-r00.json", 1200)
	write("data/step", "shard-%04d", 1500)
	if head, ok := r.View().Head(); !ok || head != (commit.ID{Attempt: 1, Step: 1199}) {
		t.Errorf("head %v", head)
	}
	var keys []string
	for info, err := range b.List(t.Context(), "exp1/data/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if len(keys) != 1500 {
		t.Fatalf("%d objects are listed", len(keys))
	}
	if failed := blob.DeleteBatch(t.Context(), b, keys); len(failed) != 0 {
		t.Fatalf("%d were not deleted: %v", len(failed), failed)
	}
	for info, err := range b.List(t.Context(), "exp1/data/") {
		t.Fatalf("left: %v, %v", info, err)
	}
}
