package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
)

const (
	endLen       = 22 // of the end record, without its comment
	end64Len     = 56 // of the ZIP64 end record, without extensions
	locatorLen   = 20 // of the ZIP64 locator
	entryLen     = 46 // of a central directory entry, without its names
	localLen     = 30 // of a local header, without its names
	maxDirectory = 1 << 30
	localSamples = 256 // local headers that are looked at, spread over the file
)

// zipDir is where the central directory of a zip lies.
type zipDir struct {
	off, size int64 // bytes
	entries   uint64
}

// zipEntry is one entry of the central directory.
type zipEntry struct {
	name   string
	method uint16
	comp   uint64 // bytes in the file
	local  uint64 // where its local header lies
}

func checkZip(f file, _ *Result) error {
	_, err := readZip(f)
	return err
}

// checkTorchZip also wants the pickle that torch.load begins with, and walks it.
func checkTorchZip(f file, res *Result) error {
	pkl, err := readZip(f)
	if err != nil {
		return err
	}
	if pkl == nil {
		return broken("a zip without data.pkl: torch.save did not write it")
	}
	off, err := dataOffset(f, *pkl)
	if err != nil || pkl.method != 0 {
		return err
	}
	o := newOps(f.r, off, off+int64(pkl.comp))
	if err := o.walk(); err == errTooLong {
		res.Warnings = append(res.Warnings, "data.pkl is too large to look at")
	} else if err != nil {
		return inPickle(err)
	}
	return nil
}

func inPickle(err error) error {
	if b, ok := errors.AsType[broken](err); ok {
		return brokenf("data.pkl in it is %s", string(b))
	}
	return err
}

// readZip checks the end record, the central directory and a sample of local
// headers, and returns the entry data.pkl, nil if there is none.
func readZip(f file) (pkl *zipEntry, err error) {
	dir, err := findDirectory(f)
	if err != nil {
		return nil, err
	}
	every := max(1, dir.entries/localSamples)
	r := &whole{r: io.NewSectionReader(f.r, dir.off, dir.size), left: dir.size}
	d := NewJSON(r).r // a bufio.Reader
	var used int64
	for i := range dir.entries {
		e, n, err := readEntry(d, dir.size-used)
		if err != nil {
			return nil, err
		}
		used += n
		if e.local > uint64(dir.off) || e.comp > uint64(dir.off) || e.local+localLen+e.comp > uint64(dir.off) {
			return nil, brokenf("broken zip: record %.80q reaches into the directory", e.name)
		}
		if pkl == nil && path.Base(e.name) == "data.pkl" && path.Dir(path.Dir(e.name)) == "." {
			pkl = &e
		}
		if i%every == 0 || i == dir.entries-1 {
			if err := checkLocal(f, e, dir.off); err != nil {
				return nil, err
			}
		}
	}
	if used != dir.size {
		return nil, brokenf("broken zip: its directory has %d bytes too many", dir.size-used)
	}
	return pkl, nil
}

// findDirectory reads the end record, which must be the last thing in the
// file, and the ZIP64 one if it is there.
func findDirectory(f file) (zipDir, error) {
	window := min(f.size, endLen+math.MaxUint16)
	buf := make([]byte, min(window, endLen))
	if err := readAt(f.r, buf, f.size-int64(len(buf))); err != nil {
		return zipDir{}, err
	}
	if len(buf) < endLen || !bytes.HasPrefix(buf, []byte("PK\x05\x06")) || buf[20] != 0 || buf[21] != 0 {
		buf = make([]byte, window)
		if err := readAt(f.r, buf, f.size-window); err != nil {
			return zipDir{}, err
		}
		i := bytes.LastIndex(buf, []byte("PK\x05\x06"))
		if i < 0 {
			return zipDir{}, broken("truncated zip: it has no end record")
		}
		if buf = buf[i:]; len(buf) < endLen {
			return zipDir{}, broken("truncated zip: its end record is cut off")
		}
	}
	at := f.size - int64(len(buf))
	switch rest := len(buf) - endLen - int(binary.LittleEndian.Uint16(buf[20:])); {
	case rest < 0:
		return zipDir{}, broken("truncated zip: its end record is cut off")
	case rest > 0:
		return zipDir{}, brokenf("has %d bytes after the end of the zip", rest)
	}
	dir := zipDir{
		entries: uint64(binary.LittleEndian.Uint16(buf[10:])),
		size:    int64(binary.LittleEndian.Uint32(buf[12:])),
		off:     int64(binary.LittleEndian.Uint32(buf[16:])),
	}
	dirEnd := at
	if d64, at64, err := findZip64(f, at); err != nil {
		return zipDir{}, err
	} else if d64 != nil {
		dir, dirEnd = *d64, at64
	} else if dir.off == math.MaxUint32 || dir.size == math.MaxUint32 {
		return zipDir{}, broken("broken zip: its ZIP64 end record is missing")
	}
	if dir.off < 0 || dir.size < 0 || dir.off > dirEnd || dir.size != dirEnd-dir.off || dir.size > maxDirectory {
		return zipDir{}, broken("broken zip: its directory is not where its end record says")
	}
	if dir.entries > uint64(dir.size)/entryLen {
		return zipDir{}, brokenf("broken zip: a directory of %d bytes cannot hold %d records", dir.size, dir.entries)
	}
	return dir, nil
}

