package commit

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ckptsync/ckptsync/blob"
)

// maxMetadata bounds the metadata of one manifest or marker, in bytes of JSON.
const maxMetadata = 64 << 10

// Validate returns an ErrInvalid error that says what in m breaks the rules of
// the format, and where; nil means that m may be restored by joining its paths
// to a fresh directory. It trusts nothing: a manifest may come from a bucket
// that others can write to.
func (m *Manifest) Validate() error {
	if err := m.validateHead(); err != nil {
		return fmt.Errorf("part of node %d of commit %s: %w", m.Node, m.ID, err)
	}
	if err := m.validateFiles(); err != nil {
		return fmt.Errorf("part of node %d of commit %s: %w", m.Node, m.ID, err)
	}
	return nil
}

func (m *Manifest) validateHead() error {
	if m.Format != FormatManifest {
		return sameFormat(m.Format, FormatManifest)
	}
	if err := CheckRun(m.Run); err != nil {
		return invalid("%w", err)
	}
	if err := m.ID.validate(); err != nil {
		return err
	}
	if err := validateNode(m.Node, m.Claim); err != nil {
		return err
	}
	if err := validateStepName(m.Name); err != nil {
		return err
	}
	if err := validateResume(m.Resume); err != nil {
		return err
	}
	if err := validateMetadata(m.Metadata); err != nil {
		return err
	}
	if err := m.validatePointers(); err != nil {
		return err
	}
	return m.validateCopies()
}

func (id ID) validate() error {
	switch {
	case id.Step < 0:
		return invalid("step %d is negative", id.Step)
	case id.Attempt < 1 || id.Attempt > maxNumber:
		return invalid("attempt %d is not in 1 … %d", id.Attempt, maxNumber)
	case id.Revision < 0 || id.Revision > maxNumber:
		return invalid("revision %d is not in 0 … %d", id.Revision, maxNumber)
	}
	return nil
}

func validateNode(node, claim int) error {
	switch {
	case node < 0 || node >= maxNodes:
		return invalid("node %d is not in 0 … %d", node, maxNodes-1)
	case claim < 0 || claim > maxNumber:
		return invalid("claim %d is not in 0 … %d", claim, maxNumber)
	}
	return nil
}

func validateResume(r Resume) error {
	switch r {
	case ResumeExact, ResumeWeights, ResumeUnknown:
		return nil
	}
	return invalid("resume is %.40q, not exact, weights-only or unknown", string(r))
}

func validateStepName(name string) error {
	if err := validatePath(name); err != nil {
		return invalid("step name %s: %w", short(name), err)
	}
	if !utf8.ValidString(name) {
		return invalid("step name %s is not valid UTF-8", short(name))
	}
	return nil
}

func validateMetadata(md map[string]any) error {
	b, err := json.Marshal(md)
	if err != nil {
		return invalid("metadata: %w", err)
	}
	if len(b) > maxMetadata {
		return invalid("metadata of %d bytes, over the limit of %d", len(b), maxMetadata)
	}
	return nil
}

func (m *Manifest) validatePointers() error {
	seen := map[string]bool{}
	for _, p := range m.Pointers {
		if err := m.validateBeside(p.Path, seen); err != nil {
			return err
		}
		if !utf8.ValidString(p.Content) {
			return invalid("pointer %s: its content is not valid UTF-8", short(p.Path))
		}
		if p.Link {
			if err := validateTarget(p.Path, p.Content); err != nil {
				return fmt.Errorf("pointer %s: %w", short(p.Path), err)
			}
		}
	}
	return nil
}

