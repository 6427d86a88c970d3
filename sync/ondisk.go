package syncer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// What of the run's commits is on this disk.

// viewIfBegun lists the run; nil if nothing was ever saved of it.
func (e *Engine) viewIfBegun(ctx context.Context) (*commit.View, error) {
	there, err := e.store.Exists(ctx)
	if err != nil || !there {
		return nil, storeError(err)
	}
	v, err := e.store.View(ctx)
	return v, storeError(err)
}

// findBase is the best commit that is on this disk byte for byte: by the rank
// of its attempt, step, attempt and revision.
func (e *Engine) findBase(ctx context.Context, v *commit.View) (*commit.ID, int, error) {
	rank := map[int]int{}
	for _, a := range v.Attempts {
		rank[a.Attempt] = a.Rank
	}
	cs := slices.Clone(v.Commits)
	slices.SortFunc(cs, func(a, b commit.Commit) int {
		return cmp.Or(cmp.Compare(rank[b.Attempt], rank[a.Attempt]), cmp.Compare(b.Step, a.Step),
			cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Revision, a.Revision))
	})
	local := map[int64]bool{}
	steps, err := e.find()
	if err != nil {
		return nil, 0, err
	}
	for _, s := range steps {
		local[s.Number] = true
	}
	for _, c := range cs {
		if !local[c.Step] {
			continue
		}
		same, err := e.onDisk(ctx, c.ID)
		if err != nil {
			return nil, 0, err
		}
		if same {
			return &c.ID, rank[c.Attempt], nil
		}
	}
	return nil, 0, nil
}

// onDisk reports whether a commit is under the root with the same content, by
// digest; of one of several nodes, what this node has of it. A commit that
// cannot be understood is on no disk.
func (e *Engine) onDisk(ctx context.Context, id commit.ID) (bool, error) {
	parts, err := e.parts(ctx, id)
	if err != nil || len(parts) == 0 {
		return false, err
	}
	t, err := e.cfg.capture(e.cfg.Root, parts[0].Name, nil)
	if err != nil {
		return false, nil //nolint:nilerr // what cannot be looked at is not there
	}
	return e.samePart(ctx, parts, t)
}

// samePart compares a local step with what this node has of a commit.
func (e *Engine) samePart(ctx context.Context, parts []*commit.Manifest, t *tree.Tree) (bool, error) {
	if len(parts) == 1 {
		return e.sameContent(ctx, parts[0], t)
	}
	return e.sameParts(ctx, parts, t)
}

// sameParts compares a local step with the parts of several nodes. This node's
// own part must be there whole, if the commit is of as many nodes as there are
// now; and whatever else is there must be of the other parts. Of a commit of
// another number of nodes some file must be there.
func (e *Engine) sameParts(ctx context.Context, parts []*commit.Manifest, t *tree.Tree) (bool, error) {
	files := map[string][]*commit.File{} // what a path may be, lowest node first
	for _, m := range parts {
		for i := range m.Files {
			f := &m.Files[i]
			files[f.Path] = append(files[f.Path], f)
		}
	}
	if len(parts) == e.cfg.Nodes {
		own := parts[e.cfg.Node].Files
		for i := range own {
			if _, ok := t.Lookup(t.Rel(own[i].Path)); !ok {
				return false, nil
			}
			files[own[i].Path] = []*commit.File{&own[i]}
		}
	}
	may := func(le tree.Entry) []*commit.File {
		return slices.DeleteFunc(slices.Clone(files[le.Path]), func(f *commit.File) bool {
			return f.Type != le.Type || f.Target != le.Target || f.Type == commit.TypeFile && f.Size != le.Size
		})
	}
	for _, le := range t.Entries { // cheap first: no byte is read if a size differs
		known := len(files[le.Path]) > 0
		if known && len(may(le)) == 0 || !known && le.Type == commit.TypeFile && !e.skips(parts[0], t.Rel(le.Path)) {
			return false, nil
		}
	}
	some := false
	for _, le := range t.Files() {
		can := may(le)
		if len(can) == 0 {
			continue // left out
		}
		if same, err := e.isAny(ctx, le, can); err != nil || !same {
			return false, err
		}
		some = true
	}
	return some, nil
}

