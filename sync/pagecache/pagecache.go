// Package pagecache takes file content out of the page cache again that an
// upload has brought in, so that a program beside a trainer does not evict what
// the trainer uses.
//
// What the trainer has just written is in the cache already, and reading it adds
// nothing; whoever wrote it may read it again. So by default only that is dropped
// which was not there before: on a network's file system, or of a step that is
// old. Files of less than [Least] bytes are left alone: there are never enough of
// them in flight to matter, and to ask for each costs more than they do.
//
// Nothing is dropped that is not on the disk yet: the kernel does not drop such
// pages. Hard links are names of the same pages.
package pagecache

import "os"

// Policy says what is dropped.
type Policy int

// The policies.
const (
	Keep  Policy = iota // nothing
	Added               // what was not cached when the upload began
	All                 // everything that is on the disk
)

// Least is the size, in bytes, of the smallest file that is looked at.
const Least = 8 << 20

// block is the unit of what is known, in bytes: it is dropped if none of it was
// cached.
const block = 1 << 20

// Behind follows the upload of one open file. A nil *Behind does nothing. Its
// methods may be called concurrently.
type Behind struct {
	file *os.File
	size int64
	keep []bool // by block; nil: keep none
}

// Follow looks at what of the file is cached now, before it is read. It is nil if
// nothing is to be dropped, or if the system does not say what is cached.
func Follow(f *os.File, size int64, p Policy) *Behind {
	if p == Keep || size < Least {
		return nil
	}
	b := &Behind{file: f, size: size}
	if p == All {
		return b
	}
	b.keep = make([]bool, (size+block-1)/block)
	if !cached(f, size, b.keep) {
		return nil
	}
	for _, keep := range b.keep {
		if !keep {
			return b
		}
	}
	return nil // all of it was cached
}

// Cached is how many of the first size bytes of a file are in blocks of 1 MiB
// that are cached, perhaps in part. It is false if the system does not say.
func Cached(f *os.File, size int64) (bytes int64, ok bool) {
	blocks := make([]bool, (size+block-1)/block)
	if !cached(f, size, blocks) {
		return 0, false
	}
	for i, is := range blocks {
		if is {
			bytes += min(block, size-int64(i)*block)
		}
	}
	return bytes, true
}

// Done says that n bytes from off have been read and are not needed any more.
// Reading ahead and large pages reach beyond a part: the last call is for the
// whole file.
func (b *Behind) Done(off, n int64) {
	if b == nil {
		return
	}
	next := func(off int64) int64 { return (off/block + 1) * block }
	kept := func(off int64) bool { return b.keep != nil && b.keep[off/block] }
	for end := min(off+n, b.size); off < end; {
		if kept(off) {
			off = next(off)
			continue
		}
		from := off
		for off < end && !kept(off) {
			off = next(off)
		}
		drop(b.file, from, min(off, end)-from)
	}
}
