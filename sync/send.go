package syncer

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

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
	if err := e.takeAhead(ctx, j, l); err != nil {
		return nil, err
	}
	known, err := e.lending(ctx)
	if err != nil {
		return nil, err
	}
	token := commit.NewToken()
	files, todo := entries(l), []upload.File{}
	var at []int // todo[i] is files[at[i]]
	var reused int64
	moved := e.tally(l)
	for i := range files {
		f := &files[i]
		if f.Type != commit.TypeFile {
			continue
		}
		t, _ := l.tree.Lookup(l.tree.Rel(f.Path))
		if r, ok := j.file(f.Path, t.Ident); ok && r.holds(t.Ident, l.print) {
			f.Object, f.Chunk, f.Digest = r.Object, r.Chunk, r.Digest
			reused += f.Size
			continue
		}
		f.Chunk = commit.ChunkSize(f.Size)
		f.Object = e.store.DataKey(id, e.st.Node, token, f.Path)
		u := e.uploadFile(j, l, f, t.Ident)
		if u.UploadID == "" && u.Known == nil {
			u.Known = known.known(e.store, l.tree.Rel(f.Path), f)
		}
		todo = append(todo, u)
		at = append(at, i)
	}
	moved(0, reused)
	e.up.Progress = func(sent, before int64) { e.pace.sent(sent); moved(sent, before) }
	e.pace.begin()
	defer e.pace.end()
	digests, err := e.up.Send(ctx, todo, &sendLog{e: e, j: j, print: l.print})
	if err != nil {
		return nil, err
	}
	for i, d := range digests {
		files[at[i]].Digest = d
		files[at[i]].Object = strings.TrimPrefix(todo[i].Object, e.store.Key(""))
	}
	return files, e.rereadJitter(ctx, l, files)
}

// tally tells what an upload of a step moves. A try before it, in this process,
// may have told of bytes that this one finds in the store: they were sent, and
// are not told of again. What that try found there is told of anew.
func (e *Engine) tally(l *life) func(sent, before int64) {
	name, total, mine := l.step.Name, l.tree.Bytes(), l.sent
	if l.reused != 0 {
		e.cfg.Reporter.Report(Moved{Step: name, Reused: -l.reused, Total: total})
	}
	l.reused = 0
	l.landed.Store(0)
	var mu sync.Mutex
	return func(sent, before int64) {
		l.landed.Add(sent + before)
		mu.Lock()
		defer mu.Unlock()
		told := min(mine, max(before, 0))
		mine -= told
		before -= told
		l.sent += sent
		l.reused += before
		e.cfg.Reporter.Report(Moved{Step: name, Sent: sent, Reused: before, Total: total})
	}
}

// uploadFile is what to send of one file: all of it, under a new key, or what
// an earlier process did not get to, under the key that it had begun.
func (e *Engine) uploadFile(j *journal, l *life, f *commit.File, id tree.Ident) upload.File {
	u := upload.File{Path: f.Path, Ident: id, Object: e.store.Key(f.Object), Chunk: f.Chunk}
	path := f.Path
	u.Open = func() (*os.File, error) { return l.hold.File(path) }
	u.Sure = e.cfg.sure
	u.Stop = func() bool { return e.mustStop(l, min(f.Size, f.Chunk)) }
	if r, ok := j.object(f.Path, id); ok && r.Chunk == f.Chunk { // sent before, and in doubt
		u.Known = &upload.Known{Object: e.store.Key(r.Object), Digest: r.Digest}
	} else if r, parts, ok := j.upload(f.Path, id); ok && r.Chunk == f.Chunk && f.Size > f.Chunk {
		e.continued(&u, r, parts, l.print)
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
	objects := map[string]int64{}
	for _, t := range l.tree.Files() {
		if r, ok := j.object(t.Path, t.Ident); ok {
			objects[r.Object] = t.Size
		}
	}
	bad, err := e.unsound(ctx, objects)
	if err != nil {
		return err
	}
	for _, t := range l.tree.Files() {
		if r, ok := j.object(t.Path, t.Ident); ok && bad[r.Object] != "" {
			j.forget(t.Path)
		}
	}
	return nil
}

// sendLog writes to a step's journal what the store has acknowledged.
type sendLog struct {
	e     *Engine
	j     *journal
	print string // of the step
}

func (s *sendLog) object(f *upload.File) string {
	return strings.TrimPrefix(f.Object, s.e.store.Key(""))
}

// Begun implements upload.Log.
func (s *sendLog) Begun(f *upload.File, id string) error {
	s.e.cfg.hook("upload opened")
	defer s.e.cfg.hook("upload begun")
	return s.j.add(record{Kind: "upload", Path: jsonPath(f.Path), Ident: &f.Ident, Object: s.object(f), Chunk: f.Chunk, Upload: id, Growing: f.Growing})
}

// PartSent implements upload.Log.
func (s *sendLog) PartSent(f *upload.File, id string, p upload.SentPart) error {
	s.e.cfg.hook("part acknowledged")
	defer s.e.cfg.hook("part sent")
	r := record{Kind: "part", Upload: id, Part: &p.Part, Digest: []commit.Digest{p.Digest}}
	if f.Growing {
		r.Print = s.print
	}
	return s.j.add(r)
}

// FileSent implements upload.Log.
func (s *sendLog) FileSent(f *upload.File, d []commit.Digest) error {
	s.e.cfg.hook("file acknowledged")
	defer s.e.cfg.hook("file sent")
	return s.j.add(record{Kind: "file", Path: jsonPath(f.Path), Ident: &f.Ident, Object: s.object(f), Chunk: f.Chunk, Digest: d, Print: s.print, Firm: f.Firm})
}
