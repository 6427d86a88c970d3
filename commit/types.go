package commit

import (
	"fmt"
	"time"
)

// Formats of the JSON objects. The part after the last slash is the major
// version: a reader refuses one it does not know, and ignores unknown fields.
const (
	FormatRun      = "ckptsync/run/v1"
	FormatSealed   = "ckptsync/run/v2" // of an encrypted run, which who reads v1 only must not take for damage
	FormatKey      = "ckptsync/key/v1"
	FormatAttempt  = "ckptsync/attempt/v1"
	FormatClaim    = "ckptsync/claim/v1"
	FormatReady    = "ckptsync/ready/v1"
	FormatStart    = "ckptsync/start/v1"
	FormatManifest = "ckptsync/part/v1"
	FormatVote     = "ckptsync/vote/v1"
	FormatMarker   = "ckptsync/commit/v1"
	FormatTomb     = "ckptsync/tomb/v1"
	FormatMark     = "ckptsync/mark/v1"
)

// ID names one commit: a revision of a step in an attempt.
type ID struct {
	Step     int64 `json:"step"`     // training step number, >= 0
	Attempt  int   `json:"attempt"`  // >= 1
	Revision int   `json:"revision"` // >= 0
}

// String is the ID as it stands in keys, as 000000000500-a000003-r00.
func (id ID) String() string {
	return fmt.Sprintf("%012d-a%06d-r%02d", id.Step, id.Attempt, id.Revision)
}

// Run is run.json: created once, so that a prefix belongs to one run.
type Run struct {
	Format     string      `json:"format"` // FormatSealed if Encryption is set, else FormatRun
	Run        string      `json:"run"`
	Encryption *Encryption `json:"encryption,omitempty"`
}

// Encryption says how all other objects of a run are encrypted, except those that
// hold its key.
type Encryption struct {
	Scheme string `json:"scheme"` // SchemeAge
	Key    string `json:"key"`    // ageblob.Key.ID of the run's key
}

// SchemeAge is encryption as in package ageblob.
const SchemeAge = "age-segments/v1"

// WrappedKey is keys/<id>/NNNN.json: the key of an encrypted run, encrypted for
// its owners. Any that can be opened counts; removing one takes it from those who
// can open that one only, if they do not know the key yet.
type WrappedKey struct {
	Format     string   `json:"format"`
	Run        string   `json:"run"`
	Key        string   `json:"key"`        // ageblob.Key.ID
	Recipients []string `json:"recipients"` // for people; nothing is decided by them
	Wrapped    string   `json:"wrapped"`    // armored age file; its content is the text of an X25519 identity
	Token      string   `json:"token"`
	Created    Time     `json:"created"`
}

// Attempt is attempts/NNNNNN.json: one (re)start of the training job.
type Attempt struct {
	Format   string `json:"format"`
	Attempt  int    `json:"attempt"`         // its number, >= 1
	Declared bool   `json:"declared"`        // by a restore; false: drawn by a daemon without local state
	Base     *ID    `json:"base,omitempty"`  // the commit it was restored from (declared) or found on disk (undeclared)
	Rank     int    `json:"rank"`            // what it counts as in Head; its own number if declared, 0: below all declared
	Fresh    bool   `json:"fresh,omitempty"` // its owner declared that training starts anew
	Nodes    int    `json:"nodes"`           // machines that each save a part, >= 1
	Join     string `json:"join,omitempty"`  // join key of a restore of several nodes
	Token    string `json:"token"`           // random; tells its writer's object from another's
	Host     string `json:"host,omitempty"`  // for people
	Created  Time   `json:"created"`         // by the writer's clock, for people
}

// Claim is attempts/NNNNNN/node-NNNNN.CC.json: a node's right to act in an
// attempt. Among a node's claims the highest number counts.
type Claim struct {
	Format  string `json:"format"`
	Attempt int    `json:"attempt"`
	Node    int    `json:"node"`  // 0 … N-1
	Claim   int    `json:"claim"` // 0, 1, 2 …
	Token   string `json:"token"`
	Host    string `json:"host,omitempty"`
	Created Time   `json:"created"`
}

