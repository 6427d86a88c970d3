package blobtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) sourceTests() []test {
	return []test{
		{"BadSources", s.testBadSources},
		{"Checksum", s.testChecksum},
		{"Section", s.testSection},
		{"File", s.testFile},
	}
}

var errSource = errors.New("the disk is on fire")

// failing is a source that says it has Bytes and fails at byte at.
type failing struct {
	blob.Bytes
	at  int64
	err error
}

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= f.at {
		return f.Bytes.ReadAt(p, off)
	}
	if off >= f.at {
		return 0, f.err
	}
	n, _ := f.Bytes.ReadAt(p[:f.at-off], off)
	return n, f.err
}

// testBadSources: what fails, ends early or is not what its checksum says is
// never an object, and leaves what was there.
func (s *suite) testBadSources(t *testing.T) {
	body := data(1, 3<<20)
	wrong := blob.CRC32C(body) ^ 1
	for _, c := range []struct {
		name string
		src  blob.Source
		opts blob.PutOptions
		is   error // what the error matches, beside its class
	}{
		{"FailsAtOnce", failing{body, 0, errSource}, blob.PutOptions{}, errSource},
		{"FailsMidway", failing{body, 2<<20 + 5, errSource}, blob.PutOptions{}, errSource},
		{"FailsAtLastByte", failing{body, 3<<20 - 1, errSource}, blob.PutOptions{}, errSource},
		{"EndsEarly", failing{body, 2 << 20, io.EOF}, blob.PutOptions{}, nil},
		{"EndsEarlyByOne", failing{body, 3<<20 - 1, io.EOF}, blob.PutOptions{}, nil},
		{"EndsAtOnce", failing{body, 0, io.EOF}, blob.PutOptions{}, nil},
		{"WrongChecksum", body, blob.PutOptions{CRC32C: &wrong}, nil},
		{"WrongChecksumSmall", body[:10], blob.PutOptions{CRC32C: &wrong}, nil},
		{"WrongChecksumEmpty", body[:0], blob.PutOptions{CRC32C: &wrong}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.open(t)
			put(t, b, "old", data(2, 500))
			for _, key := range []string{"new", "old"} {
				_, err := b.Put(t.Context(), key, c.src, &c.opts)
				wantClass(t, err, blob.ErrCorrupt)
				if c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("error %q does not match the source's error", err)
				}
			}
			if s.NoIfAbsent == "" {
				opts := c.opts
				opts.IfAbsent = true
				_, err := b.Put(t.Context(), "new", c.src, &opts)
				wantClass(t, err, blob.ErrCorrupt)
			}
			wantAbsent(t, b, "new")
			wantBody(t, b, "old", data(2, 500))
			wantList(t, b, "", "old")
			again := s.reopen(t, b)
			wantAbsent(t, again, "new")
			wantBody(t, again, "old", data(2, 500))
		})
	}
}

func (s *suite) testChecksum(t *testing.T) {
	b := s.open(t)
	for _, n := range []int64{0, 1, 1000, 2<<20 + 1} {
		body := data(uint64(n), n)
		crc := blob.CRC32C(body)
		for _, absent := range []bool{false, s.NoIfAbsent == ""} {
			key := fmt.Sprintf("c/%d-%v", n, absent)
			opts := &blob.PutOptions{CRC32C: &crc, IfAbsent: absent, ContentType: "text/plain"}
			if _, err := b.Put(t.Context(), key, body, opts); err != nil {
				t.Fatalf("put of %d bytes with their checksum: %v", n, err)
			}
			wantBody(t, b, key, body)
		}
	}
}

// testSection: a source may be a window of something larger, and is not
// touched after Put has returned.
func (s *suite) testSection(t *testing.T) {
	b := s.open(t)
	whole := data(5, 1<<20)
	src := &closing{Bytes: append(blob.Bytes{}, whole...)}
	if _, err := b.Put(t.Context(), "section", io.NewSectionReader(src, 1000, 70_000), nil); err != nil {
		t.Fatal(err)
	}
	src.close()
	wantBody(t, b, "section", whole[1000:71_000])
	if late := src.reads(); late > 0 {
		t.Errorf("the source was read %d times after Put had returned", late)
	}
}

// inFile is a source in a file.
type inFile struct {
	*io.SectionReader
	file *os.File
	off  int64
}

// Section implements blob.FileSource.
func (f inFile) Section() (*os.File, int64) { return f.file, f.off }

// testFile: a part of a file, which the system may send, is what its checksum
// says, or no object.
func (s *suite) testFile(t *testing.T) {
	b := s.open(t)
	put(t, b, "first", data(7, 10)) // its answer may decide how the others are sent
	body := data(8, 3<<20)
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(body); err != nil {
		t.Fatal(err)
	}
	const off, n = 12345, 2<<20 + 17
	want := body[off : off+n]
	crc := blob.CRC32C(want)
	src := inFile{io.NewSectionReader(file, off, n), file, off}
	if _, err := b.Put(t.Context(), "file", src, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	wantBody(t, b, "file", want)
	for name, change := range map[string]func() error{
		"changed": func() error { _, err := file.WriteAt([]byte{want[n-1] + 1}, off+n-1); return err },
		"shorter": func() error { return file.Truncate(off + n - 1) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, err := b.Put(t.Context(), name, src, &blob.PutOptions{CRC32C: &crc})
		wantClass(t, err, blob.ErrCorrupt)
		wantAbsent(t, b, name)
	}
}

// closing counts reads after it was closed, and then yields other bytes.
type closing struct {
	blob.Bytes
	mu     sync.Mutex
	closed bool
	late   int
}

func (c *closing) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.late++
	}
	return c.Bytes.ReadAt(p, off)
}

func (c *closing) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	clear(c.Bytes)
}

func (c *closing) reads() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}
