package syncer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// sender sends ahead of one step as it is at one look.
type sender struct {
	e    *Engine
	a    *ahead
	g    *glimpse
	stop context.Context // done: no new request
	lent *lender
	id   commit.ID

	odd map[string]bool // paths that could not be read as they were seen: not before the next look
}

// piece is a small file, or a part of a large one.
type piece struct {
	t     tree.Entry
	chunk int64
	part  int // from 1; 0: the file
	size  int64
	quiet bool
	was   *record // what was sent of it, in doubt
}

// settled reports whether the step settles since it was looked at.
func (s *sender) settled() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.g.l.stage == Settling && s.g.stage != Settling
}

// tolerate makes nothing of an error that says only that the file is another by
// now: the next look sees that.
func (s *sender) tolerate(t tree.Entry, err error) error {
	var ch *upload.ChangedError
	var re *upload.ReadError
	if errors.As(err, &ch) || errors.As(err, &re) {
		s.a.mu.Lock()
		s.odd[t.Path] = true
		s.a.mu.Unlock()
		return nil
	}
	return err
}

// pieces yields those of a file that may be sent now and were not.
func (s *sender) pieces(t tree.Entry, yield func(piece) bool) {
	was := s.a.seen[t.Path]
	if s.sent(t) {
		return
	}
	chunk := commit.ChunkSize(t.Size)
	switch {
	case t.Size <= chunk:
		if s.quiet(t, earlyQuiet) {
			yield(piece{t: t, chunk: chunk, size: t.Size, quiet: true})
		}
	case s.noParts():
	case s.quiet(t, earlyPause):
		s.parts(t, chunk, t.Size, yield) // it ends here, it seems
	case was.grows && t.Size < chunk*blob.MaxParts:
		// The chunk that is being written, and the one before it, are left:
		// that is how far most writers look back. A file that may outgrow
		// chunks of this size waits until it is whole.
		s.parts(t, chunk, (t.Size/chunk-1)*chunk, yield)
	}
}

func (s *sender) noParts() bool {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	return s.a.noParts
}

// quiet reports whether the file has been as it is for that long.
func (s *sender) quiet(t tree.Entry, d time.Duration) bool {
	return s.g.looked.Sub(s.a.seen[t.Path].since) >= d
}

// doubts yields what was sent of a quiet file and is in doubt, if to read it
// again now would end that.
func (s *sender) doubts(t tree.Entry, yield func(piece) bool) {
	if !s.quiet(t, earlyQuiet) || !s.sureNow(t) {
		return
	}
	if r, ok := s.a.j.object(t.Path, t.Ident); ok {
		if !r.Firm && t.Size <= r.Chunk {
			yield(piece{t: t, chunk: r.Chunk, size: t.Size, quiet: true, was: &r})
		}
		return
	}
	up, parts, ok := s.a.j.upload(t.Path, t.Ident)
	if !ok {
		return
	}
	for n, r := range parts {
		size := min(up.Chunk, t.Size-int64(n-1)*up.Chunk)
		if r.Firm && *r.Ident == t.Ident || r.Part == nil || r.Part.Size != size || len(r.Digest) != 1 {
			continue
		}
		if !yield(piece{t: t, chunk: up.Chunk, part: n, size: size, quiet: true, was: &r}) {
			return
		}
	}
}

// sureNow reports whether any change of the file from now on shows.
func (s *sender) sureNow(t tree.Entry) bool {
	f := s.file(t, 0)
	file, err := f.Open()
	if err != nil {
		return false
	}
	defer file.Close()
	return s.e.cfg.sure(file, 0, t.Size)
}

// sent reports whether the store has the file as it is.
func (s *sender) sent(t tree.Entry) bool {
	if _, ok := s.a.own.file(t.Path, t.Ident); ok {
		return true // of an earlier revision
	}
	_, ok := s.a.j.object(t.Path, t.Ident)
	return ok
}

// parts yields those of the first size bytes that were not sent.
func (s *sender) parts(t tree.Entry, chunk, size int64, yield func(piece) bool) {
	r, begun := s.begun(t, chunk)
	for n := 1; int64(n-1)*chunk < size; n++ {
		p := piece{t: t, chunk: chunk, part: n, size: min(chunk, size-int64(n-1)*chunk), quiet: s.quiet(t, earlyPause)}
		s.a.mu.Lock()
		skip := s.odd[t.Path] || s.a.alike[t.Path][n]
		s.a.mu.Unlock()
		if begun {
			_, have := s.a.j.part(r.Upload, n, p.size)
			skip = skip || have
		}
		if skip {
			continue
		}
		if !yield(p) {
			return
		}
	}
}

// begun is the upload of the file that goes on.
func (s *sender) begun(t tree.Entry, chunk int64) (record, bool) {
	r, ok := s.a.j.begun(t.Path, t.Ident)
	return r, ok && r.Growing && r.Chunk == chunk
}

// send sends one piece.
func (s *sender) send(ctx context.Context, p piece) error {
	f := s.file(p.t, p.chunk)
	if p.quiet {
		f.Sure = s.e.cfg.sure
	}
	if p.part == 0 {
		f.Object, f.Known = s.key(p.t.Path), s.known(p.t)
		if p.was != nil {
			f.Known = &upload.Known{Object: s.e.store.Key(p.was.Object), Digest: p.was.Digest}
		}
		return s.e.up.Whole(ctx, &f, s.log())
	}
	if d := s.lentPart(p); d != nil {
		if alike, err := s.e.up.Alike(ctx, &f, p.part, p.size, *d); err != nil || alike {
			s.isAlike(p, alike)
			return err
		}
	}
	u, err := s.upload(ctx, p)
	if err != nil || u == nil {
		return err
	}
	if p.was != nil {
		f.Sent = map[int]upload.SentPart{p.part: {Part: *p.was.Part, Digest: p.was.Digest[0]}}
	}
	return u.Send(ctx, &f, p.part, p.size, s.log())
}

