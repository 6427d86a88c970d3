package format

import (
	"bufio"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory of a decompression, in bytes. What TensorStore
// writes at its default level needs an eighth.
const maxWindow = 16 << 20

// ocdbtReader reads one part of an OCDBT database, decompressed, as a stream.
// Its first error stays, and what it reads then is zero.
type ocdbtReader struct {
	src  *tracked
	raw  *bufio.Reader // as it lies in the file
	r    *bufio.Reader // decompressed
	crc  hash.Hash32   // of what was read of the file
	want uint32
	left *int64 // bytes that may yet be read
	err  error
}

func newOCDBTReader(part io.Reader, left *int64) *ocdbtReader {
	src, crc := &tracked{r: part}, crc32.New(castagnoli)
	raw := bufio.NewReader(io.TeeReader(src, crc))
	return &ocdbtReader{src: src, raw: raw, r: raw, crc: crc, left: left}
}

// tracked tells an error of the file from one of its content.
type tracked struct {
	r   io.Reader
	err error
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// inflater decompresses one part after the other.
type inflater struct{ d *zstd.Decoder }

func (z *inflater) close() {
	if z != nil && z.d != nil {
		z.d.Close()
	}
}

// inflate decompresses what follows.
func (r *ocdbtReader) inflate(z *inflater) {
	if z.d == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(ocdbtDecoded))
		if err != nil { // of the options, which are constant
			r.err = err
			return
		}
		z.d = d
	}
	r.fail(z.d.Reset(r.raw))
	r.r = bufio.NewReader(z.d)
}

// fail keeps the first error, in words.
func (r *ocdbtReader) fail(err error) {
	switch {
	case err == nil || r.err != nil:
	case r.src.err != nil:
		r.err = r.src.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		r.err = fmt.Errorf("decompress: %w", ErrTooLarge)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		r.err = broken("has a part of its tree that ends early")
	default:
		r.err = brokenf("has a part of its tree that cannot be decompressed: %v", err)
	}
}

// spend counts bytes that are about to be read.
func (r *ocdbtReader) spend(n uint64) bool {
	if r.err == nil && n > uint64(*r.left) {
		r.err = fmt.Errorf("read its tree: %w", ErrTooLarge)
	}
	if r.err != nil {
		return false
	}
	*r.left -= int64(n)
	return true
}

func (r *ocdbtReader) byte() byte {
	if !r.spend(1) {
		return 0
	}
	c, err := r.r.ReadByte()
	r.fail(err)
	return c
}

// varint reads a number of seven bits a byte.
func (r *ocdbtReader) varint() (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		c := r.byte()
		if shift == 63 && c > 1 {
			break
		}
		if v |= uint64(c&0x7f) << shift; c < 0x80 {
			return v
		}
	}
	if r.err == nil {
		r.err = broken("has a number that is too large in a part of its tree")
	}
	return 0
}

// count reads a number that is at most most.
func (r *ocdbtReader) count(most int) int {
	n := r.varint()
	if r.err == nil && n > uint64(most) {
		r.err = brokenf("counts %d of something in a part of its tree, of which there are at most %d", n, most)
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// varints passes over n numbers, none if n is negative.
func (r *ocdbtReader) varints(n int) {
	for i := 0; i < n && r.err == nil; i++ {
		r.varint()
	}
}

// sum reads n lengths, and returns their sum.
func (r *ocdbtReader) sum(n int) (total uint64) {
	for i := 0; i < n && r.err == nil; i++ {
		total += uint64(r.count(ocdbtPath))
	}
	return total
}

// bytes reads n bytes, which are few.
func (r *ocdbtReader) bytes(n int) []byte {
	if !r.spend(uint64(n)) {
		return nil
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r.r, b)
	r.fail(err)
	return b
}

func (r *ocdbtReader) skip(n uint64) {
	if !r.spend(n) {
		return
	}
	_, err := io.CopyN(io.Discard, r.r, int64(n))
	r.fail(err)
}

// end reports the first error, or that the part does not end here, or that it
// has not the checksum that stands at its end.
func (r *ocdbtReader) end() error {
	if r.err != nil {
		return r.err
	}
	switch _, err := r.r.ReadByte(); {
	case err == nil:
		return broken("has a part of its tree with more in it than that says")
	case err != io.EOF:
		r.fail(err)
		return r.err
	}
	return r.sound()
}

// judge passes on what was found in a part: if it seems to be too large, after
// a look whether it is what was written.
func (r *ocdbtReader) judge(err error) error {
	if errors.Is(err, ErrTooLarge) {
		if bad := r.sound(); bad != nil {
			return bad
		}
	}
	return err
}

// sound reads the part to its end, and holds it against its checksum.
func (r *ocdbtReader) sound() error {
	if _, err := io.Copy(io.Discard, r.raw); err != nil {
		return err
	}
	if r.crc.Sum32() != r.want {
		return brokenf("has a part of its tree whose checksum is %08x where %08x should be", r.crc.Sum32(), r.want)
	}
	return nil
}

// files reads the table of data files that what follows refers to. base is put
// before their paths; a path has a first portion that is the base of what is
// in that file.
func (r *ocdbtReader) files(base string) []ocdbtRef {
	n := r.count(ocdbtEntries)
	lengths := func(n int) (out []int) {
		for i := 0; i < n && r.err == nil; i++ {
			out = append(out, r.count(ocdbtPath))
		}
		return out
	}
	prefixes := append([]int{0}, lengths(n-1)...)
	suffixes, bases := lengths(n), lengths(n)
	var out []ocdbtRef
	last, total := "", 0
	for i := 0; i < n && r.err == nil; i++ {
		if prefixes[i] > len(last) || prefixes[i]+suffixes[i] > ocdbtPath || bases[i] > prefixes[i]+suffixes[i] {
			r.err = broken("has an impossible name of a data file")
			break
		}
		if total += prefixes[i] + suffixes[i] + len(base); total > ocdbtPaths {
			r.err = fmt.Errorf("names of data files: %w", ErrTooLarge)
			break
		}
		last = last[:prefixes[i]] + string(r.bytes(suffixes[i]))
		if r.err != nil {
			break
		}
		full := base + last
		if last == "" { // of trees with nothing in them
			full = ""
		} else if !fs.ValidPath(full) || full == "." {
			r.err = brokenf("names %.200q, which can be no data file of it", full)
			break
		}
		out = append(out, ocdbtRef{file: full, base: base + last[:bases[i]]})
	}
	return out
}

// fileOf reads which of a table's files is meant.
func (r *ocdbtReader) fileOf(files []ocdbtRef) ocdbtRef {
	i := r.varint()
	if r.err == nil && i >= uint64(len(files)) {
		r.err = broken("refers to a data file that it does not name")
	}
	if r.err != nil {
		return ocdbtRef{}
	}
	return files[i]
}

// refs reads where n nodes lie.
func (r *ocdbtReader) refs(files []ocdbtRef, n int) []ocdbtRef {
	var out []ocdbtRef
	for i := 0; i < n && r.err == nil; i++ {
		out = append(out, r.fileOf(files))
	}
	for i := range out {
		out[i].off = r.varint()
	}
	for i := range out {
		out[i].n = r.varint()
	}
	return out
}

// olderVersions reads where the lists of older versions lie, which are not
// looked into.
func (r *ocdbtReader) olderVersions(files []ocdbtRef) []ocdbtRef {
	n := r.count(ocdbtEntries)
	r.varints(n)
	out := r.refs(files, n)
	r.varints(n)
	r.skip(8 * uint64(n))
	r.bytes(n)
	return out
}
