package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// unchanged is the last pass of R3: the held files are those that were read,
// and the names still lead to them, or are gone. A step that is being deleted
// is still whole in its hold; one that has any new or other file is not what
// was judged.
func (e *Engine) unchanged(l *life) (bool, error) {
	if err := l.hold.Check(); err != nil {
		var ch *hold.ChangedError
		if errors.As(err, &ch) || errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("check hold: %w", err)
	}
	now, err := e.captureLike(l)
	var odd *tree.Odd
	switch {
	case errors.Is(err, fs.ErrNotExist):
		now = nil
	case errors.As(err, &odd):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at %s again: %w", l.step.Name, err)
	default:
		now = now.Without(skipper(l.verdict.Skip))
	}
	change, what := l.tree.Compare(now)
	switch {
	case change == tree.Same:
		e.mu.Lock()
		l.tree = now // with the directories' present times
		e.mu.Unlock()
		return true, nil
	case change == tree.Shrunk && l.hold.Survives():
		return true, nil
	case change == tree.Shrunk:
		e.enter(l, Vanished, fmt.Sprintf("vanished during the upload: %s (no hold: %v)", strings.Join(what, ", "), l.hold.Why))
	}
	return false, nil
}

// committedAlready reports whether this attempt has a commit of the step with
// the same content: after the journal was lost, or when only times changed. One
// that is damaged counts for nothing.
func (e *Engine) committedAlready(ctx context.Context, l *life) (commit.ID, bool, error) {
	next := e.revisions[l.step.Number]
	if next == 0 {
		return commit.ID{}, false, nil
	}
	id := commit.ID{Step: l.step.Number, Attempt: e.st.Attempt, Revision: next - 1}
	if e.spoilt(id) {
		return id, false, e.sendAnew(l, id)
	}
	m, err := e.manifest(ctx, id)
	if err != nil || m == nil || m.Name != l.step.Name {
		return id, false, err
	}
	if dead, err := e.store.Retired(ctx, id); err != nil || dead {
		return id, false, err
	}
	same, err := e.sameHeld(ctx, m, l)
	return id, same, err
}

// sameHeld compares a held step with a manifest, digest by digest. A hold that
// is only what deletion has left of the commit counts as the same.
func (e *Engine) sameHeld(ctx context.Context, m *commit.Manifest, l *life) (bool, error) {
	files := make(map[string]*commit.File, len(m.Files))
	for i := range m.Files {
		files[m.Files[i].Path] = &m.Files[i]
	}
	rest := true // every entry is the commit's, untouched
	for _, t := range l.tree.Entries {
		f := files[t.Path]
		if f == nil || f.Type != t.Type || f.Target != t.Target || f.Size != t.Size && t.Type == commit.TypeFile {
			return false, nil
		}
		rest = rest && (t.Type != commit.TypeFile || f.MTime == t.Mod)
	}
	if len(l.tree.Entries) < len(m.Files) {
		return rest, nil
	}
	for _, t := range l.tree.Files() {
		d, err := e.digest(ctx, l, t, files[t.Path].Chunk)
		if err != nil {
			return false, err
		}
		if !sameDigests(d, files[t.Path].Digest) {
			return false, nil
		}
	}
	return true, nil
}

func sameDigests(a, b []commit.Digest) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// digest reads one held file.
func (e *Engine) digest(ctx context.Context, l *life, t tree.Entry, chunk int64) ([]commit.Digest, error) {
	f, err := l.hold.File(t.Path)
	if err != nil {
		return nil, &upload.ReadError{Path: t.Path, Err: err}
	}
	defer f.Close()
	var out []commit.Digest
	buf := make([]byte, 1<<20)
	for off := int64(0); off < t.Size; off += chunk {
		h := blake3.New()
		for at := off; at < min(off+chunk, t.Size); at += int64(len(buf)) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			b := buf[:min(int64(len(buf)), min(off+chunk, t.Size)-at)]
			if _, err := f.ReadAt(b, at); err != nil {
				return nil, &upload.ReadError{Path: t.Path, Err: err}
			}
			h.Write(b)
		}
		var d commit.Digest
		h.Sum(d[:0])
		out = append(out, d)
	}
	return out, nil
}

// sealed is a part manifest whose marker is not known to be there.
type sealed struct {
	m   *commit.Manifest
	ref commit.PartRef
}

// seal writes the part manifest. If this process or an earlier one sealed the
// step with the same content, and could not write its marker, that seal counts;
// if with other content, the step goes to the next revision.
func (e *Engine) seal(ctx context.Context, l *life, files []commit.File) (*commit.Manifest, commit.PartRef, error) {
	if s, ok := e.unmarked[l.step.Number]; ok && s.m.Attempt == e.st.Attempt && s.m.Name == l.step.Name && sameFiles(s.m.Files, files) {
		return s.m, s.ref, nil
	}
	for {
		m := e.newManifest(l, files)
		ref, err := e.store.PutManifest(ctx, m)
		if err == nil {
			e.used(m.ID)
			e.unmarked[m.Step] = sealed{m, ref}
			return m, ref, nil
		}
		var exists *commit.ManifestExistsError
		if !errors.As(err, &exists) {
			return nil, commit.PartRef{}, err
		}
		e.used(m.ID)
		if was := exists.Manifest; was != nil && was.Name == m.Name && sameFiles(was.Files, files) {
			e.unmarked[m.Step] = sealed{was, exists.Ref}
			return was, exists.Ref, nil
		}
	}
}

