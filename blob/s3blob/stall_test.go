package s3blob

import (
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// TestSlowSourceIsNotStalled: whoever limits the bandwidth does not break the
// connection.
func TestSlowSourceIsNotStalled(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	f := newFake(t)
	b := f.open("", Options{Stall: limit})
	src := pausing{content(2 << 20), 3 * limit}
	crc := blob.CRC32C(src.Bytes)
	if _, err := b.Put(t.Context(), "k", src, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", src.Bytes)
}

// pausing is a source that yields nothing for a while in its middle.
type pausing struct {
	blob.Bytes
	pause time.Duration
}

func (p pausing) ReadAt(b []byte, off int64) (int, error) {
	if off <= p.Size()/2 && off+int64(len(b)) > p.Size()/2 {
		time.Sleep(p.pause)
	}
	return p.Bytes.ReadAt(b, off)
}

// TestStalledGoesOnElsewhere: the next try takes another connection.
func TestStalledGoesOnElsewhere(t *testing.T) {
	f := newFake(t)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	var mu sync.Mutex
	remotes := map[string]bool{}
	f.early = func(c *call) bool {
		mu.Lock()
		stall := len(remotes) == 0
		remotes[c.R.RemoteAddr] = true
		mu.Unlock()
		if stall {
			<-end
		}
		return stall
	}
	inner := f.open("", Options{Stall: 150 * time.Millisecond})
	b := retryblob.New(inner, &retryblob.Options{Initial: time.Millisecond})
	body := content(4 << 20)
	if _, err := b.Put(t.Context(), "k", body, nil); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", body)
	if len(remotes) < 2 {
		t.Errorf("it was tried again on the connection that had stalled: %v", remotes)
	}
}

// TestStallsOnTheLine: what every driver does with a line that stalls or is slow.
func TestStallsOnTheLine(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	line := blobtest.NewLine(t, f.Listener.Addr().String())
	blobtest.RunStalls(t, line, func(t *testing.T, stall time.Duration) blob.Bucket {
		u := "s3://" + fakeBucket + "/p?region=us-east-1&endpoint=" + url.QueryEscape("http://"+line.Addr().String())
		return mustOpen(t, u, Options{Stall: stall})
	})
}
