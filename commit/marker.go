package commit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// Entry is one entry of a step as its reader sees it.
type Entry struct {
	*File
	Node int // whose manifest names it
}

// Union merges the parts of a commit for the reader of node (protocol R5): a
// path that several parts name is node's own version if it has one, else the
// lowest node's; a reader that is none of the nodes gives -1. Entries ascend
// by path. If they do not form a tree (a file of one part on the way to a file
// of another) that is an ErrInvalid error.
func Union(parts []*Manifest, node int) ([]Entry, error) {
	var all []Entry
	for _, m := range parts {
		for i := range m.Files {
			all = append(all, Entry{File: &m.Files[i], Node: m.Node})
		}
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 || a.Node == b.Node {
			return c
		}
		if a.Node == node || b.Node != node && a.Node < b.Node {
			return -1
		}
		return 1
	})
	all = slices.CompactFunc(all, func(a, b Entry) bool { return a.Path == b.Path })
	if len(parts) < 2 {
		return all, nil
	}
	types := make(map[string]FileType, len(all))
	for _, e := range all {
		if up, bad := belowLeaf(e.Path, types); bad {
			return nil, invalid("%s of node %d lies below %s, which is a directory on one node and none on another", short(e.Path), e.Node, short(up))
		}
		types[e.Path] = e.Type
	}
	return all, nil
}

// NewMarker makes the marker of the commit that these parts form; refs are
// what PutManifest or GetManifest returned for them. Its bytes depend on
// nothing but the manifests' content, so that every node makes the same.
//
// Files and Bytes count a path that several nodes have with the same content
// once, and every different version of it (protocol R5). Resume is the worst
// that a part knows of, unknown not counting; Metadata is that of all parts,
// the lowest node's where they differ. A caller that has judged the union of
// the parts may replace both, if every node would come to the same result.
func NewMarker(run string, manifests []*Manifest, refs []PartRef) (*Marker, error) {
	if len(manifests) == 0 || len(manifests) != len(refs) {
		return nil, fmt.Errorf("%d manifests and %d references: want one of each for every node", len(manifests), len(refs))
	}
	first := manifests[0]
	m := &Marker{Format: FormatMarker, Run: run, ID: first.ID, Name: first.Name, Layout: first.Layout,
		Resume: ResumeUnknown, Parts: slices.Clone(refs)}
	for i, p := range manifests {
		if err := p.samePart(first, run, i, refs[i]); err != nil {
			return nil, err
		}
		switch {
		case p.Resume == ResumeWeights:
			m.Resume = ResumeWeights
		case p.Resume == ResumeExact && m.Resume == ResumeUnknown:
			m.Resume = ResumeExact
		}
	}
	if _, err := Union(manifests, -1); err != nil {
		return nil, err
	}
	if err := m.count(manifests); err != nil {
		return nil, err
	}
	if m.Files == 0 {
		return nil, fmt.Errorf("commit %s: no part has a file", m.ID)
	}
	var err error
	if m.Metadata, err = mergeMetadata(manifests); err != nil {
		return nil, err
	}
	return m, m.validate()
}

// samePart checks that m, the manifest of node i, and first belong together.
func (m *Manifest) samePart(first *Manifest, run string, i int, ref PartRef) error {
	switch {
	case m.Run != run:
		return fmt.Errorf("node %d: its manifest is of run %q, not %q", i, m.Run, run)
	case m.ID != first.ID:
		return fmt.Errorf("node %d: its manifest is of commit %s, node 0's of %s", i, m.ID, first.ID)
	case m.Node != i:
		return fmt.Errorf("manifest %d is of node %d: manifests must be those of nodes 0, 1 … in order", i, m.Node)
	case m.Name != first.Name:
		return fmt.Errorf("node %d: it calls the step %s, node 0 calls it %s", i, short(m.Name), short(first.Name))
	case m.Layout != first.Layout:
		return fmt.Errorf("node %d: its layout is %q, node 0's is %q", i, m.Layout, first.Layout)
	case m.Stamp != first.Stamp:
		return fmt.Errorf("node %d: sealed under stamp %.60q, node 0 under %.60q: they are not of one save", i, m.Stamp, first.Stamp)
	case ref.Node != m.Node || ref.Claim != m.Claim:
		return fmt.Errorf("node %d: its reference is of node %d, claim %d, its manifest of claim %d", i, ref.Node, ref.Claim, m.Claim)
	}
	return nil
}

// count sets Files and Bytes.
func (m *Marker) count(manifests []*Manifest) error {
	versions := map[string][]*File{}
	for _, p := range manifests {
		for i := range p.Files {
			f := &p.Files[i]
			if f.Type != TypeFile {
				continue
			}
			if len(manifests) > 1 {
				if slices.ContainsFunc(versions[f.Path], f.Same) {
					continue
				}
				versions[f.Path] = append(versions[f.Path], f)
			}
			if f.Size > math.MaxInt64-m.Bytes {
				return invalid("commit %s: the sizes add up to more than 2^63 bytes", m.ID)
			}
			m.Files++
			m.Bytes += f.Size
		}
	}
	return nil
}

// mergeMetadata takes every key from the lowest node that has it, in the form
// in which any reader of the manifests has it, up to maxMetadata.
func mergeMetadata(manifests []*Manifest) (map[string]any, error) {
	var out map[string]any
	size := 2
	for _, p := range manifests {
		keys := make([]string, 0, len(p.Metadata))
		for k := range p.Metadata {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			if _, ok := out[k]; ok {
				continue
			}
			v, n, err := canonicalValue(p.Metadata[k])
			if err != nil {
				return nil, fmt.Errorf("node %d: metadata %q: %w", p.Node, k, err)
			}
			if size += 6*len(k) + n + 4; size > maxMetadata {
				return out, nil
			}
			if out == nil {
				out = map[string]any{}
			}
			out[k] = v
		}
	}
	return out, nil
}

// validate checks a marker, whoever wrote it.
func (m *Marker) validate() error {
	err := errors.Join(CheckRun(m.Run), m.ID.validate(), validateStepName(m.Name), validateResume(m.Resume), validateMetadata(m.Metadata))
	switch {
	case err != nil:
	case m.Files < 0 || m.Bytes < 0:
		err = fmt.Errorf("%d files of %d bytes", m.Files, m.Bytes)
	case len(m.Parts) == 0 || len(m.Parts) > maxNodes:
		err = fmt.Errorf("%d parts", len(m.Parts))
	}
	for i, p := range m.Parts {
		switch {
		case err != nil:
		case p.Node != i:
			err = fmt.Errorf("part %d is of node %d: parts must be those of nodes 0, 1 … in order", i, p.Node)
		case p.Size < 1 || p.Size > MaxManifest:
			err = fmt.Errorf("part %d: a manifest of %d bytes", i, p.Size)
		default:
			err = validateNode(p.Node, p.Claim)
		}
	}
	if err != nil {
		return invalid("marker of commit %s: %w", m.ID, err)
	}
	return nil
}

// DecodeMarker parses the bytes of a commit marker and validates it.
func DecodeMarker(data []byte) (*Marker, error) {
	m := new(Marker)
	if err := decode(data, FormatMarker, maxList, m); err != nil {
		return nil, err
	}
	return m, m.validate()
}
