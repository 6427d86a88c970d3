package upload

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// nobody is a Log.
type nobody struct{}

func (nobody) Begun(*File, string) error              { return nil }
func (nobody) PartSent(*File, string, SentPart) error { return nil }
func (nobody) FileSent(*File, []commit.Digest) error  { return nil }

// continued is a file of two parts that an earlier process has begun to send.
func continued(t *testing.T, b blob.Bucket, dir string, n int) (File, []byte) {
	t.Helper()
	data := bytes.Repeat([]byte{byte(n + 1)}, blob.MinPart+100)
	path := filepath.Join(dir, fmt.Sprint(n))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f := File{
		Path: fmt.Sprint(n), Ident: tree.IdentOf(fi), Object: fmt.Sprint("was/", n), Fresh: fmt.Sprint("fresh/", n), Chunk: blob.MinPart,
		Growing: true, Open: func() (*os.File, error) { return os.Open(path) },
	}
	up, err := b.Upload(t.Context(), f.Object, "", f.options())
	if err != nil {
		t.Fatal(err)
	}
	p, err := up.PutPart(t.Context(), 1, blob.Bytes(data[:blob.MinPart]), blob.CRC32C(data[:blob.MinPart]))
	if err != nil {
		t.Fatal(err)
	}
	f.UploadID = up.ID()
	f.Sent = map[int]SentPart{1: {Part: p, Digest: commit.Sum(data[:blob.MinPart]), Doubt: n%2 == 0}}
	return f, data
}

// TestUploadsAreContinuedTogether: the store's word on what it has of one file
// is not waited for before it is asked of the next.
func TestUploadsAreContinuedTogether(t *testing.T) {
	const n = 6
	f := blobtest.NewFaulty(memblob.New(), 1)
	var files []File
	var data [][]byte
	for i := range n {
		one, content := continued(t, f, t.TempDir(), i)
		files, data = append(files, one), append(data, content)
	}
	f.ResetLog()
	var mu sync.Mutex
	asked, all := 0, make(chan struct{})
	f.Before = func(c blobtest.Call) error {
		if c.Op != blobtest.OpParts {
			return nil
		}
		mu.Lock()
		if asked++; asked == n {
			close(all)
		}
		mu.Unlock()
		<-all
		return nil
	}
	digests, err := New(f, 2, 64<<20).Send(t.Context(), files, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		got, err := blob.ReadAll(t.Context(), f, files[i].Object, 1<<30)
		if err != nil || !bytes.Equal(got, data[i]) || len(digests[i]) != 2 || digests[i][0] != commit.Sum(data[i][:blob.MinPart]) {
			t.Errorf("file %d: %d bytes, %v, %d digests", i, len(got), err, len(digests[i]))
		}
	}
	for _, d := range f.Log() {
		if d.Op == blobtest.OpPart && d.Part == 1 {
			t.Errorf("part 1 of %s was sent again", d.Key)
		}
	}
}

// TestStopEndsWithWhatIsUnderWay: nothing more is read, and no file that lacks a
// part is completed.
func TestStopEndsWithWhatIsUnderWay(t *testing.T) {
	f := blobtest.NewFaulty(memblob.New(), 1)
	var files []File
	var stop atomic.Bool
	for i := range 6 {
		one, _ := continued(t, f, t.TempDir(), i)
		one.Stop, one.Sent = stop.Load, nil
		files = append(files, one)
	}
	f.ResetLog()
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpPart {
			stop.Store(true)
		}
		return nil
	}
	if _, err := New(f, 1, 2*blob.MinPart).Send(t.Context(), files, nobody{}); !errors.Is(err, ErrStopped) {
		t.Fatalf("%v, want %v", err, ErrStopped)
	}
	parts := 0
	for _, d := range f.Log() {
		switch d.Op {
		case blobtest.OpPart:
			parts++
		case blobtest.OpComplete:
			t.Errorf("%s was completed", d.Key)
		}
	}
	if parts > 2 {
		t.Errorf("%d parts were sent, of which two may have been under way", parts)
	}
}