// bring takes a held step from its upload to its marker. What it wanted to
// borrow and cannot have after all it sends itself; what was retired meanwhile it
// commits again.
func (e *Engine) bring(ctx context.Context, l *life) (*commit.Manifest, error) {
	m, err := e.bringOnce(ctx, l)
	if again, aerr := e.anew(l, err); aerr != nil {
		return nil, aerr
	} else if again {
		m, err = e.bringOnce(ctx, l)
	}
	return m, err
}

func (e *Engine) bringOnce(ctx context.Context, l *life) (*commit.Manifest, error) {
	files, err := e.upload(ctx, l)
	if err != nil {
		return nil, err
	}
	e.enter(l, Uploaded)
	if same, err := e.unchanged(l); err != nil || !same {
		return nil, &notHeldError{err}
	}
	m, ref, err := e.seal(ctx, l, files)
	if err != nil {
		return nil, err
	}
	e.enter(l, Sealed)
	e.cfg.hook("sealed")
	_, err = e.mark(ctx, m, ref)
	return m, err
}

// notHeldError says that a step is not what was held any more, or why that
// cannot be told.
type notHeldError struct{ err error }

func (e *notHeldError) Error() string {
	if e.err == nil {
		return "it is not what was held any more"
	}
	return e.err.Error()
}

// mark writes the commit marker, the point at which the step is committed. A
// *retiredError says that it is not: there is a tombstone.
func (e *Engine) mark(ctx context.Context, m *commit.Manifest, ref commit.PartRef) (*commit.Marker, error) {
	if err := e.checkBorrowed(ctx, m); err != nil {
		return nil, err
	}
	marker, err := commit.NewMarker(e.store.Run(), []*commit.Manifest{m}, []commit.PartRef{ref})
	if err != nil {
		return nil, err
	}
	if err := e.store.PutMarker(ctx, marker); err != nil {
		return nil, err
	}
	return marker, e.alive(ctx, m.ID)
}

// sameFiles reports whether two manifests have the same content.
func sameFiles(a, b []commit.File) bool {
	return slices.EqualFunc(a, b, func(f, g commit.File) bool { return f.Path == g.Path && f.Same(&g) })
}

func (e *Engine) newManifest(l *life, files []commit.File) *commit.Manifest {
	v := l.verdict
	return &commit.Manifest{
		Format: commit.FormatManifest, Run: e.store.Run(),
		ID:   commit.ID{Step: l.step.Number, Attempt: e.st.Attempt, Revision: e.revisions[l.step.Number]},
		Node: e.st.Node, Claim: e.st.Claim, Name: l.step.Name, Layout: l.step.Layout,
		Stamp: stamp(l), Evidence: v.Evidence, Resume: v.Resume, Missing: v.Missing, Warnings: v.Warnings,
		Pointers: v.Pointers, Copies: v.Copies, Metadata: v.Metadata,
		Token: commit.NewOpToken(), Host: e.cfg.Host, Sealed: commit.At(e.cfg.now()), Files: files,
	}
}

// stamp is the identity of the evidence: it ties the parts of several nodes to
// one save.
func stamp(l *life) string {
	var b strings.Builder
	if l.verdict.Counted {
		b.WriteString(l.tree.Fingerprint())
	}
	for _, rel := range l.verdict.Evidence {
		if t, ok := l.tree.Lookup(rel); ok {
			fmt.Fprintf(&b, "%q %d %d\n", rel, t.Size, t.Mod)
		}
	}
	d := commit.Sum([]byte(b.String()))
	return fmt.Sprintf("%x", d[:16])
}

// broken decides what an error in mid-publish means for the step.
func (e *Engine) broken(ctx context.Context, l *life, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // interrupted; the hold and the journal stay
	}
	var not *notHeldError
	if errors.As(err, &not) {
		return errors.Join(not.err, e.again(l))
	}
	if errors.Is(err, upload.ErrStopped) {
		return err // put off; the hold and the journal stay
	}
	var ch *upload.ChangedError
	if errors.As(err, &ch) {
		e.cfg.Log.Info("step changed during its upload", "step", l.step.Name, "reason", ch.Error())
		return e.again(l)
	}
	e.mu.Lock()
	l.tries++
	l.cause, l.retry = err, e.cfg.now().Add(backoff(l.tries))
	e.mu.Unlock()
	e.enter(l, Failed, err.Error())
	return err
}

// backoff is how long a step that could not be committed is left alone; the
// store's own short failures were retried already.
func backoff(tries int) time.Duration {
	return min(5*time.Minute, time.Second<<min(tries, 9))
}

// journal opens the journal of a step of the present attempt.
func (e *Engine) journal(step string) (*journal, error) {
	st := e.attempt()
	if st == nil {
		return nil, errors.New("no attempt yet")
	}
	j, aside, err := openJournal(journalPath(e.cfg.StateDir, st.Attempt, step))
	if err == nil && aside != "" {
		e.notice(aside, "a journal was not readable and was moved aside; the step is looked at anew")
	}
	return j, err
}
