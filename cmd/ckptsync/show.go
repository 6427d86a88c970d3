package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// showJSON is what `show --json` prints: a commit as in `list --json`, and
// all that its manifests say.
type showJSON struct {
	Run string `json:"run"`
	commitJSON
	Missing   []string       `json:"missing"`   // what exact resume lacks
	Warnings  []string       `json:"warnings"`  // of the layout
	Evidence  []string       `json:"evidence"`  // the files that prove the step complete
	Lineage   []headJSON     `json:"lineage"`   // the commits that its attempt goes back to, newest first
	Attempts  []attemptJSON  `json:"attempts"`  // that training went through to this commit, the first start first
	Locations []string       `json:"locations"` // where its data is, for other tools
	Nodes     []showNode     `json:"nodes"`
	Pointers  []showPointer  `json:"pointers"`
	Copies    []commit.Copy  `json:"copies,omitempty"`    // files beside the step that are copies of files of it
	Entries   []showEntry    `json:"entries"`             // of what the nodes saved differently the lowest node's version
	Differing []showVersions `json:"differing,omitempty"` // the paths that the nodes saved differently, with all versions
}

type showNode struct {
	Node   int         `json:"node"`
	Claim  int         `json:"claim"`
	Host   string      `json:"host,omitempty"`
	Sealed commit.Time `json:"sealed"`
	Files  int         `json:"files"`
	Bytes  int64       `json:"bytes"`
}

type showPointer struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Link    bool   `json:"link,omitempty"` // a symbolic link with that target
}

type showEntry struct {
	Path     string          `json:"path"`
	Encoding string          `json:"encoding,omitempty"`
	Type     string          `json:"type"`
	Mode     string          `json:"mode"` // octal
	MTime    string          `json:"mtime"`
	Size     int64           `json:"size"`
	Target   string          `json:"target,omitempty"`
	Object   string          `json:"object,omitempty"` // key in the bucket, below the store's prefix
	Chunk    int64           `json:"chunk,omitempty"`  // bytes per digest
	Digests  []commit.Digest `json:"digests,omitempty"`
	Node     int             `json:"node"`
	// BorrowedFrom is the commit that sent the object, if it is another.
	BorrowedFrom string `json:"borrowed_from,omitempty"`
}

func (a *app) showCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show STEP",
		Short:   "Show one commit: files, digests, evidence, lineage, where its data is",
		Long:    "Show one commit. STEP is a step's number, 'head', or a commit's whole name as 000000000500-a000003-r00.",
		GroupID: "look",
		Args:    cobra.ExactArgs(1),
	}
	asJSON := addJSON(cmd)
	attempt := cmd.Flags().Int("attempt", 0, "of this `ATTEMPT`, where several committed the step")
	withSettings(cmd, "verify-key")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		v, id, err := st.find(cmd.Context(), args[0], *attempt)
		if err != nil {
			return err
		}
		s, err := st.show(cmd.Context(), v, id)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.term.JSON(s)
		}
		return a.printShow(s)
	}
	return cmd
}

// show reads all of one commit.
func (r *openedRun) show(ctx context.Context, v *commit.View, id commit.ID) (*showJSON, error) {
	reasons, err := r.markReasons(ctx, v)
	if err != nil {
		return nil, err
	}
	c := commit.Commit{ID: id}
	if i := slices.IndexFunc(v.Commits, func(c commit.Commit) bool { return c.ID == id }); i >= 0 {
		c = v.Commits[i]
	}
	row, err := r.row(ctx, v, c, reasons)
	if err != nil {
		return nil, err
	}
	marker, parts, err := r.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	s := &showJSON{
		Run: r.Run(), commitJSON: *row, Missing: merge([]string{}, commit.Missing(marker, parts)), Warnings: []string{}, Evidence: []string{},
		Lineage: lineage(v, id), Pointers: []showPointer{}, Locations: r.locations(parts),
	}
	for _, p := range parts {
		n := showNode{Node: p.Node, Claim: p.Claim, Host: p.Host, Sealed: p.Sealed}
		for _, f := range p.Files {
			if f.Type == commit.TypeFile {
				n.Files++
				n.Bytes += f.Size
			}
		}
		s.Nodes = append(s.Nodes, n)
		s.Warnings = merge(s.Warnings, p.Warnings)
		s.Evidence = merge(s.Evidence, p.Evidence)
		for _, q := range p.Pointers {
			if q := (showPointer(q)); !slices.Contains(s.Pointers, q) {
				s.Pointers = append(s.Pointers, q)
			}
		}
		for _, c := range p.Copies {
			if !slices.Contains(s.Copies, c) {
				s.Copies = append(s.Copies, c)
			}
		}
	}
	entries, err := commit.Union(parts, -1)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		out := r.entry(e)
		out.BorrowedFrom = borrowedFrom(e.Object, id)
		s.Entries = append(s.Entries, out)
	}
	s.Differing = r.versions(parts)
	s.Attempts, err = r.attempts(ctx, v, chain(v, id.Attempt))
	return s, err
}

