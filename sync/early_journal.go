package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// What is sent before its step is whole has a journal of its own, beside that of
// the step: nothing in the store names what stands there, and nothing has tried
// to. So it may be deleted, when the file changes or the step goes. Before a
// step is published everything that is good is moved into the step's own
// journal, and only then can a manifest name it.

// earlyExt is that of a journal of what was sent ahead.
const earlyExt = ".ahead"

func earlyPath(stateDir string, attempt int, step string) string {
	return filepath.Join(journalDir(stateDir, attempt), fileName(step)+earlyExt)
}

// openEarly reads a journal of what was sent ahead. One that is unreadable is
// moved aside: then the step is sent when it is whole.
func openEarly(path string) (*journal, error) {
	j := &journal{path: path, early: true, files: map[string]record{}, ups: map[string]record{}, parts: map[string]map[int]record{}}
	j, _, err := j.load()
	return j, err
}

// spoil notes what a record makes useless.
func (j *journal) spoil(r record) {
	useless := func(was record, ok bool) {
		if ok && was.Object != r.Object {
			was.Kind, was.Digest = "trash", nil
			j.trash = append(j.trash, was)
		}
	}
	switch r.Kind {
	case "file":
		was, ok := j.files[r.Path]
		useless(was, ok)
		was, ok = j.ups[r.Path]
		useless(was, ok)
	case "upload":
		was, ok := j.ups[r.Path]
		useless(was, ok)
	case "trash":
		j.trash = append(j.trash, r)
	}
}

// part is part n of an upload, if it was acknowledged with so many bytes.
func (j *journal) part(upload string, n int, size int64) (record, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.parts[upload][n]
	return r, ok && r.Part != nil && r.Part.Size == size && len(r.Digest) == 1
}

// everything is all that stands in it, as trash.
func (j *journal) everything() []record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := append([]record(nil), j.trash...)
	for _, r := range j.files {
		out = append(out, r)
	}
	for _, r := range j.ups {
		out = append(out, r)
	}
	return out
}

// reduce keeps of the journal only that trash, durably: what it forgets is
// named by others from now on.
func (j *journal) reduce(trash []record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.files)
	clear(j.ups)
	clear(j.parts)
	j.trash = trash
	if j.f != nil {
		j.f.Close()
		j.f = nil
	}
	var data []byte
	for _, r := range trash {
		r.Kind = "trash"
		data = append(data, r.line()...)
	}
	var err error
	if len(trash) > 0 {
		err = durable.WriteFile(j.path, data, 0o600)
	} else if err = os.Remove(j.path); err == nil {
		err = durable.SyncDir(filepath.Dir(j.path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// takeAhead moves what was sent ahead of a step into its own journal, as far as
// it is good for the step as it is held.
func (e *Engine) takeAhead(ctx context.Context, j *journal, l *life) error {
	e.early.drop()
	a, err := openEarly(earlyPath(e.cfg.StateDir, e.st.Attempt, l.step.Name))
	if err != nil {
		return err
	}
	defer a.close()
	if len(a.files)+len(a.ups)+len(a.trash) == 0 {
		return nil
	}
	if err := e.verifyJournal(ctx, a, l); err != nil {
		return err
	}
	good := map[string]bool{} // objects
	for _, t := range l.tree.Files() {
		if _, ok := j.object(t.Path, t.Ident); ok {
			continue
		}
		if r, ok := a.object(t.Path, t.Ident); ok {
			r.Doubt = !r.Firm && r.Print != l.print
			good[r.Object] = true
			if err := j.add(r); err != nil {
				return err
			}
			continue
		}
		r, parts, ok := a.upload(t.Path, t.Ident)
		if !ok || r.Chunk != commit.ChunkSize(t.Size) || t.Size <= r.Chunk {
			continue
		}
		good[r.Object] = true
		if err := j.addUpload(r, parts); err != nil {
			return err
		}
	}
	var trash []record
	known := j.objects()
	for _, r := range a.everything() {
		if !good[r.Object] && !known[r.Object] {
			trash = append(trash, r)
		}
	}
	e.early.untidy = e.early.untidy || len(trash) > 0
	defer e.cfg.hook("ahead taken")
	return a.reduce(trash)
}

func (j *journal) addUpload(r record, parts map[int]record) error {
	if err := j.add(r); err != nil {
		return err
	}
	for _, p := range parts {
		if err := j.add(p); err != nil {
			return err
		}
	}
	return nil
}

// objects are all that the journal knows of.
func (j *journal) objects() map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make(map[string]bool, len(j.files)+len(j.ups))
	for _, r := range j.files {
		out[r.Object] = true
	}
	for _, r := range j.ups {
		out[r.Object] = true
	}
	return out
}

// continued makes of what a journal says about an upload that was begun what is
// to be sent of the file. A part of a file that grew counts without being read
// again only if the step was what it is now, print, when it was read: then the
// evidence was there already; or if a change since would show in the file's identity.
func (e *Engine) continued(u *upload.File, r record, parts map[int]record, print string) {
	doubt := func(p record) bool {
		return !(p.Firm && p.Ident != nil && *p.Ident == u.Ident) && (print == "" || p.Print != print)
	}
	u.Fresh, u.Growing = u.Object, r.Growing
	u.Object, u.UploadID, u.Sent = e.store.Key(r.Object), r.Upload, map[int]upload.SentPart{}
	for n, p := range parts {
		if p.Part != nil && len(p.Digest) == 1 {
			u.Sent[n] = upload.SentPart{Part: *p.Part, Digest: p.Digest[0], Doubt: r.Growing && doubt(p)}
		}
	}
}

// earlyLog writes what was sent ahead into the journal for that.
type earlyLog struct {
	e     *Engine
	j     *journal
	print string
}

func (s *earlyLog) object(f *upload.File) string {
	return strings.TrimPrefix(f.Object, s.e.store.Key(""))
}

func (s *earlyLog) about(kind string, f *upload.File) record {
	id := f.Ident
	return record{Kind: kind, Path: jsonPath(f.Path), Ident: &id, Object: s.object(f), Chunk: f.Chunk, Print: s.print}
}

// Begun implements upload.Log.
func (s *earlyLog) Begun(f *upload.File, id string) error {
	s.e.cfg.hook("ahead opened")
	defer s.e.cfg.hook("ahead begun")
	r := s.about("upload", f)
	r.Upload, r.Growing = id, f.Growing
	return s.j.add(r)
}

// PartSent implements upload.Log.
func (s *earlyLog) PartSent(f *upload.File, id string, p upload.SentPart) error {
	s.e.cfg.hook("ahead part acknowledged")
	defer s.e.cfg.hook("ahead part sent")
	r := record{Kind: "part", Upload: id, Part: &p.Part, Digest: []commit.Digest{p.Digest}, Print: s.print}
	if p.Firm {
		r.Firm, r.Ident = true, &f.Ident
	}
	return s.j.add(r)
}

// FileSent implements upload.Log.
func (s *earlyLog) FileSent(f *upload.File, d []commit.Digest) error {
	s.e.cfg.hook("ahead file acknowledged")
	defer s.e.cfg.hook("ahead file sent")
	r := s.about("file", f)
	r.Digest, r.Firm = d, f.Firm
	return s.j.add(r)
}

// sameInode reports whether two identities are of one file, perhaps at two
// times.
func sameInode(a, b tree.Ident) bool { return a.Inode == b.Inode }
