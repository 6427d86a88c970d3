package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// showVersions is a path that nodes saved with different content.
type showVersions struct {
	Path     string        `json:"path"`
	Encoding string        `json:"encoding,omitempty"`
	Versions []showVersion `json:"versions"` // by the lowest node that has it
}

type showVersion struct {
	Nodes []int     `json:"nodes"` // that have this content
	Entry showEntry `json:"entry"` // of the lowest of them
}

// versions are the paths that differ between the nodes, ascending.
func (r *openedRun) versions(parts []*commit.Manifest) []showVersions {
	if len(parts) < 2 {
		return nil
	}
	type version struct {
		file  *commit.File
		nodes []int
	}
	byPath := map[string][]*version{}
	for _, p := range parts {
		for i := range p.Files {
			f := &p.Files[i]
			vs := byPath[f.Path]
			at := slices.IndexFunc(vs, func(v *version) bool { return v.file.Same(f) })
			if at < 0 {
				at, vs = len(vs), append(vs, &version{file: f})
			}
			vs[at].nodes = append(vs[at].nodes, p.Node)
			byPath[f.Path] = vs
		}
	}
	var out []showVersions
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		if len(byPath[path]) < 2 {
			continue
		}
		var s showVersions
		s.Path, s.Encoding = jsonName(path)
		for _, v := range byPath[path] {
			s.Versions = append(s.Versions, showVersion{v.nodes, r.entry(commit.Entry{File: v.file, Node: v.nodes[0]})})
		}
		out = append(out, s)
	}
	return out
}

// maxNamed bounds how many differing paths are told one by one.
const maxNamed = 20

// nodeFacts says, for people, what each node saved, and where they differ.
func (s *showJSON) nodeFacts() (facts [][2]string) {
	add := func(what, format string, args ...any) {
		facts = append(facts, [2]string{what, fmt.Sprintf(format, args...)})
	}
	for _, n := range s.Nodes {
		where := ""
		if n.Host != "" {
			where = " on " + n.Host
		}
		if len(s.Nodes) == 1 {
			add("node", "%d%s, sealed %s", n.Node, where, term.When(n.Sealed.Time))
			continue
		}
		add("node", "%d%s: %s in %s, sealed %s", n.Node, where, term.Bytes(n.Bytes), term.Count(n.Files, "file"), term.When(n.Sealed.Time))
	}
	for i, d := range s.Differing {
		if i == maxNamed {
			add("differs", "and %d more; --json has them all", len(s.Differing)-i)
			break
		}
		var of []string
		for _, v := range d.Versions {
			of = append(of, fmt.Sprintf("%s of %s", term.Bytes(v.Entry.Size), nodes(v.Nodes)))
		}
		add("differs", "%s: %s", d.Path, strings.Join(of, ", "))
	}
	return facts
}

// chain is the branch of an attempt and those that it descends from, from the
// first on, as a family of its own.
func chain(v *commit.View, attempt int) []commit.Branch {
	byNumber := map[int]commit.Branch{}
	for _, b := range v.Family() {
		byNumber[b.Attempt.Attempt] = b
	}
	var out []commit.Branch
	for b, ok := byNumber[attempt]; ok; {
		out = append(out, b)
		if b.Base == nil || b.Base.Attempt >= b.Attempt.Attempt {
			break
		}
		b, ok = byNumber[b.Base.Attempt]
	}
	slices.Reverse(out)
	for i := range out {
		out[i].Depth, out[i].Last = i, true
	}
	return out
}
