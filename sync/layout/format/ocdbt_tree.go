package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Bounds of what is looked at of one OCDBT database.
const (
	ocdbtNodes   = 1 << 16   // nodes of its trees
	ocdbtDecoded = 128 << 20 // bytes of manifest and nodes, decompressed
	ocdbtEntries = 1 << 20   // entries of one node; what the format allows
	ocdbtPath    = 1<<16 - 1 // bytes of a data file's path; what the format allows
	ocdbtPaths   = 16 << 20  // bytes of all paths that one node names
)

// OCDBTFile is an open file of an OCDBT database.
type OCDBTFile interface {
	io.ReaderAt
	io.Closer
	Size() int64 // bytes
}

// OCDBTTree is what the trees of an OCDBT database lead to: those of every
// version that its manifest itself lists.
type OCDBTTree struct {
	// Needs are the bytes that each data file must have at least, by its path
	// below the database.
	Needs map[string]int64
	// Problems say what is wrong with the manifest, and with data files that
	// hold nodes, by path, to follow the name and a colon.
	Problems map[string]string
	// Numbered says that the manifest only tells that others, manifest.N with
	// 16 hexadecimal digits, hold the versions; the highest counts.
	Numbered bool
	// Partial says that not all of it was looked at: it is too large, or of a
	// newer version of the format.
	Partial bool
}

// ReadOCDBT follows a manifest of that name to the data files. It reads the
// nodes of the trees and no values. open opens a file by its path below the
// database; one that it says does not exist is passed over, as is what is cut
// off before a node's end: Needs tells. Any other error of a reader ends it.
func ReadOCDBT(manifest string, open func(name string) (OCDBTFile, error)) (*OCDBTTree, error) {
	w := &ocdbtWalk{open: open, left: ocdbtDecoded, seen: map[ocdbtRef]bool{},
		out: &OCDBTTree{Needs: map[string]int64{}, Problems: map[string]string{}}}
	defer w.close()
	f, err := w.file(manifest)
	if err != nil {
		return nil, err
	}
	r, err := w.part(f, ocdbtManifest, 0, uint64(f.Size()))
	if err == nil {
		err = r.judge(w.manifest(r))
	}
	if err := w.blame(manifest, err); err != nil {
		return nil, err
	}
	for nodes := 0; len(w.todo) > 0 && !w.out.Partial; nodes++ {
		ref := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if nodes == ocdbtNodes {
			w.out.Partial = true
			break
		}
		if err := w.visit(ref); err != nil {
			return nil, err
		}
	}
	return w.out, nil
}

// ocdbtRef is where a node lies.
type ocdbtRef struct {
	file   string
	base   string // what is put before the paths that it names
	off, n uint64
	height byte
}

// ocdbtWalk is a walk over the trees of one database.
type ocdbtWalk struct {
	open func(string) (OCDBTFile, error)
	out  *OCDBTTree
	name string // of the file that is open
	f    OCDBTFile
	z    *inflater
	left int64 // of ocdbtDecoded
	todo []ocdbtRef
	seen map[ocdbtRef]bool
}

// file opens a file, and keeps the last one open: nodes that follow one
// another often lie in one file.
func (w *ocdbtWalk) file(name string) (OCDBTFile, error) {
	if w.f != nil && w.name == name {
		return w.f, nil
	}
	f, err := w.open(name)
	if err != nil {
		return nil, err
	}
	if w.f != nil {
		w.f.Close()
	}
	w.name, w.f = name, f
	return f, nil
}

func (w *ocdbtWalk) close() {
	if w.f != nil {
		w.f.Close()
	}
	w.z.close()
}

// blame notes an error of a file's content, and passes on any other.
func (w *ocdbtWalk) blame(name string, err error) error {
	var b broken
	switch {
	case err == nil:
	case errors.As(err, &b):
		w.out.Problems[name] = string(b)
	case errors.Is(err, ErrTooLarge):
		w.out.Partial = true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		w.out.Problems[name] = "ended early: it shrank while it was read"
	default:
		return err
	}
	return nil
}

