package restore

import (
	"math"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/commit"
)

// Source says where the bytes of a chunk come from.
type Source uint8

// The sources.
const (
	Fetch Source = iota // from the bucket
	Reuse               // from the local file of the same path
	Hole                // nowhere: it is all zero, and left unwritten
)

// Local is what is at a step's place now.
type Local struct {
	Exists  bool // something is there, whatever it is
	Blocked bool // some of it could not be looked at, so it cannot be the step as it is
	Entries map[string]LocalEntry
}

// LocalEntry is one entry below a step's place, by its path relative to it.
type LocalEntry struct {
	Type   commit.FileType // empty: something that no step holds
	Mode   uint32
	UID    int
	GID    int
	MTime  int64
	Size   int64
	Target string
	Right  []bool // files: for each chunk of the manifest, whether the bytes are the right ones
}

// PlannedFile is one regular file of a plan.
type PlannedFile struct {
	Entry
	Source []Source // one per chunk
}

// Plan is what a restore has to do. It is a value: making it reads and writes
// nothing.
type Plan struct {
	ID       commit.ID
	Name     string
	Place    string  // as in the Tree
	Dirs     []Entry // parents before children; the step itself first, if it is a directory
	Files    []PlannedFile
	Links    []Entry
	Pointers []commit.Pointer
	Copies   []commit.Copy

	// Whole: the step is there already, byte for byte, and nothing beside it.
	// Only modes, owners and times may have to be set; Fixes counts how many
	// entries need that.
	Whole bool
	Fixes int
	// Replaces: something is there that is not the step and has to make room.
	Replaces bool

	Bytes int64 // of all files
	Fetch int64 // bytes to read from the bucket
	Reuse int64 // bytes that are there already; all of them if Whole
	Holes int64 // bytes that are zero and need neither
	Space int64 // bytes of disk that carrying it out takes; 0 if Whole
}

// blockSize is what files and directories are rounded up to when a plan
// estimates the space it needs.
const blockSize = 4096

// NewPlan compares a tree with what is there. owner says whether owners count
// (they are only restored by root).
func NewPlan(t *Tree, l *Local, owner bool) *Plan {
	p := &Plan{ID: t.ID, Name: t.Name, Place: t.Place, Pointers: t.Pointers, Copies: t.Copies}
	zeros := zeroDigests{}
	whole := l.Exists && !l.Blocked && !strangers(t, l)
	for _, e := range t.Entries {
		le, there := l.Entries[e.Rel]
		right := there && le.Type == e.Type && le.Target == e.Target && le.Size == e.Size
		p.Space += blockSize
		switch e.Type {
		case commit.TypeDir:
			p.Dirs = append(p.Dirs, e)
		case commit.TypeLink:
			p.Links = append(p.Links, e)
		case commit.TypeFile:
			if !p.addFile(e, le, zeros) {
				right = false
			}
		}
		whole = whole && right
		if right && differs(&e, &le, owner) {
			p.Fixes++
		}
	}
	p.Whole = whole
	p.Replaces = l.Exists && !whole
	if whole {
		p.Fetch, p.Reuse, p.Holes, p.Space = 0, p.Bytes, 0, 0
	} else {
		p.Fixes = 0
	}
	return p
}

// strangers reports whether there is an entry that the commit does not list.
func strangers(t *Tree, l *Local) bool {
	for rel := range l.Entries {
		if !t.listed[rel] {
			return true
		}
	}
	return false
}

// addFile plans one file and reports whether the local one has all its bytes.
func (p *Plan) addFile(e Entry, le LocalEntry, zeros zeroDigests) bool {
	f := PlannedFile{Entry: e, Source: make([]Source, len(e.Digest))}
	all := true
	for i := range f.Source {
		_, n := f.Range(i)
		right := le.Type == commit.TypeFile && i < len(le.Right) && le.Right[i]
		all = all && right
		switch {
		case zeros.is(&e.File, i, n):
			f.Source[i] = Hole
			p.Holes += n
			continue
		case right:
			f.Source[i] = Reuse
			p.Reuse += n
		default:
			p.Fetch += n
		}
		p.Space += (n + blockSize - 1) / blockSize * blockSize
	}
	p.Bytes += e.Size
	p.Files = append(p.Files, f)
	return all
}

// Range returns the offset and length of chunk i.
func (f *PlannedFile) Range(i int) (off, n int64) {
	off = int64(i) * f.Chunk
	return off, min(f.Chunk, f.Size-off)
}

// differs reports whether an entry with the right content has the wrong mode,
// time or owner.
func differs(e *Entry, le *LocalEntry, owner bool) bool {
	if e.Implied {
		return false
	}
	if owner && (e.UID != le.UID || e.GID != le.GID) {
		return true
	}
	return e.MTime != le.MTime || (e.Type != commit.TypeLink && e.Mode != le.Mode)
}

// zeroDigests remembers the digest of n zero bytes, for the few n that occur.
type zeroDigests map[int64]commit.Digest

// Bounds of the search for zero chunks: what is beyond is simply fetched.
const (
	maxZeroChunk = 256 << 20
	maxZeroSizes = 64
)

// is reports whether chunk i of f, n bytes long, is all zero. Only files in
// which a chunk repeats are looked at: sparse ones have long runs of zeros.
func (z zeroDigests) is(f *commit.File, i int, n int64) bool {
	if len(f.Digest) < 3 || f.Chunk > maxZeroChunk || !repeats(f.Digest, i) {
		return false
	}
	d, ok := z[n]
	if !ok {
		if len(z) >= maxZeroSizes {
			return false
		}
		d = zeroDigest(n)
		z[n] = d
	}
	return f.Digest[i] == d
}

// repeats reports whether chunk i has a neighbour with its digest, or is the
// last after two that are equal (it may be shorter than they are).
func repeats(d []commit.Digest, i int) bool {
	switch {
	case i > 0 && d[i-1] == d[i], i+1 < len(d) && d[i+1] == d[i]:
		return true
	}
	return i == len(d)-1 && d[i-1] == d[i-2]
}

func zeroDigest(n int64) (d commit.Digest) {
	h := blake3.New()
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		k := min(n, int64(len(zeros)))
		_, _ = h.Write(zeros[:k]) // a hash never fails
		n -= k
	}
	h.Sum(d[:0])
	return d
}

// entries yields how many inodes carrying the plan out takes.
func (p *Plan) entries() int64 {
	return int64(min(len(p.Dirs)+len(p.Files)+len(p.Links), math.MaxInt32))
}