func (r *openedRun) entry(e commit.Entry) showEntry {
	out := showEntry{
		Type: string(e.Type), Mode: fmt.Sprintf("%04o", e.Mode), MTime: time.Unix(0, e.MTime).UTC().Format(time.RFC3339Nano),
		Size: e.Size, Chunk: e.Chunk, Digests: e.Digest, Node: e.Node,
	}
	out.Path, out.Encoding = jsonName(e.Path)
	if e.Target != "" {
		out.Target, _ = jsonName(e.Target)
	}
	if e.Object != "" {
		out.Object = r.Key(e.Object)
	}
	return out
}

// lineage lists the commits that training went through from the first start to
// this commit's attempt: the base of its attempt, the base of that one, …
func lineage(v *commit.View, id commit.ID) []headJSON {
	out := []headJSON{}
	for seen := map[int]bool{}; !seen[id.Attempt]; {
		seen[id.Attempt] = true
		i := slices.IndexFunc(v.Attempts, func(a commit.Attempt) bool { return a.Attempt == id.Attempt })
		if i < 0 || v.Attempts[i].Base == nil {
			break
		}
		id = *v.Attempts[i].Base
		out = append(out, headJSON{id.Step, id.Attempt, id.Revision})
	}
	return out
}

// locations are the folders that hold the data of these parts, as URLs if the
// driver knows them.
func (r *openedRun) locations(parts []*commit.Manifest) []string {
	url := func(key string) string { return key }
	if d, ok := blob.As[blob.Describer](r.bucket); ok {
		url = d.Location
	}
	out := []string{}
	for _, p := range parts {
		for _, f := range p.Files {
			// data/<commit>/<node>.<token>/<path>
			c := strings.SplitN(f.Object, "/", 4)
			if len(c) == 4 {
				out = merge(out, []string{url(r.Key(strings.Join(c[:3], "/")))})
			}
		}
	}
	return out
}

// merge appends what is not in list yet.
func merge(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

func (a *app) printShow(s *showJSON) error {
	id := commit.ID{Step: s.Step, Attempt: s.Attempt, Revision: s.Revision}
	facts := [][2]string{
		{"commit", id.String()},
		{"state", join(": ", s.State, s.Reason)},
		{"layout", s.Layout},
		{"resume", join("; lacks ", s.Resume, strings.Join(s.Missing, ", "))},
		{"size", fmt.Sprintf("%s in %s", term.Bytes(s.Bytes), term.Count(s.Files, "file"))},
		{"committed", term.When(s.CommittedAt.Time)},
		{"evidence", strings.Join(s.Evidence, ", ")},
		{"warnings", strings.Join(s.Warnings, "; ")},
	}
	for _, l := range s.Lineage {
		facts = append(facts, [2]string{"based on", commit.ID{Step: l.Step, Attempt: l.Attempt, Revision: l.Revision}.String()})
	}
	facts = append(facts, s.nodeFacts()...)
	for _, l := range s.Locations {
		facts = append(facts, [2]string{"data", l})
	}
	facts = append(facts, s.borrowed()...)
	if err := a.term.Printf(term.Bold, "%s of run %s", s.Name, s.Run); err != nil {
		return err
	}
	for i, g := range graph(s.Attempts) {
		facts = append(facts, [2]string{map[bool]string{true: "attempts"}[i == 0], g})
	}
	for _, f := range facts {
		if f[1] == "" {
			continue
		}
		if err := a.term.Printf(term.Plain, "  %-10s %s", f[0], f[1]); err != nil {
			return err
		}
	}
	return a.printEntries(s)
}

func (a *app) printEntries(s *showJSON) error {
	if err := a.term.Printf(term.Plain, ""); err != nil {
		return err
	}
	tb := a.term.Table("MODE", ">SIZE", ">CHUNKS", "FIRST DIGEST", "PATH")
	for _, e := range s.Entries {
		first, size := "", term.Bytes(e.Size)
		if len(e.Digests) > 0 {
			first = e.Digests[0].String()[:16]
		}
		path := e.Path
		switch commit.FileType(e.Type) {
		case commit.TypeDir:
			path, size = path+"/", ""
		case commit.TypeLink:
			path, size = path+" -> "+e.Target, ""
		}
		tb.Row(term.C(e.Mode), term.C(size), term.C(len(e.Digests)), term.S(term.Dim, first), term.C(path))
	}
	return tb.Flush()
}