// Ready is attempts/NNNNNN/node-NNNNN.CC.ready.json, created once: who made the
// claim of that number has restored the attempt's base and can start its trainer.
// An attempt of one node may have it without a claim; see Restarts.
type Ready struct {
	Format  string `json:"format"`
	Attempt int    `json:"attempt"`
	Node    int    `json:"node"`
	Claim   int    `json:"claim"`
	Token   string `json:"token"`
}

// Start is attempts/NNNNNN/start.json of a joined attempt, created once.
type Start struct {
	Format   string `json:"format"`
	Attempt  int    `json:"attempt"`
	Decision string `json:"decision"` // "go" or "void"
	Reason   string `json:"reason,omitempty"`
	Token    string `json:"token"`
}

// The decisions of a Start.
const (
	StartGo   = "go"   // every node is ready; all train from the same base
	StartVoid = "void" // the base was found damaged before that; nobody trains
)

// FileType is the kind of a manifest entry.
type FileType string

// The kinds of entries that a step may hold. Anything else (sockets, devices,
// pipes) is refused before a step is sealed.
const (
	TypeFile FileType = "file"
	TypeDir  FileType = "dir"
	TypeLink FileType = "link" // symbolic, relative, leading to inside the root
)

// File is one entry of a manifest. Paths are relative to the watched root,
// slash-separated and clean. A path or target that is not valid UTF-8 is
// percent-encoded in JSON (with "encoding":"percent") and plain in memory.
type File struct {
	Path   string
	Type   FileType
	Mode   uint32 // permission bits with setuid, setgid, sticky as in stat(2): 0o7777
	UID    int
	GID    int
	MTime  int64    // nanoseconds since 1970
	Size   int64    // bytes; files only
	Target string   // links only, as readlink(2) gave it
	Object string   // files only: key below the run's prefix; may lie under another commit
	Chunk  int64    // files only: bytes per digest; every chunk but the last has this size
	Digest []Digest // files only: BLAKE3-256 of each chunk; none if Size is 0
	Late   bool     // written after the evidence by the layout's word; not vouched for
}

// Same reports whether two files have the same content, by their digests. It
// is false, though the bytes may be equal, if they were cut into other chunks.
func (f *File) Same(g *File) bool {
	if f.Type != g.Type || f.Size != g.Size || f.Target != g.Target || len(f.Digest) != len(g.Digest) {
		return false
	}
	if f.Type == TypeFile && f.Size > 0 && f.Chunk != g.Chunk && len(f.Digest) > 1 {
		return false
	}
	for i := range f.Digest {
		if f.Digest[i] != g.Digest[i] {
			return false
		}
	}
	return true
}

// Digest is a BLAKE3-256 digest; hexadecimal in JSON.
type Digest [32]byte

// Resume says what a step is good for.
type Resume string

// The resume classes.
const (
	ResumeExact   Resume = "exact"        // everything that continuing as if nothing had happened needs
	ResumeWeights Resume = "weights-only" // the model, but not the optimizer's state
	ResumeUnknown Resume = "unknown"      // the layout cannot tell
)

// Pointer is a small file outside the step that tells its framework which step
// is the newest (DeepSpeed's latest). It is never evidence; restore writes it
// last, with this content. Some frameworks read a symbolic link instead, and
// take no file for it: then Link is set, and Content is its relative target.
type Pointer struct {
	Path    string `json:"path"` // relative to the watched root
	Content string `json:"content"`
	Link    bool   `json:"link,omitempty"`
}

// Copy is a small file outside the step that is a copy of a file of the step,
// and tells its framework so which step is the newest (Megatron-Bridge's
// latest_train_state.pt). It is never evidence; restore makes it anew, before
// the pointers.
type Copy struct {
	Path string `json:"path"` // relative to the watched root
	Of   string `json:"of"`   // relative to the watched root, below the step
}