// isAny reports whether a local file has the content of any of these.
func (e *Engine) isAny(ctx context.Context, le tree.Entry, of []*commit.File) (bool, error) {
	for _, f := range of {
		same, err := hasDigests(ctx, filepath.Join(e.cfg.Root, filepath.FromSlash(le.Path)), f)
		if same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// manifest loads the single part of a commit. Nil without error: there is
// none that could be compared.
func (e *Engine) manifest(ctx context.Context, id commit.ID) (*commit.Manifest, error) {
	parts, err := e.parts(ctx, id)
	if err != nil || len(parts) != 1 {
		return nil, err
	}
	return parts[0], nil
}

// ownPart loads this node's part of a commit of as many nodes as this attempt
// has. Nil without error: there is none that could be used.
func (e *Engine) ownPart(ctx context.Context, id commit.ID) (*commit.Manifest, error) {
	marker, err := e.store.Marker(ctx, id)
	var m *commit.Manifest
	if err == nil && len(marker.Parts) == e.st.nodes() {
		m, err = e.store.Manifest(ctx, marker, marker.Parts[e.st.Node])
	}
	if err != nil && (blob.Ambiguous(err) || errors.Is(err, blob.ErrDenied)) {
		return nil, storeError(err)
	}
	if err != nil {
		return nil, nil //nolint:nilerr // it is gone, or damaged
	}
	return m, nil
}

// parts loads the parts of a commit, in node order. None without error: the
// commit cannot be understood, or is gone.
func (e *Engine) parts(ctx context.Context, id commit.ID) ([]*commit.Manifest, error) {
	_, parts, err := e.store.Load(ctx, id)
	switch {
	case err == nil:
		return parts, nil
	case blob.Ambiguous(err) || errors.Is(err, blob.ErrDenied):
		return nil, storeError(err)
	}
	return nil, nil
}

// sameContent compares a local step with a manifest: the manifest's entries
// must be there with the same types, targets and digests. Further local
// entries must be ones that would not be committed either; links and
// directories count, times and modes do not.
func (e *Engine) sameContent(ctx context.Context, m *commit.Manifest, t *tree.Tree) (bool, error) {
	there := make(map[string]tree.Entry, len(t.Entries))
	for _, le := range t.Entries {
		there[le.Path] = le
	}
	for _, f := range m.Files { // cheap first: no byte is read if a size differs
		le, ok := there[f.Path]
		if !ok || le.Type != f.Type || le.Target != f.Target || (f.Type == commit.TypeFile && le.Size != f.Size) {
			return false, nil
		}
		delete(there, f.Path)
	}
	for _, le := range there {
		if le.Type == commit.TypeFile && !e.skips(m, t.Rel(le.Path)) {
			return false, nil
		}
	}
	for i := range m.Files {
		f := &m.Files[i]
		if f.Type != commit.TypeFile {
			continue
		}
		same, err := hasDigests(ctx, filepath.Join(e.cfg.Root, filepath.FromSlash(f.Path)), f)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// skips reports whether the layout that made m would leave rel out.
func (e *Engine) skips(m *commit.Manifest, rel string) bool {
	l := e.layouts[m.Layout]
	if l == nil {
		return false
	}
	v, err := l.Judge(e.fsys(), stepOf(m))
	return err == nil && skipper(v.Skip)(rel)
}

// hasDigests reads a local file and compares it chunk by chunk. A file that
// cannot be read is not the same.
func hasDigests(ctx context.Context, path string, f *commit.File) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	defer file.Close()
	for i, want := range f.Digest {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		off := int64(i) * f.Chunk
		h := blake3.New()
		n, err := io.Copy(h, io.NewSectionReader(file, off, min(f.Chunk, f.Size-off)))
		if err != nil || n != min(f.Chunk, f.Size-off) || !bytes.Equal(h.Sum(nil), want[:]) {
			return false, nil //nolint:nilerr // see above
		}
	}
	return true, nil
}
