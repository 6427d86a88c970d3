package restore

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Bounds of what a manifest may ask for. They are far beyond any real step.
const (
	maxPath    = 4096    // bytes of a path; the system's PATH_MAX
	maxName    = 255     // bytes of one component
	maxSize    = 1 << 50 // bytes of one file
	maxPointer = 1 << 20 // bytes of a pointer file
	maxHops    = 255     // links followed before a chain counts as a loop
)

// checkParts looks at each manifest by itself and against the marker.
func checkParts(m *commit.Marker, parts []*commit.Manifest) error {
	if err := checkName(m.Name); err != nil {
		return err
	}
	if len(parts) == 0 || len(parts) != len(m.Parts) {
		return fmt.Errorf("the marker names %d parts, there are %d", len(m.Parts), len(parts))
	}
	for i, p := range parts {
		ref := m.Parts[i]
		switch {
		case p.ID != m.ID || p.Run != m.Run:
			return fmt.Errorf("part %d belongs to commit %s of run %q", i, p.ID, p.Run)
		case p.Node != ref.Node || p.Claim != ref.Claim:
			return fmt.Errorf("part %d is that of node %d, the marker names node %d", i, p.Node, ref.Node)
		case p.Name != m.Name:
			return fmt.Errorf("part %d is of a step named %q, the marker's is %q", i, p.Name, m.Name)
		}
		if err := p.Validate(); err != nil {
			return fmt.Errorf("manifest of node %d: %w", p.Node, err)
		}
		for j := range p.Files {
			if err := checkFile(m.Name, &p.Files[j]); err != nil {
				return fmt.Errorf("manifest of node %d: %q: %w", p.Node, p.Files[j].Path, err)
			}
		}
		for _, ptr := range p.Pointers {
			if err := checkPointer(m.Name, ptr); err != nil {
				return fmt.Errorf("manifest of node %d: pointer %q: %w", p.Node, ptr.Path, err)
			}
		}
		for _, c := range p.Copies {
			if err := checkPointer(m.Name, commit.Pointer{Path: c.Path}); err != nil {
				return fmt.Errorf("manifest of node %d: copy %q: %w", p.Node, c.Path, err)
			}
		}
	}
	_, err := commit.Union(parts, -1)
	return err
}

// checkName says whether name can be a step's path below the root.
func checkName(name string) error {
	if err := checkPath(name); err != nil {
		return fmt.Errorf("step name %q: %w", name, err)
	}
	for c := range strings.SplitSeq(name, "/") {
		if Reserved(c) {
			return fmt.Errorf("step name %q: %q is a name of our own", name, c)
		}
	}
	return nil
}

// checkPath says whether p is a clean path that stays below where it starts.
func checkPath(p string) error {
	switch {
	case p == "" || p == ".":
		return errors.New("the path is empty")
	case len(p) > maxPath:
		return fmt.Errorf("the path has %d bytes, over %d", len(p), maxPath)
	case strings.IndexByte(p, 0) >= 0:
		return errors.New("the path holds a zero byte")
	case p[0] == '/' || path.Clean(p) != p:
		return errors.New("the path is not relative and clean")
	}
	for c := range strings.SplitSeq(p, "/") {
		if c == ".." {
			return errors.New("the path leads up")
		}
		if len(c) > maxName {
			return fmt.Errorf("a component has %d bytes, over %d", len(c), maxName)
		}
	}
	return nil
}

// checkFile looks at one entry of a manifest of the step called name.
func checkFile(name string, f *commit.File) error {
	if err := checkPath(f.Path); err != nil {
		return err
	}
	if f.Path != name && !strings.HasPrefix(f.Path, name+"/") {
		return fmt.Errorf("it lies outside the step %q", name)
	}
	switch {
	case f.Mode > 0o7777:
		return fmt.Errorf("mode %#o has unknown bits", f.Mode)
	case f.UID < 0 || f.GID < 0 || f.UID >= math.MaxUint32 || f.GID >= math.MaxUint32:
		return fmt.Errorf("owner %d:%d is impossible", f.UID, f.GID)
	}
	switch f.Type {
	case commit.TypeDir:
		return nil
	case commit.TypeLink:
		if f.Path == name {
			return errors.New("a step cannot be a link")
		}
		if f.Target == "" || len(f.Target) > maxPath || strings.IndexByte(f.Target, 0) >= 0 {
			return errors.New("the link has an impossible target")
		}
		return nil
	case commit.TypeFile:
		return checkContent(f)
	}
	return fmt.Errorf("type %q is unknown", f.Type)
}