// Manifest is parts/<commit>/node-NNNNN.CC.json: what one node contributes to
// a step. Writing it is the seal.
type Manifest struct {
	Format string `json:"format"`
	Run    string `json:"run"`
	ID
	Node     int            `json:"node"`
	Claim    int            `json:"claim"`
	Name     string         `json:"name"`            // the step's path below the root
	Layout   string         `json:"layout"`          // that judged it
	Stamp    string         `json:"stamp,omitempty"` // identity of the evidence; ties nodes' parts to one save
	Evidence []string       `json:"evidence,omitempty"`
	Resume   Resume         `json:"resume"`
	Missing  []string       `json:"missing,omitempty"`  // what exact resume lacks
	Warnings []string       `json:"warnings,omitempty"` // of the layout
	Pointers []Pointer      `json:"pointers,omitempty"`
	Copies   []Copy         `json:"copies,omitempty"`
	Metadata map[string]any `json:"metadata,omitempty"` // found by the layout: epoch, loss, …
	Token    string         `json:"token"`
	Host     string         `json:"host,omitempty"`
	Sealed   Time           `json:"sealed"` // by the writer's clock, for people
	Files    []File         `json:"files"`  // ascending by path; directories before what they hold
}

// Vote is votes/<commit>/node-NNNNN.CC.json: its node has seen every part and
// its own files are unchanged. Created once.
type Vote struct {
	Format string `json:"format"`
	ID
	Node  int      `json:"node"`
	Claim int      `json:"claim"`
	Parts []Digest `json:"parts"` // of all N manifests' bytes, in node order
	Token string   `json:"token"`
}

// PartRef is a marker's reference to one part manifest.
type PartRef struct {
	Node   int    `json:"node"`
	Claim  int    `json:"claim"`
	Size   int64  `json:"size"`   // of the manifest's bytes
	Digest Digest `json:"digest"` // BLAKE3-256 of the manifest's bytes
}

// Marker is commits/<commit>.json, written last, create-if-absent: the point
// at which a step is committed. It carries no token, time or writer, so that
// every node's marker for a commit is the same bytes.
type Marker struct {
	Format string `json:"format"`
	Run    string `json:"run"`
	ID
	Name     string         `json:"name"`
	Layout   string         `json:"layout"`
	Resume   Resume         `json:"resume"`
	Files    int            `json:"files"` // entries of type file, over all parts
	Bytes    int64          `json:"bytes"` // their sizes added up
	Metadata map[string]any `json:"metadata,omitempty"`
	Parts    []PartRef      `json:"parts"` // in node order
}

// Tomb is tombs/<commit>.json: the commit is retired, for ever.
type Tomb struct {
	Format string `json:"format"`
	ID
	Reason  string `json:"reason,omitempty"`
	Token   string `json:"token"`
	Created Time   `json:"created"`
}

// Word is what a mark says.
type Word string

// The words of marks.
const (
	Excluded Word = "excluded" // by an operator: never the head
	Pinned   Word = "pinned"   // by an operator: never retired
	Damaged  Word = "damaged"  // by a verifier: wrong twice, over two connections
)

// Mark is marks/<commit>.<word>.json, or marks/aNNNNNN.excluded.json for an
// attempt as a whole (then Whole is set, and Step and Revision are 0).
type Mark struct {
	Format string `json:"format"`
	ID
	Whole   bool   `json:"whole_attempt,omitempty"`
	Word    Word   `json:"word"`
	Reason  string `json:"reason"`
	By      string `json:"by,omitempty"` // user or command, for people
	Token   string `json:"token"`
	Created Time   `json:"created"`
}

// Commit is one commit as a listing of the bucket shows it: enough to order
// commits without reading a single marker.
type Commit struct {
	ID
	ModTime time.Time // of the marker, by the store's clock; for people
}

// View is what one pass of listings says of a run: plain data, the input of
// the pure functions.
type View struct {
	Run      string
	Attempts []Attempt    // ascending
	Excluded map[int]bool // attempts that their owner excluded as a whole
	Commits  []Commit     // with a marker and without a tombstone, ascending by (Attempt, Step, Revision)
	Retired  map[ID]bool  // have a tombstone; never in Commits
	Marks    map[ID]map[Word]bool
	Last     int // highest attempt number known, also of an attempt whose object is gone
}
