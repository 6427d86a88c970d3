package union

import (
	"bytes"
	"container/list"
	"testing"

	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
)

// However much is read, what is kept of it is bounded, and a block that is kept
// is not read again.
func TestCacheIsBounded(t *testing.T) {
	mem := memblob.New()
	s, err := commit.NewStore(mem, "run")
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, (maxBlocks+9)*blockSize-5)
	f := &commit.File{Path: "s/a", Type: commit.TypeFile, Size: int64(len(data)), Object: "data/x/y/a"}
	if _, err := mem.Put(t.Context(), s.Key(f.Object), bytes.NewReader(data), nil); err != nil {
		t.Fatal(err)
	}
	r := &reader{ctx: t.Context(), store: s, blocks: map[blockKey]*list.Element{}, recent: list.New()}
	buf := make([]byte, len(data))
	if n, err := (&content{r, f}).ReadAt(buf, 0); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if r.recent.Len() != maxBlocks || len(r.blocks) != maxBlocks {
		t.Errorf("%d and %d blocks are kept", r.recent.Len(), len(r.blocks))
	}
	if err := mem.Delete(t.Context(), s.Key(f.Object)); err != nil {
		t.Fatal(err)
	}
	if _, err := (&content{r, f}).ReadAt(buf[:10], int64(len(data)-10)); err != nil {
		t.Errorf("the last block was read again: %v", err)
	}
	if _, err := (&content{r, f}).ReadAt(buf[:10], 0); err == nil {
		t.Error("the first block is kept for ever")
	}
}