// checkContent says whether size, chunks and object of a file fit together.
func checkContent(f *commit.File) error {
	if f.Size < 0 || f.Size > maxSize {
		return fmt.Errorf("size %d is impossible", f.Size)
	}
	if f.Size == 0 {
		if len(f.Digest) > 0 {
			return errors.New("it is empty and has digests")
		}
		return nil
	}
	if f.Chunk <= 0 || f.Chunk > maxSize {
		return fmt.Errorf("chunk size %d is impossible", f.Chunk)
	}
	if want := (f.Size-1)/f.Chunk + 1; int64(len(f.Digest)) != want {
		return fmt.Errorf("it has %d digests, its size asks for %d", len(f.Digest), want)
	}
	if err := blob.CheckKey("open", f.Object); err != nil {
		return err
	}
	if !strings.HasPrefix(f.Object, "data/") {
		return fmt.Errorf("object %q is no data object", f.Object)
	}
	return nil
}

// checkPointer says whether a pointer may be written beside the step.
func checkPointer(name string, p commit.Pointer) error {
	if err := checkName(p.Path); err != nil {
		return err
	}
	switch {
	case p.Path == name, strings.HasPrefix(p.Path, name+"/"), strings.HasPrefix(name, p.Path+"/"):
		return fmt.Errorf("it collides with the step %q", name)
	case len(p.Content) > maxPointer:
		return fmt.Errorf("it has %d bytes, over %d", len(p.Content), maxPointer)
	case p.Link && !leadsInside(p.Path, p.Content):
		return fmt.Errorf("it is a link to %q, outside the root", p.Content)
	}
	return nil
}

// leadsInside reports whether a link at that path below the root leads to
// something below the root, as far as its text says.
func leadsInside(at, target string) bool {
	if target == "" || path.IsAbs(target) || strings.IndexByte(target, 0) >= 0 {
		return false
	}
	to := path.Join(path.Dir(at), target)
	return to != ".." && !strings.HasPrefix(to, "../")
}

// checkTree looks at what only the whole shows: sums, and where links lead.
func checkTree(t *Tree, byPath map[string]*Entry) error {
	if byPath[t.Name] == nil {
		return fmt.Errorf("it holds no entry of the step %q", t.Name)
	}
	var sum int64
	for _, p := range sortedKeys(byPath) {
		e := byPath[p]
		if sum += e.Size; sum < 0 || sum > math.MaxInt64/2 {
			return errors.New("the sizes add up to more than any disk has")
		}
		if e.Type == commit.TypeLink && escapes(byPath, p, e.Target) {
			return fmt.Errorf("the link %q leads to %q, outside the root", p, e.Target)
		}
	}
	return nil
}

// escapes reports whether a link at path p leads above the root, following
// the links of the tree on its way as the kernel would. What is not in the
// tree counts as a directory. A loop leads nowhere, and so not outside.
func escapes(byPath map[string]*Entry, p, target string) bool {
	at := components(parentOf(p))
	todo := components(target)
	if strings.HasPrefix(target, "/") {
		return true
	}
	for hops := 0; len(todo) > 0; {
		c := todo[0]
		todo = todo[1:]
		if c == ".." {
			if len(at) == 0 {
				return true
			}
			at = at[:len(at)-1]
			continue
		}
		here := strings.Join(append(at[:len(at):len(at)], c), "/")
		e := byPath[here]
		if e == nil || e.Type != commit.TypeLink {
			at = append(at[:len(at):len(at)], c)
			continue
		}
		if strings.HasPrefix(e.Target, "/") {
			return true
		}
		if hops++; hops > maxHops {
			return false
		}
		todo = append(components(e.Target), todo...)
	}
	return false
}

// components cuts a path at its slashes and drops what names no entry.
func components(p string) []string {
	var out []string
	for c := range strings.SplitSeq(p, "/") {
		if c != "" && c != "." {
			out = append(out, c)
		}
	}
	return out
}
