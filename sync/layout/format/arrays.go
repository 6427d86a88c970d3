package format

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

const hdf5Magic = "\x89HDF\r\n\x1a\n"

var (
	npyDescr = regexp.MustCompile(`'descr':\s*'([<>|=]?)([a-zA-Z])(\d*)(?:\[[^\]]*\])?'`)
	npyShape = regexp.MustCompile(`'shape':\s*\(([0-9L,\s]*)\)`)
)

// checkNPY compares a .npy file's size with the type and shape in its header.
func checkNPY(f file, res *Result) error {
	var head [12]byte
	n := min(f.size, int64(len(head)))
	if err := readAt(f.r, head[:n], 0); err != nil {
		return err
	}
	if n < 10 || !bytes.HasPrefix(head[:], []byte("\x93NUMPY")) {
		return broken("does not begin like a .npy file")
	}
	start, length := int64(10), int64(binary.LittleEndian.Uint16(head[8:]))
	if head[6] >= 2 {
		start, length = 12, int64(binary.LittleEndian.Uint32(head[8:]))
	}
	if length > 1<<20 {
		return brokenf("claims a header of %d bytes", length)
	}
	if n < start || f.size < start+length {
		return brokenf("ends within its header, %v", short(f.size, start+length))
	}
	text := make([]byte, length)
	if err := readAt(f.r, text, start); err != nil {
		return err
	}
	shape := npyShape.FindSubmatch(text)
	if shape == nil {
		return broken("has a header without a shape")
	}
	descr := npyDescr.FindSubmatch(text)
	if descr == nil || descr[2][0] == 'O' {
		if descr != nil {
			return pickledArray(f, start+length)
		}
		res.Warnings = append(res.Warnings, "has records of several fields: its size was not checked")
		return nil
	}
	return npySize(f, start+length, descr, string(shape[1]))
}

// pickledArray walks the pickle that holds an array of objects.
func pickledArray(f file, off int64) error {
	o := newOps(f.r, off, f.size)
	if err := o.walk(); err != nil && err != errTooLong {
		return err
	} else if err == nil && o.off != f.size {
		return brokenf("has %d bytes after its end", f.size-o.off)
	}
	return nil
}

func npySize(f file, data int64, descr [][]byte, shape string) error {
	width := uint64(1)
	if len(descr[3]) > 0 {
		w, err := strconv.ParseUint(string(descr[3]), 10, 32)
		if err != nil {
			return broken("has a header with an element type that is none")
		}
		width = w
	}
	if descr[2][0] == 'U' {
		width *= 4
	}
	total := width
	for dim := range strings.SplitSeq(shape, ",") {
		if dim = strings.TrimRight(strings.TrimSpace(dim), "L"); dim == "" {
			continue
		}
		n, err := strconv.ParseUint(dim, 10, 63)
		hi, lo := bits.Mul64(total, n)
		if err != nil || hi != 0 || lo > 1<<62 {
			return broken("has a header with a shape that is none")
		}
		total = lo
	}
	switch want := data + int64(total); {
	case f.size < want:
		return short(f.size, want)
	case f.size > want:
		return brokenf("has %d bytes more than its shape says", f.size-want)
	}
	return nil
}

// checkHDF5 compares the end that the superblock records with the file's size.
func checkHDF5(f file, res *Result) error {
	base, ok, err := findSuperblock(f)
	if err != nil {
		return err
	}
	if !ok {
		return broken("does not begin like an HDF5 file")
	}
	var b [64]byte
	n := min(f.size-base, int64(len(b)))
	if err := readAt(f.r, b[:n], base); err != nil {
		return err
	}
	var at int
	var flags, width byte
	switch b[8] {
	case 0:
		at, width = 40, b[13]
	case 1:
		at, width = 44, b[13]
	case 2, 3:
		at, width = 28, b[9]
		if b[8] == 3 {
			flags = b[11]
		}
	default:
		res.Warnings = append(res.Warnings, "has a superblock of a version that is not known: its size was not checked")
		return nil
	}
	if width != 8 {
		res.Warnings = append(res.Warnings, "has addresses of an unusual width: its size was not checked")
		return nil
	}
	if n < int64(at)+8 {
		return broken("ends within its superblock")
	}
	end := binary.LittleEndian.Uint64(b[at:])
	switch {
	case end > 1<<62:
		return broken("was never closed: its superblock has no end")
	case f.size < int64(end):
		return short(f.size, int64(end))
	case flags&1 != 0:
		return broken("is still open for writing, or was never closed")
	case f.size > int64(end)+base:
		res.Warnings = append(res.Warnings, "has bytes after the end that its superblock says")
	}
	return nil
}

// findSuperblock looks where HDF5 allows the superblock to be.
func findSuperblock(f file) (int64, bool, error) {
	var b [len(hdf5Magic)]byte
	for base := int64(0); base+int64(len(b)) <= f.size && base <= 1<<20; {
		if err := readAt(f.r, b[:], base); err != nil {
			return 0, false, err
		}
		if string(b[:]) == hdf5Magic {
			return base, true, nil
		}
		if base *= 2; base == 0 {
			base = 512
		}
	}
	return 0, false, nil
}

// checkParquet looks for the magic at both ends and the footer's length.
func checkParquet(f file, _ *Result) error {
	var b [8]byte
	if f.size < 12 {
		return brokenf("has %d bytes, too few for Parquet", f.size)
	}
	if err := readAt(f.r, b[:4], 0); err != nil {
		return err
	}
	magic := string(b[:4])
	if magic != "PAR1" && magic != "PARE" {
		return broken("does not begin like a Parquet file")
	}
	if err := readAt(f.r, b[:], f.size-8); err != nil {
		return err
	}
	if string(b[4:]) != magic || int64(binary.LittleEndian.Uint32(b[:])) > f.size-12 {
		return broken("truncated: it does not end in a Parquet footer")
	}
	return nil
}