// findZip64 reads the ZIP64 end record by the locator before the end record,
// which begins at end. It returns nil if there is none.
func findZip64(f file, end int64) (*zipDir, int64, error) {
	if end < locatorLen {
		return nil, 0, nil
	}
	var loc [locatorLen]byte
	if err := readAt(f.r, loc[:], end-locatorLen); err != nil {
		return nil, 0, err
	}
	if !bytes.HasPrefix(loc[:], []byte("PK\x06\x07")) {
		return nil, 0, nil
	}
	at := binary.LittleEndian.Uint64(loc[8:])
	if at > uint64(end-locatorLen) || uint64(end-locatorLen)-at < end64Len {
		return nil, 0, broken("broken zip: its ZIP64 end record is not where its locator says")
	}
	var rec [end64Len]byte
	if err := readAt(f.r, rec[:], int64(at)); err != nil {
		return nil, 0, err
	}
	if !bytes.HasPrefix(rec[:], []byte("PK\x06\x06")) {
		return nil, 0, broken("broken zip: its ZIP64 end record is not where its locator says")
	}
	return &zipDir{
		entries: binary.LittleEndian.Uint64(rec[32:]),
		size:    int64(binary.LittleEndian.Uint64(rec[40:])),
		off:     int64(binary.LittleEndian.Uint64(rec[48:])),
	}, int64(at), nil
}

// readEntry reads the next entry of the directory, of which left bytes remain.
func readEntry(r io.Reader, left int64) (zipEntry, int64, error) {
	torn := broken("broken zip: its directory ends in the middle of a record")
	if left < entryLen {
		return zipEntry{}, 0, torn
	}
	var h [entryLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return zipEntry{}, 0, err
	}
	if !bytes.HasPrefix(h[:], []byte("PK\x01\x02")) {
		return zipEntry{}, 0, broken("broken zip: its directory holds something else than records")
	}
	le := binary.LittleEndian
	nName, nExtra, nComment := int64(le.Uint16(h[28:])), int64(le.Uint16(h[30:])), int64(le.Uint16(h[32:]))
	n := entryLen + nName + nExtra + nComment
	if n > left {
		return zipEntry{}, 0, torn
	}
	rest := make([]byte, nName+nExtra+nComment)
	if _, err := io.ReadFull(r, rest); err != nil {
		return zipEntry{}, 0, err
	}
	e := zipEntry{
		name:   string(rest[:nName]),
		method: le.Uint16(h[10:]),
		comp:   uint64(le.Uint32(h[20:])),
		local:  uint64(le.Uint32(h[42:])),
	}
	e.extend(rest[nName:nName+nExtra], le.Uint32(h[24:]) == math.MaxUint32)
	return e, n, nil
}

// extend takes the numbers that did not fit from the ZIP64 extra field, which
// holds, in this order, those of size, compressed size and offset that are
// all ones in the entry.
func (e *zipEntry) extend(extra []byte, sizeToo bool) {
	le := binary.LittleEndian
	for len(extra) >= 4 {
		id, n := le.Uint16(extra), int(le.Uint16(extra[2:]))
		if extra = extra[4:]; n > len(extra) {
			return
		}
		field := extra[:n]
		extra = extra[n:]
		if id != 1 {
			continue
		}
		take := func(v *uint64, wanted bool) {
			if wanted && len(field) >= 8 {
				*v, field = le.Uint64(field), field[8:]
			}
		}
		var size uint64
		take(&size, sizeToo)
		take(&e.comp, e.comp == math.MaxUint32)
		take(&e.local, e.local == math.MaxUint32)
	}
}

// checkLocal looks whether the record begins where the directory says and ends
// before the directory.
func checkLocal(f file, e zipEntry, dir int64) error {
	end, err := dataOffset(f, e)
	if err != nil {
		return err
	}
	if uint64(end)+e.comp > uint64(dir) {
		return brokenf("broken zip: record %.80q reaches into the directory", e.name)
	}
	return nil
}

// dataOffset returns where the data of the record begins.
func dataOffset(f file, e zipEntry) (int64, error) {
	h := make([]byte, localLen+len(e.name))
	err := io.ErrUnexpectedEOF
	if e.local+uint64(len(h)) <= uint64(f.size) {
		err = readAt(f.r, h, int64(e.local))
	}
	if err == io.ErrUnexpectedEOF || err == nil && (!bytes.HasPrefix(h, []byte("PK\x03\x04")) || string(h[localLen:]) != e.name) {
		return 0, brokenf("broken zip: record %.80q is not where the directory says", e.name)
	}
	if err != nil {
		return 0, fmt.Errorf("record %.80q: %w", e.name, err)
	}
	n := int64(binary.LittleEndian.Uint16(h[26:])) + int64(binary.LittleEndian.Uint16(h[28:]))
	return int64(e.local) + localLen + n, nil
}

// TorchPickle returns where the pickle lies in a torch zip of size bytes.
func TorchPickle(r io.ReaderAt, size int64) (off, n int64, err error) {
	f := file{r: r, size: size}
	pkl, err := readZip(f)
	if err != nil {
		return 0, 0, err
	}
	if pkl == nil || pkl.method != 0 {
		return 0, 0, broken("a zip without a stored data.pkl")
	}
	off, err = dataOffset(f, *pkl)
	return off, int64(pkl.comp), err
}