// visit reads the node that a reference leads to.
func (w *ocdbtWalk) visit(ref ocdbtRef) error {
	f, err := w.file(ref.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if uint64(f.Size()) < ref.off+ref.n {
		return nil
	}
	r, err := w.part(f, ocdbtNode, ref.off, ref.n)
	if err == nil {
		err = r.judge(w.node(r, ref))
	}
	return w.blame(ref.file, err)
}

// need notes that a file holds bytes up to an end.
func (w *ocdbtWalk) need(file string, off, n uint64) error {
	const most = 1<<63 - 1
	if off > most || n > most-off || file == "" {
		return broken("leads to an impossible place in a file")
	}
	w.out.Needs[file] = max(w.out.Needs[file], int64(off+n))
	return nil
}

// want adds a node to those to visit.
func (w *ocdbtWalk) want(ref ocdbtRef) error {
	if err := w.need(ref.file, ref.off, ref.n); err != nil {
		return err
	}
	if !w.seen[ref] {
		w.seen[ref] = true
		w.todo = append(w.todo, ref)
	}
	return nil
}

// manifest reads the configuration and the versions that it lists.
func (w *ocdbtWalk) manifest(r *ocdbtReader) error {
	r.skip(16) // the database's random name
	kind := r.byte()
	r.varint() // most bytes of a value inside a node
	r.varint() // most bytes of a node
	r.byte()   // how many versions the manifest itself lists
	if r.varint() != 0 {
		r.skip(4) // how hard to compress
	}
	if r.err == nil && kind > 1 {
		return broken("is of a kind that is not known")
	}
	if w.out.Numbered = kind == 1; w.out.Numbered {
		return r.end()
	}
	files := r.files("")
	n := r.count(ocdbtEntries)
	r.varints(n)
	heights := r.bytes(n)
	refs := r.refs(files, n)
	for range 3 { // statistics
		r.varints(n)
	}
	r.skip(8 * uint64(n)) // times
	older := r.olderVersions(files)
	if err := r.end(); err != nil {
		return err
	}
	for _, ref := range older {
		if err := w.need(ref.file, ref.off, ref.n); err != nil {
			return err
		}
	}
	for i, ref := range refs {
		if ref.off == 1<<64-1 && ref.n == 1<<64-1 { // a tree with nothing in it
			continue
		}
		ref.height = heights[i]
		if err := w.want(ref); err != nil {
			return err
		}
	}
	return nil
}

// node reads a node of a tree.
func (w *ocdbtWalk) node(r *ocdbtReader, ref ocdbtRef) error {
	if h := r.byte(); r.err == nil && h != ref.height {
		return brokenf("has a node of height %d where one of height %d should be", h, ref.height)
	}
	files := r.files(ref.base)
	n := r.count(ocdbtEntries)
	if r.err == nil && n == 0 {
		return broken("has a node of no entries")
	}
	r.varints(n - 1) // what keys have in common
	suffixes := r.sum(n)
	if ref.height == 0 {
		r.skip(suffixes)
		return w.leaf(r, files, n)
	}
	r.varints(n)
	r.skip(suffixes)
	refs := r.refs(files, n)
	for range 3 { // statistics
		r.varints(n)
	}
	if err := r.end(); err != nil {
		return err
	}
	for _, child := range refs {
		child.height = ref.height - 1
		if err := w.want(child); err != nil {
			return err
		}
	}
	return nil
}

// leaf reads the rest of a node whose entries are values.
func (w *ocdbtWalk) leaf(r *ocdbtReader, files []ocdbtRef, n int) error {
	var lengths []uint64
	for i := 0; i < n && r.err == nil; i++ {
		lengths = append(lengths, r.varint())
	}
	var outside []ocdbtRef
	inside := uint64(0)
	for i := 0; i < n && r.err == nil; i++ {
		switch kind := r.byte(); {
		case r.err != nil:
		case kind == 1:
			outside = append(outside, ocdbtRef{n: lengths[i]})
		case kind != 0:
			r.err = broken("has a value of a kind that is not known")
		case lengths[i] > ocdbtDecoded:
			r.err = broken("has a value of an impossible length in a node")
		default:
			inside += lengths[i]
		}
	}
	for i := range outside {
		outside[i].file = r.fileOf(files).file
	}
	for i := range outside {
		outside[i].off = r.varint()
	}
	r.skip(inside)
	if err := r.end(); err != nil {
		return err
	}
	for _, v := range outside {
		if err := w.need(v.file, v.off, v.n); err != nil {
			return err
		}
	}
	return nil
}

// part opens a manifest or a node, of n bytes at off, behind its header.
func (w *ocdbtWalk) part(f OCDBTFile, magic string, off, n uint64) (*ocdbtReader, error) {
	switch {
	case n < ocdbtHeader+6:
		return nil, broken("truncated: too short for what OCDBT writes")
	case n > ocdbtMax:
		return nil, fmt.Errorf("a part of its tree: %w", ErrTooLarge)
	}
	r := newOCDBTReader(io.NewSectionReader(f, int64(off), int64(n-4)), &w.left)
	head := r.bytes(ocdbtHeader)
	version, packed := r.varint(), r.varint()
	switch {
	case r.err != nil:
		return nil, r.err
	case string(head[:4]) != magic:
		return nil, broken("has something else where a part of its tree should be")
	case binary.LittleEndian.Uint64(head[4:]) != n:
		return nil, brokenf("says that a part of its tree has %d bytes where what leads there says %d", binary.LittleEndian.Uint64(head[4:]), n)
	}
	var sum [4]byte
	if err := readAt(f, sum[:], int64(off+n-4)); err != nil {
		return nil, err
	}
	r.want = binary.LittleEndian.Uint32(sum[:])
	if version != 0 || packed > 1 {
		return nil, r.judge(fmt.Errorf("OCDBT of a newer version: %w", ErrTooLarge))
	}
	if packed == 1 {
		if w.z == nil {
			w.z = &inflater{}
		}
		r.inflate(w.z)
	}
	return r, nil
}
