package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// node is this host's number among the machines of the attempt.
const node = 0

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
// the same content: after the journal was lost, or when only times changed.
func (e *Engine) committedAlready(ctx context.Context, l *life) (commit.ID, bool, error) {
	next := e.revisions[l.step.Number]
	if next == 0 {
		return commit.ID{}, false, nil
	}
	id := commit.ID{Step: l.step.Number, Attempt: e.st.Attempt, Revision: next - 1}
	m, err := e.manifest(ctx, id)
	if err != nil || m == nil || m.Name != l.step.Name {
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

// upload sends what of the held step the store does not have yet, and returns
// the manifest's entries.
func (e *Engine) upload(ctx context.Context, l *life) ([]commit.File, error) {
	j, err := e.journal(l.step.Name)
	if err != nil {
		return nil, err
	}
	defer j.close()
	id := commit.ID{Step: l.step.Number, Attempt: e.st.Attempt, Revision: e.revisions[l.step.Number]}
	if err := e.verifyJournal(ctx, j, l); err != nil {
		return nil, err
	}
	token := commit.NewToken()
	files, todo := entries(l), []upload.File{}
	var at []int // todo[i] is files[at[i]]
	var reused int64
	total := l.tree.Bytes()
	for i := range files {
		f := &files[i]
		if f.Type != commit.TypeFile {
			continue
		}
		t, _ := l.tree.Lookup(l.tree.Rel(f.Path))
		if r, ok := j.file(f.Path, t.Ident); ok {
			f.Object, f.Chunk, f.Digest = r.Object, r.Chunk, r.Digest
			reused += f.Size
			continue
		}
		f.Chunk = commit.ChunkSize(f.Size)
		f.Object = e.store.DataKey(id, node, token, f.Path)
		todo = append(todo, e.uploadFile(j, l, f, t.Ident))
		at = append(at, i)
	}
	e.cfg.Reporter.Report(Moved{Step: l.step.Name, Reused: reused, Total: total})
	e.up.Progress = func(s, before int64) {
		e.cfg.Reporter.Report(Moved{Step: l.step.Name, Sent: s, Reused: before, Total: total})
	}
	digests, err := e.up.Send(ctx, todo, &sendLog{e: e, j: j})
	if err != nil {
		return nil, err
	}
	for i, d := range digests {
		files[at[i]].Digest = d
		files[at[i]].Object = strings.TrimPrefix(todo[i].Object, e.store.Key(""))
	}
	return files, e.rereadJitter(ctx, l, files)
}

// uploadFile is what to send of one file: all of it, under a new key, or what
// an earlier process did not get to, under the key that it had begun.
func (e *Engine) uploadFile(j *journal, l *life, f *commit.File, id tree.Ident) upload.File {
	u := upload.File{Path: f.Path, Ident: id, Object: e.store.Key(f.Object), Chunk: f.Chunk}
	path := f.Path
	u.Open = func() (*os.File, error) { return l.hold.File(path) }
	if r, parts, ok := j.upload(f.Path, id); ok && r.Chunk == f.Chunk {
		u.Fresh = u.Object
		u.Object, u.UploadID, u.Sent = e.store.Key(r.Object), r.Upload, map[int]upload.SentPart{}
		for n, p := range parts {
			if p.Part != nil && len(p.Digest) == 1 {
				u.Sent[n] = upload.SentPart{Part: *p.Part, Digest: p.Digest[0]}
			}
		}
	}
	return u
}

// rereadJitter reads a step whose times are not to be trusted a second time:
// two equal full hashes are its identity (R3).
func (e *Engine) rereadJitter(ctx context.Context, l *life, files []commit.File) error {
	if !l.jitter.loose {
		return nil
	}
	for i := range files {
		if files[i].Type != commit.TypeFile {
			continue
		}
		t, _ := l.tree.Lookup(l.tree.Rel(files[i].Path))
		d, err := e.digest(ctx, l, t, files[i].Chunk)
		if err != nil {
			return err
		}
		if !sameDigests(d, files[i].Digest) {
			return &upload.ChangedError{Path: files[i].Path, Why: "two reads gave different bytes"}
		}
	}
	return nil
}

// entries are the manifest's entries of a held step, before digests and keys.
func entries(l *life) []commit.File {
	late := skipper(l.verdict.Late)
	files := make([]commit.File, 0, len(l.tree.Entries))
	for _, t := range l.tree.Entries {
		f := commit.File{
			Path: t.Path, Type: t.Type, Mode: t.Mode, UID: t.UID, GID: t.GID,
			MTime: t.Mod, Target: t.Target, Late: late(l.tree.Rel(t.Path)),
		}
		if t.Type == commit.TypeFile {
			f.Size = t.Size
		}
		files = append(files, f)
	}
	return files
}

// verifyJournal asks the store, once per process and step, whether it still
// has what an earlier process wrote into the journal. Uploads in parts are
// checked when they are continued.
func (e *Engine) verifyJournal(ctx context.Context, j *journal, l *life) error {
	if len(j.files) == 0 {
		return nil
	}
	prefixes := map[string]bool{}
	for _, r := range j.files {
		if i := strings.Index(r.Object, "/node-"); i > 0 {
			prefixes[r.Object[:i+1]] = true
		}
	}
	there := map[string]int64{}
	for p := range prefixes {
		for info, err := range e.store.Bucket().List(ctx, e.store.Key(p)) {
			if err != nil {
				return err
			}
			there[info.Key] = info.Size
		}
	}
	for _, t := range l.tree.Files() {
		if r, ok := j.file(t.Path, t.Ident); ok {
			if size, ok := there[e.store.Key(r.Object)]; !ok || size != t.Size {
				j.forget(t.Path)
			}
		}
	}
	return nil
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

// mark writes the commit marker, the point at which the step is committed. A
// manifest that names objects of another commit (files that did not change) is
// visible by now; so a lender that was retired before that is seen here (R11).
func (e *Engine) mark(ctx context.Context, m *commit.Manifest, ref commit.PartRef) (*commit.Marker, error) {
	for id := range lenders(m) {
		lost, err := e.store.Lost(ctx, id)
		if err != nil {
			return nil, err
		}
		if lost != "" {
			return nil, &lenderError{id, lost}
		}
	}
	marker, err := commit.NewMarker(e.store.Run(), []*commit.Manifest{m}, []commit.PartRef{ref})
	if err != nil {
		return nil, err
	}
	return marker, e.store.PutMarker(ctx, marker)
}

// lenders are the other commits whose objects a manifest names.
func lenders(m *commit.Manifest) map[commit.ID]bool {
	out := map[commit.ID]bool{}
	for i := range m.Files {
		if o, ok := commit.ParseKey(m.Files[i].Object); ok && o.ID != m.ID {
			out[o.ID] = true
		}
	}
	return out
}

// lenderError says that a commit whose objects were borrowed is no more.
type lenderError struct {
	id  commit.ID
	why string
}

func (e *lenderError) Error() string {
	return fmt.Sprintf("it names files of commit %s, which is %s", e.id, e.why)
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
		Pointers: v.Pointers, Metadata: v.Metadata,
		Token: commit.NewOpToken(), Host: e.cfg.Host, Sealed: commit.At(e.cfg.now()), Files: files,
	}
}

// stamp is the identity of the evidence: it ties the parts of several nodes to
// one save.
func stamp(l *life) string {
	var b strings.Builder
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
	var lost *lenderError
	if errors.As(err, &lost) {
		return e.sendOwn(l, lost)
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

// sendOwn has the step sent again, with its own copy of what it had borrowed,
// under the next revision.
func (e *Engine) sendOwn(l *life, lost *lenderError) error {
	j, err := e.journal(l.step.Name)
	if err != nil {
		return err
	}
	defer j.close()
	delete(e.unmarked, l.step.Number)
	e.cfg.Log.Info("borrowed files are sent after all", "step", l.step.Name, "reason", lost.Error())
	return errors.Join(j.forgetAll(), e.again(l))
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

// sendLog writes to a step's journal what the store has acknowledged.
type sendLog struct {
	e *Engine
	j *journal
}

func (s *sendLog) object(f *upload.File) string {
	return strings.TrimPrefix(f.Object, s.e.store.Key(""))
}

// Begun implements upload.Log.
func (s *sendLog) Begun(f *upload.File, id string) error {
	s.e.cfg.hook("upload opened")
	defer s.e.cfg.hook("upload begun")
	return s.j.add(record{Kind: "upload", Path: jsonPath(f.Path), Ident: &f.Ident, Object: s.object(f), Chunk: f.Chunk, Upload: id})
}

// PartSent implements upload.Log.
func (s *sendLog) PartSent(f *upload.File, id string, p upload.SentPart) error {
	s.e.cfg.hook("part acknowledged")
	defer s.e.cfg.hook("part sent")
	return s.j.add(record{Kind: "part", Upload: id, Part: &p.Part, Digest: []commit.Digest{p.Digest}})
}

// FileSent implements upload.Log.
func (s *sendLog) FileSent(f *upload.File, d []commit.Digest) error {
	s.e.cfg.hook("file acknowledged")
	defer s.e.cfg.hook("file sent")
	return s.j.add(record{Kind: "file", Path: jsonPath(f.Path), Ident: &f.Ident, Object: s.object(f), Chunk: f.Chunk, Digest: d})
}
