// Package committest builds runs in memory for the tests of other packages:
// attempts, and steps with their data, manifests and markers, as a daemon
// would have left them in the bucket.
package committest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
)

// Run is a run in a bucket. Its methods fail the test on any error.
type Run struct {
	Store  *commit.Store
	Bucket blob.Bucket
	Chunk  int64 // bytes per digest; 0 means commit.ChunkSize
	Resume commit.Resume
	Layout string

	tb testing.TB
}

// New returns an empty run called "exp1" in a bucket in memory.
func New(tb testing.TB) *Run {
	tb.Helper()
	return In(tb, memblob.New(), "exp1")
}

// In returns an empty run of that name in b.
func In(tb testing.TB, b blob.Bucket, name string) *Run {
	tb.Helper()
	s, err := commit.NewStore(b, name)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Ensure(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return &Run{Store: s, Bucket: b, Resume: commit.ResumeExact, Layout: "plain", tb: tb}
}

// ID is short for a commit's ID with revision 0.
func ID(attempt int, step int64) commit.ID { return commit.ID{Attempt: attempt, Step: step} }

// Declare draws a declared attempt; base may be nil.
func (r *Run) Declare(base *commit.ID) commit.Attempt {
	r.tb.Helper()
	return r.draw(commit.Attempt{Declared: true, Base: base})
}

// Undeclared draws an undeclared attempt, ranked by its base; base may be nil.
func (r *Run) Undeclared(base *commit.ID) commit.Attempt {
	r.tb.Helper()
	return r.draw(commit.Attempt{Base: base})
}

func (r *Run) draw(a commit.Attempt) commit.Attempt {
	r.tb.Helper()
	a.Created = Time
	got, err := r.Store.DrawAttempt(r.tb.Context(), func(v *commit.View, _ int) (commit.Attempt, error) {
		if !a.Declared && a.Base != nil {
			a.Rank = v.Rank(a.Base.Attempt)
		}
		return a, nil
	})
	if err != nil {
		r.tb.Fatal(err)
	}
	return got
}

// Time stands wherever a time is written.
var Time = commit.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// Manifest uploads the data of one node's part of a step and returns its
// manifest, not yet sealed. files are by path below the step: content; or, if
// the path ends in a slash, a directory; or, if the content begins with "-> ",
// a link. The path "" is a step that is a single file. The attempt need not
// have been drawn.
func (r *Run) Manifest(id commit.ID, name string, node int, files map[string]string) *commit.Manifest {
	r.tb.Helper()
	m := &commit.Manifest{Format: commit.FormatManifest, Run: r.Store.Run(), ID: id, Node: node, Name: name, Layout: r.Layout, Stamp: "stamp",
		Resume: r.Resume, Token: commit.NewOpToken(), Sealed: Time}
	token := commit.NewToken()
	if _, single := files[""]; !single {
		m.Files = append(m.Files, commit.File{Path: name, Type: commit.TypeDir, Mode: 0o755, MTime: Time.UnixNano()})
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		f := commit.File{Path: strings.TrimSuffix(name+"/"+p, "/"), Type: commit.TypeFile, Mode: 0o644, MTime: Time.UnixNano()}
		content := files[p]
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case link:
			f.Type, f.Mode, f.Target = commit.TypeLink, 0o777, target
		case strings.HasSuffix(p, "/"):
			f.Type, f.Mode = commit.TypeDir, 0o755
		default:
			f.Object = r.Store.DataKey(id, node, token, f.Path)
			r.content(&f, []byte(content))
		}
		m.Files = append(m.Files, f)
	}
	m.Sort()
	return m
}

// content uploads b as the content of f.
func (r *Run) content(f *commit.File, b []byte) {
	r.tb.Helper()
	if f.Size = int64(len(b)); f.Size == 0 {
		f.Object = ""
		return
	}
	if f.Chunk = r.Chunk; f.Chunk == 0 {
		f.Chunk = commit.ChunkSize(f.Size)
	}
	for c := range slices.Chunk(b, int(min(f.Chunk, f.Size))) {
		f.Digest = append(f.Digest, commit.Sum(c))
	}
	if _, err := r.Bucket.Put(r.tb.Context(), r.Store.Key(f.Object), blob.Bytes(b), &blob.PutOptions{IfAbsent: true}); err != nil {
		r.tb.Fatal(err)
	}
}

// Commit commits a step of as many nodes as there are file maps (see
// Manifest), and returns its marker.
func (r *Run) Commit(id commit.ID, name string, nodes ...map[string]string) *commit.Marker {
	r.tb.Helper()
	var parts []*commit.Manifest
	for i, files := range nodes {
		parts = append(parts, r.Manifest(id, name, i, files))
	}
	return r.Seal(parts...)
}

// Seal writes the manifests and the marker of the commit that they form.
func (r *Run) Seal(parts ...*commit.Manifest) *commit.Marker {
	r.tb.Helper()
	ctx := r.tb.Context()
	var refs []commit.PartRef
	for _, m := range parts {
		ref, err := r.Store.PutManifest(ctx, m)
		if err != nil {
			r.tb.Fatal(err)
		}
		refs = append(refs, ref)
	}
	marker, err := commit.NewMarker(r.Store.Run(), parts, refs)
	if err != nil {
		r.tb.Fatal(err)
	}
	if err := r.Store.PutMarker(ctx, marker); err != nil {
		r.tb.Fatal(err)
	}
	return marker
}

// Mark sets a word on a commit.
func (r *Run) Mark(id commit.ID, word commit.Word) {
	r.tb.Helper()
	if err := r.Store.PutMark(r.tb.Context(), &commit.Mark{ID: id, Word: word, Reason: "test", Created: Time}); err != nil {
		r.tb.Fatal(err)
	}
}

// Retire puts a tombstone on a commit.
func (r *Run) Retire(id commit.ID) {
	r.tb.Helper()
	if err := r.Store.PutTomb(r.tb.Context(), &commit.Tomb{ID: id, Reason: "test", Created: Time}); err != nil {
		r.tb.Fatal(err)
	}
}

// View lists the run.
func (r *Run) View() *commit.View {
	r.tb.Helper()
	v, err := r.Store.View(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	return v
}
