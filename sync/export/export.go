// Package export copies a commit to another store, where it is a commit again:
// every byte is proven on its way, the marker is written last, and a `restore`
// there takes it like any other.
package export

import (
	"cmp"
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// joinKey marks attempts in the other store that exports have made.
const joinKey = "ckptsync-export"

// maxWhole is the largest file that is sent as one object; larger ones are sent
// chunk by chunk.
const maxWhole = 32 << 20

// Options say what to copy, and to where.
type Options struct {
	From, To *commit.Store
	ID       commit.ID // in From

	Concurrency int   // chunks at once; 0: 8
	Memory      int64 // bytes of content in memory, but always one chunk; 0: 128 MiB
	// Progress, if not nil, is told of bytes that are in the other store: sent
	// now, or found there. It may be called concurrently.
	Progress func(sent, found int64)

	maxWhole int64 // for tests
	budget   *semaphore.Weighted
}

// Result is what was copied.
type Result struct {
	ID    commit.ID // in To
	Name  string
	Files int
	Bytes int64 // of all files
	Sent  int64 // of those, what was not there already
}

// DamagedError says that a file in the source is not what was committed.
type DamagedError struct {
	Path   string
	Chunk  int
	Reason string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s, chunk %d: %s; `ckptsync verify` says more", e.Path, e.Chunk, e.Reason)
}

// Run copies a commit. When it returns nil the commit is in the other store,
// whole and verified. Interrupted, it goes on where it was: objects that are
// there already are not sent again. A source that is damaged is a
// *DamagedError, and nothing is committed.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	o.maxWhole = cmp.Or(o.maxWhole, maxWhole)
	o.Memory = cmp.Or(o.Memory, 128<<20)
	o.budget = semaphore.NewWeighted(o.Memory)
	marker, parts, err := o.From.Load(ctx, o.ID)
	if err != nil {
		return Result{}, err
	}
	if err := o.To.Ensure(ctx); err != nil {
		return Result{}, err
	}
	attempt, err := o.attempt(ctx, marker)
	if err != nil {
		return Result{}, err
	}
	res := Result{ID: commit.ID{Step: o.ID.Step, Attempt: attempt}, Name: marker.Name, Files: marker.Files, Bytes: marker.Bytes}
	for {
		done, err := o.copy(ctx, marker, parts, &res)
		if done || err != nil {
			return res, err
		}
		res.ID.Revision++ // something else was exported under that name before
	}
}

// attempt is the attempt of the other store that the commit goes to: the last
// one, if an export made it, else a new one.
func (o *Options) attempt(ctx context.Context, m *commit.Marker) (int, error) {
	v, err := o.To.View(ctx)
	if err != nil {
		return 0, err
	}
	for _, a := range v.Attempts {
		if a.Attempt == v.Last && a.Join == joinKey && a.Nodes == len(m.Parts) {
			return a.Attempt, nil
		}
	}
	a, err := o.To.DrawAttempt(ctx, func(*commit.View, int) (commit.Attempt, error) {
		return commit.Attempt{Declared: true, Nodes: len(m.Parts), Join: joinKey}, nil
	})
	return a.Attempt, err
}

// copy copies under res.ID. False: there is another commit of that name.
func (o *Options) copy(ctx context.Context, marker *commit.Marker, parts []*commit.Manifest, res *Result) (bool, error) {
	if _, err := o.To.Marker(ctx, res.ID); err == nil {
		return o.same(ctx, parts, res.ID)
	} else if !errors.Is(err, blob.ErrNotExist) {
		return false, err
	}
	there, err := o.there(ctx, res.ID)
	if err != nil {
		return false, err
	}
	var refs []commit.PartRef
	var out []*commit.Manifest
	for i, p := range parts {
		m := *p
		m.ID, m.Files = res.ID, slices.Clone(p.Files)
		if err := o.files(ctx, &m, token(marker, i), there, res); err != nil {
			return false, err
		}
		ref, err := o.To.PutManifest(ctx, &m)
		var exists *commit.ManifestExistsError
		if errors.As(err, &exists) && exists.Manifest != nil && sameFiles(exists.Manifest, &m) {
			m, ref, err = *exists.Manifest, exists.Ref, nil // of an export that was interrupted
		}
		if exists != nil && err != nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		refs, out = append(refs, ref), append(out, &m)
	}
	nm, err := commit.NewMarker(o.To.Run(), out, refs)
	if err != nil {
		return false, err
	}
	nm.Resume, nm.Metadata = marker.Resume, marker.Metadata // which were found in the whole of the parts
	return true, o.To.PutMarker(ctx, nm)
}

// token is that of the data keys of a part: the same for the same commit, so that
// an export goes on where it was, and another for any other (R2).
func token(m *commit.Marker, part int) string {
	d := m.Parts[part].Digest
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(d[:10]))
}

// same reports whether the commit that is there has the same files.
func (o *Options) same(ctx context.Context, parts []*commit.Manifest, id commit.ID) (bool, error) {
	_, have, err := o.To.Load(ctx, id)
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(parts, have, sameFiles), nil
}