// file is what is to be sent of an entry, without its key. It is opened by its
// name, so whoever reads it looks whether it is the entry that was seen.
func (s *sender) file(t tree.Entry, chunk int64) upload.File {
	name := filepath.Join(s.e.cfg.Root, filepath.FromSlash(t.Path))
	return upload.File{Path: t.Path, Ident: t.Ident, Chunk: chunk, Open: func() (*os.File, error) { return openFile(name) }}
}

// key is one that nothing was sent under (R2).
func (s *sender) key(path string) string {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.a.used[path] {
		s.a.token, s.a.used = commit.NewToken(), map[string]bool{}
	}
	s.a.used[path] = true
	return s.e.store.Key(s.e.store.DataKey(s.id, s.e.cfg.Node, s.a.token, path))
}

// known is what the file may be, of the lender's.
func (s *sender) known(t tree.Entry) *upload.Known {
	return s.lent.known(s.e.store, s.g.tree.Rel(t.Path), &commit.File{Size: t.Size, Chunk: commit.ChunkSize(t.Size)})
}

// lentPart is the digest of the same part of the lender's file; nil if there is
// none, or if the upload of the file has begun: then all of it is sent.
func (s *sender) lentPart(p piece) *commit.Digest {
	if _, ok := s.begun(p.t, p.chunk); ok || s.lent == nil {
		return nil
	}
	k := s.lent.files[s.g.tree.Rel(p.t.Path)]
	if k == nil || k.Chunk != p.chunk || p.part > len(k.Digest) || min(k.Chunk, k.Size-int64(p.part-1)*k.Chunk) != p.size {
		return nil
	}
	return &k.Digest[p.part-1]
}

func (s *sender) isAlike(p piece, alike bool) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.a.alike[p.t.Path] == nil {
		s.a.alike[p.t.Path] = map[int]bool{}
	}
	s.a.alike[p.t.Path][p.part] = alike
}

// upload is the one of the file: it is begun with the first part, or continued
// where an earlier process was. Nil without error: this store takes no parts.
func (s *sender) upload(ctx context.Context, p piece) (*upload.Growing, error) {
	s.a.begin.Lock()
	defer s.a.begin.Unlock()
	r, ok := s.begun(p.t, p.chunk)
	if u := s.a.parts[p.t.Path]; u != nil && ok && u.ID() == r.Upload {
		return u, nil
	}
	f := s.file(p.t, p.chunk)
	f.Object = s.key(p.t.Path)
	if ok {
		_, parts, _ := s.a.j.upload(p.t.Path, p.t.Ident)
		s.e.continued(&f, r, parts, "")
	}
	u, err := s.e.up.Grow(ctx, &f, s.log())
	if errors.Is(err, blob.ErrUnsupported) {
		s.a.mu.Lock()
		s.a.noParts = true
		s.a.mu.Unlock()
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.a.mu.Lock()
	delete(s.a.alike, p.t.Path)
	s.a.mu.Unlock()
	s.a.parts[p.t.Path] = u
	return u, nil
}

// log is for what is read from now on.
func (s *sender) log() *earlyLog {
	l := &earlyLog{e: s.e, j: s.a.j}
	if s.g.proven {
		l.print = s.g.print
	}
	return l
}

// finish brings a step that settles so far that only its manifest is missing:
// what was read before the evidence was there is read again, what is missing is
// sent, and uploads in parts are completed.
func (s *sender) finish(ctx context.Context) error {
	var todo []upload.File
	for _, t := range s.g.tree.Files() {
		if s.g.skip(s.g.tree.Rel(t.Path)) {
			continue
		}
		if _, ok := s.a.own.file(t.Path, t.Ident); ok {
			continue
		}
		r, sent := s.a.j.object(t.Path, t.Ident)
		if sent && (!s.g.proven || r.Firm || r.Print == s.g.print) {
			continue
		}
		todo = append(todo, s.rest(t, r, sent))
	}
	if len(todo) == 0 {
		return nil
	}
	_, err := s.e.up.Send(ctx, todo, s.log())
	return s.tolerate(tree.Entry{}, err)
}

// rest is what finish has to do about one file; r is its object, if it was
// sent.
func (s *sender) rest(t tree.Entry, r record, sent bool) upload.File {
	f := s.file(t, commit.ChunkSize(t.Size))
	f.Stop, f.Sure = func() bool { return s.stop.Err() != nil }, s.e.cfg.sure
	f.Object, f.Known, f.Growing = s.key(t.Path), s.known(t), t.Size > f.Chunk
	if sent && r.Chunk == f.Chunk {
		f.Known = &upload.Known{Object: s.e.store.Key(r.Object), Digest: r.Digest}
	} else if r, ok := s.begun(t, f.Chunk); ok && t.Size > f.Chunk {
		_, parts, _ := s.a.j.upload(t.Path, t.Ident)
		print := ""
		if s.g.proven {
			print = s.g.print
		}
		s.e.continued(&f, r, parts, print)
		f.Known = nil
	}
	return f
}