// validateCopies checks what is a copy of a file of the step. That file may be
// another node's.
func (m *Manifest) validateCopies() error {
	if len(m.Copies) == 0 {
		return nil
	}
	seen := map[string]bool{}
	for _, p := range m.Pointers {
		seen[p.Path] = true
	}
	for _, c := range m.Copies {
		if err := m.validateBeside(c.Path, seen); err != nil {
			return err
		}
		if err := validatePath(c.Of); err != nil {
			return invalid("copy %s of %s: %w", short(c.Path), short(c.Of), err)
		}
		switch i := slices.IndexFunc(m.Files, func(f File) bool { return f.Path == c.Of }); {
		case !utf8.ValidString(c.Of):
			return invalid("copy %s: what it is of is not valid UTF-8", short(c.Path))
		case !within(c.Of, m.Name):
			return invalid("copy %s is of %s, outside the step", short(c.Path), short(c.Of))
		case i >= 0 && m.Files[i].Type != TypeFile:
			return invalid("copy %s is of %s, which is a %s", short(c.Path), short(c.Of), m.Files[i].Type)
		}
	}
	return nil
}

// validateBeside checks the path of a pointer, or of a copy, and adds it to
// those seen.
func (m *Manifest) validateBeside(p string, seen map[string]bool) error {
	if err := validatePath(p); err != nil {
		return invalid("pointer %s: %w", short(p), err)
	}
	switch {
	case !utf8.ValidString(p):
		return invalid("pointer %s: its path is not valid UTF-8", short(p))
	case within(p, m.Name):
		return invalid("pointer %s lies inside the step %s", short(p), short(m.Name))
	case within(m.Name, p):
		return invalid("pointer %s is a directory on the way to the step %s", short(p), short(m.Name))
	case seen[p]:
		return invalid("pointer %s is there twice", short(p))
	}
	for q := range seen {
		if within(p, q) || within(q, p) {
			return invalid("pointers %s and %s: one lies below the other", short(p), short(q))
		}
	}
	if seen[p] = true; len(seen) > 100 {
		return invalid("more than 100 pointers")
	}
	return nil
}

func (m *Manifest) validateFiles() error {
	types := make(map[string]FileType, len(m.Files))
	last, total := "", int64(0)
	for i := range m.Files {
		f := &m.Files[i]
		if err := f.validate(m.Name); err != nil {
			return fmt.Errorf("entry %d, %s: %w", i, short(f.Path), err)
		}
		switch {
		case i > 0 && f.Path == last:
			return invalid("entry %d: the path %s is there twice", i, short(f.Path))
		case i > 0 && f.Path < last:
			return invalid("entry %d: %s comes after %s; paths must ascend", i, short(f.Path), short(last))
		case f.Size > math.MaxInt64-total:
			return invalid("entry %d, %s: the sizes add up to more than 2^63 bytes", i, short(f.Path))
		}
		if up, bad := belowLeaf(f.Path, types); bad {
			return invalid("entry %d: %s lies below %s, which is no directory", i, short(f.Path), short(up))
		}
		last, types[f.Path], total = f.Path, f.Type, total+f.Size
	}
	return nil
}

// belowLeaf returns the first directory on the way to p that is no directory
// among types. In ascending order every such entry comes before p.
func belowLeaf(p string, types map[string]FileType) (string, bool) {
	for i := 0; i < len(p); i++ {
		if p[i] == '/' {
			if t, ok := types[p[:i]]; ok && t != TypeDir {
				return p[:i], true
			}
		}
	}
	return "", false
}

// validate checks one entry of the step called name.
func (f *File) validate(name string) error {
	if err := validatePath(f.Path); err != nil {
		return invalid("%w", err)
	}
	switch {
	case !within(f.Path, name):
		return invalid("it lies outside the step %s", short(name))
	case f.Mode&^0o7777 != 0:
		return invalid("mode %#o has bits beyond 07777", f.Mode)
	case f.UID < 0 || int64(f.UID) > math.MaxUint32 || f.GID < 0 || int64(f.GID) > math.MaxUint32:
		return invalid("owner %d:%d is out of range", f.UID, f.GID)
	}
	switch f.Type {
	case TypeFile:
		return f.validateContent()
	case TypeDir, TypeLink:
		if f.Size != 0 || f.Object != "" || f.Chunk != 0 || len(f.Digest) > 0 {
			return invalid("a %s has no size, object, chunk or digests", f.Type)
		}
		if f.Type == TypeLink {
			return validateTarget(f.Path, f.Target)
		}
	default:
		return invalid("unknown type %.20q", string(f.Type))
	}
	if f.Target != "" {
		return invalid("a %s has no target", f.Type)
	}
	return nil
}