func sameFiles(a, b *commit.Manifest) bool {
	return a.Name == b.Name && slices.EqualFunc(a.Files, b.Files, func(f, g commit.File) bool { return f.Path == g.Path && f.Same(&g) })
}

// there lists what an interrupted export has sent.
func (o *Options) there(ctx context.Context, id commit.ID) (map[string]int64, error) {
	out := map[string]int64{}
	for info, err := range o.To.Bucket().List(ctx, o.To.Key("data/"+id.String()+"/")) {
		if err != nil {
			return nil, err
		}
		out[info.Key] = info.Size
	}
	return out, nil
}

// files copies the data of one part and sets the keys in m.
func (o *Options) files(ctx context.Context, m *commit.Manifest, token string, there map[string]int64, res *Result) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Concurrency)
	for i := range m.Files {
		f := &m.Files[i]
		if f.Type != commit.TypeFile || f.Size == 0 {
			continue
		}
		from := o.From.Key(f.Object)
		f.Object = o.To.DataKey(m.ID, m.Node, token, f.Path)
		if size, ok := there[o.To.Key(f.Object)]; ok && size == f.Size {
			o.Progress(0, f.Size)
			continue
		}
		res.Sent += f.Size
		if gctx.Err() != nil {
			break
		}
		if f.Size <= o.maxWhole || f.Chunk < blob.MinPart {
			g.Go(func() error { return o.whole(gctx, f, from) })
			continue
		}
		if err := o.parts(gctx, g, f, from); err != nil {
			g.Go(func() error { return err })
		}
	}
	return g.Wait()
}

// whole copies a file as one object.
func (o *Options) whole(ctx context.Context, f *commit.File, from string) error {
	buf, release, err := o.buffer(ctx, f.Size)
	if err != nil {
		return err
	}
	defer release()
	for i := range f.Digest {
		off := int64(i) * f.Chunk
		if err := o.read(ctx, f, from, i, buf[off:min(off+f.Chunk, f.Size)]); err != nil {
			return err
		}
	}
	crc := blob.CRC32C(buf)
	if _, err := o.To.Bucket().Put(ctx, o.To.Key(f.Object), blob.Bytes(buf), &blob.PutOptions{CRC32C: &crc}); err != nil {
		return err
	}
	o.Progress(f.Size, 0)
	return nil
}

// parts queues the chunks of a large file; the last one completes it.
func (o *Options) parts(ctx context.Context, g *errgroup.Group, f *commit.File, from string) error {
	up, err := o.To.Bucket().Upload(ctx, o.To.Key(f.Object), "", &blob.UploadOptions{Size: f.Size, PartSize: f.Chunk})
	if err != nil {
		return err
	}
	parts := make([]blob.Part, len(f.Digest))
	var left atomic.Int64
	left.Store(int64(len(parts)))
	for i := range parts {
		g.Go(func() (err error) {
			buf, release, err := o.buffer(ctx, min(f.Chunk, f.Size-int64(i)*f.Chunk))
			if err != nil {
				return err
			}
			defer release()
			if err := o.read(ctx, f, from, i, buf); err != nil {
				return errors.Join(err, up.Abort(context.WithoutCancel(ctx)))
			}
			if parts[i], err = up.PutPart(ctx, i+1, blob.Bytes(buf), blob.CRC32C(buf)); err != nil {
				return errors.Join(err, up.Abort(context.WithoutCancel(ctx)))
			}
			o.Progress(int64(len(buf)), 0)
			if left.Add(-1) > 0 {
				return nil
			}
			_, err = up.Complete(ctx, parts)
			return err
		})
	}
	return nil
}

// buffer is memory for n bytes, once there is room for them.
func (o *Options) buffer(ctx context.Context, n int64) (buf []byte, release func(), err error) {
	weight := min(n, o.Memory)
	if err := o.budget.Acquire(ctx, weight); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	return make([]byte, n), func() { o.budget.Release(weight) }, nil
}

// tries is how often a chunk is read that was wrong.
const tries = 2

// read reads chunk i of a file and proves it.
func (o *Options) read(ctx context.Context, f *commit.File, from string, i int, into []byte) (err error) {
	for range tries {
		var r io.ReadCloser
		r, err = o.From.Bucket().Open(ctx, from, int64(i)*f.Chunk, int64(len(into)))
		if err != nil {
			if errors.Is(err, blob.ErrNotExist) || errors.Is(err, blob.ErrCorrupt) || errors.Is(err, blob.ErrUnsupported) {
				err = &DamagedError{f.Path, i, err.Error()}
			}
			continue
		}
		_, err = io.ReadFull(r, into)
		r.Close()
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF: // cleanly, where the object ends
			err = &DamagedError{f.Path, i, "the object is too short"}
		case err == nil && commit.Sum(into) != f.Digest[i]:
			err = &DamagedError{f.Path, i, "its bytes are not those that were committed"}
		case err == nil:
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}
