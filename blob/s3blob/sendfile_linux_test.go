package s3blob

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// unread is a part of a file that only the system may read.
type unread struct {
	t    *testing.T
	file *os.File
	off  int64
	size int64
}

func (u *unread) Size() int64 { return u.size }

func (u *unread) ReadAt(p []byte, off int64) (int, error) {
	u.t.Errorf("%d bytes at %d entered the program", len(p), off)
	return u.file.ReadAt(p, u.off+off)
}

func (u *unread) Section() (*os.File, int64) { return u.file, u.off }

// onDisk is a file with that content.
func onDisk(t *testing.T, body []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// confirmed is a handle of a store that has confirmed a checksum.
func confirmed(t *testing.T, f *fake, opts Options) *Bucket {
	t.Helper()
	b := f.open("", opts)
	if b.SendsFiles() {
		t.Error("files would be sent to a store that may not compare checksums")
	}
	if _, err := b.Put(t.Context(), "first", content(10), nil); err != nil {
		t.Fatal(err)
	}
	if !b.SendsFiles() {
		t.Fatal("files are not sent")
	}
	return b
}

// TestFilesAreSentByTheSystem: objects and parts, many at once from one file, and
// again after a lost connection.
func TestFilesAreSentByTheSystem(t *testing.T) {
	f := newFake(t)
	b := confirmed(t, f, Options{})
	body := content(4*blob.MinPart + 12345)
	file := onDisk(t, body)
	crc := blob.CRC32C(body[7:])
	src := &unread{t, file, 7, body.Size() - 7}
	if _, err := b.Put(t.Context(), "whole", src, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	f.wantStored("whole", body[7:])

	up, err := b.Upload(t.Context(), "parts", "", &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	parts, errs := make([]blob.Part, 4), make(chan error)
	for i := range parts {
		go func() {
			off := int64(i) * blob.MinPart
			var err error
			parts[i], err = up.PutPart(t.Context(), i+1, &unread{t, file, off, blob.MinPart}, blob.CRC32C(body[off:][:blob.MinPart]))
			errs <- err
		}()
	}
	for range parts {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	last := body[4*blob.MinPart:] // small: read first, and sent like others of its size
	p, err := up.PutPart(t.Context(), 5, last, blob.CRC32C(last))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Complete(t.Context(), append(parts, p)); err != nil {
		t.Fatal(err)
	}
	f.wantStored("parts", body)
}

// TestFileThatIsAnotherBySendingTime: neither a file that changed since its
// checksum was made nor one that became shorter becomes an object.
func TestFileThatIsAnotherBySendingTime(t *testing.T) {
	body := content(8 << 20)
	crc := blob.CRC32C(body)
	for name, change := range map[string]func(*os.File) error{
		"changed": func(f *os.File) error { _, err := f.WriteAt([]byte{body[5<<20] + 1}, 5<<20); return err },
		"shorter": func(f *os.File) error { return f.Truncate(6 << 20) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			b := confirmed(t, f, Options{})
			file := onDisk(t, body)
			if err := change(file); err != nil {
				t.Fatal(err)
			}
			_, err := b.Put(t.Context(), "k", &unread{t, file, 0, body.Size()}, &blob.PutOptions{CRC32C: &crc})
			wantClass(t, err, blob.ErrCorrupt)
			if o := f.object("p/k"); o != nil {
				t.Errorf("an object of %d bytes came of it", len(o.body))
			}
		})
	}
}

// TestStallOfAFile: the watchdog sees what the system sends.
func TestStallOfAFile(t *testing.T) {
	f := newFake(t)
	b := confirmed(t, f, Options{Stall: 150 * time.Millisecond})
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	f.early = func(c *call) bool { io.CopyN(io.Discard, c.R.Body, 1<<20); <-end; return true }
	body := content(32 << 20) // more than the kernel takes in advance
	crc := blob.CRC32C(body)
	_, err := b.Put(t.Context(), "k", &unread{t, onDisk(t, body), 0, body.Size()}, &blob.PutOptions{CRC32C: &crc})
	wantClass(t, err, blob.ErrTemporary)
	if !errors.Is(err, stall.ErrStalled) {
		t.Errorf("error %v does not say that it stalled", err)
	}
}

// TestFilesAreRead: over https the program encrypts them; without a checksum that
// the store compares it looks at what it sends; and some files the system does not
// send.
func TestFilesAreRead(t *testing.T) {
	f := newFake(t)
	secure := newFake(t)
	secure.Close()
	secure.Server = newTLS(secure)
	t.Cleanup(secure.Server.Close)
	t.Setenv("AWS_CA_BUNDLE", certificate(t, secure))
	for name, b := range map[string]*Bucket{
		"https":       secure.open("", Options{}),
		"no checksum": f.open("&checksum=none", Options{}),
		"MD5":         f.open("&checksum=md5", Options{}),
	} {
		if _, err := b.Put(t.Context(), "first", content(10), nil); err != nil {
			t.Fatal(name, err)
		}
		if b.SendsFiles() {
			t.Errorf("%s: files are sent unseen", name)
		}
	}
	b := confirmed(t, f, Options{})
	proc, err := os.Open("/proc/self/mem") // has no size, and no pages to send
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	body := content(2 << 20)
	crc := blob.CRC32C(body)
	src := &elsewhereSource{body, proc}
	if _, err := b.Put(t.Context(), "k", src, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", body)
}

// elsewhereSource is a source whose file the system cannot send.
type elsewhereSource struct {
	blob.Bytes
	file *os.File
}

func (s *elsewhereSource) Section() (*os.File, int64) { return s.file, 0 }

// TestNoFileIsSentAfterItsRequest: whoever closes the file once Put has returned
// has nothing of another file sent.
func TestNoFileIsSentAfterItsRequest(t *testing.T) {
	body := content(2 << 20)
	p, err := newPayload(t.Context(), "put", "k", &unread{t, onDisk(t, body), 0, body.Size()}, new(blob.CRC32C(body)))
	if err != nil {
		t.Fatal(err)
	}
	r := p.body(t.Context(), "put", "k", false)
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.push(nil, 1); n != 0 || err != errEnded {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
}