// validateContent checks the fields of a regular file.
func (f *File) validateContent() error {
	switch {
	case f.Target != "":
		return invalid("a file has no target")
	case f.Size < 0:
		return invalid("size %d is negative", f.Size)
	case f.Chunk < 0 || f.Size > 0 && f.Chunk == 0:
		return invalid("chunk of %d bytes", f.Chunk)
	case f.Chunk > minChunk && f.Chunk > ChunkSize(f.Size):
		return invalid("chunk of %d bytes, over the limit of %d for a file of %d", f.Chunk, max(ChunkSize(f.Size), minChunk), f.Size)
	}
	want := int64(0)
	if f.Size > 0 {
		want = (f.Size-1)/f.Chunk + 1
	}
	if int64(len(f.Digest)) != want {
		return invalid("%d digests for %d bytes in chunks of %d, want %d", len(f.Digest), f.Size, f.Chunk, want)
	}
	if f.Object == "" && f.Size == 0 {
		return nil
	}
	if len(f.Object) > maxObject {
		return invalid("object key of %d bytes, over the limit of %d", len(f.Object), maxObject)
	}
	if err := blob.CheckKey("read", f.Object); err != nil {
		return invalid("%w", err)
	}
	if o, ok := ParseKey(f.Object); !ok || o.Kind != KindData {
		return invalid("object %s is not of the form data/<commit>/node-NNNNN.<token>/…", short(f.Object))
	}
	return nil
}

// validateTarget checks the target of the link at p. ".." may only stand at
// its beginning: what follows a name might be reached through another link,
// and from there ".." leads elsewhere than it seems.
func validateTarget(p, target string) error {
	switch {
	case target == "":
		return invalid("a link without a target")
	case len(target) > maxPath:
		return invalid("link target of %d bytes", len(target))
	case strings.Contains(target, "\x00"):
		return invalid("link target with a NUL")
	case target[0] == '/':
		return invalid("link target %s is absolute", short(target))
	}
	names, ups := false, 0
	for c := range strings.SplitSeq(target, "/") {
		switch {
		case c == "" || c == ".":
		case c != "..":
			names = true
		case names:
			return invalid("link target %s has a .. after a name", short(target))
		default:
			ups++
		}
	}
	if ups > strings.Count(p, "/") {
		return invalid("link target %s leads outside the root", short(target))
	}
	return nil
}

// maxPath bounds paths and link targets, in bytes (PATH_MAX of Linux).
const maxPath = 4096

// validatePath says what is wrong with p as a path below the root, or nil.
func validatePath(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("the path is empty")
	case len(p) > maxPath:
		return fmt.Errorf("the path has %d bytes, over %d", len(p), maxPath)
	case strings.Contains(p, "\x00"):
		return fmt.Errorf("the path has a NUL")
	case p[0] == '/':
		return fmt.Errorf("the path is absolute")
	case p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return fmt.Errorf("the path is the root or leads outside it")
	case path.Clean(p) != p:
		return fmt.Errorf("the path is not clean, it should be %s", short(path.Clean(p)))
	}
	return nil
}

// within reports whether p is dir or lies below it.
func within(p, dir string) bool {
	return strings.HasPrefix(p, dir) && (len(p) == len(dir) || p[len(dir)] == '/')
}

// short quotes s for a message, cut to what a person reads.
func short(s string) string {
	if len(s) > 120 {
		return fmt.Sprintf("%q…", s[:120])
	}
	return fmt.Sprintf("%q", s)
}
