package blobtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// mutant is a bucket with one sentence of the contract broken. Functions that
// are nil do the right thing.
type mutant struct {
	*memblob.Bucket
	stat     func(m *memblob.Bucket, ctx context.Context, key string) (blob.Info, error)
	open     func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error)
	put      func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error)
	list     func(m *memblob.Bucket, ctx context.Context, prefix string) iter.Seq2[blob.Info, error]
	del      func(m *memblob.Bucket, ctx context.Context, key string) error
	complete func(m *memblob.Bucket, u blob.Upload, ctx context.Context, parts []blob.Part) (blob.Info, error)
	part     func(u blob.Upload, ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error)
	parts    func(u blob.Upload, ctx context.Context) ([]blob.Part, error)
	abort    func(u blob.Upload, ctx context.Context) error
	upload   func(m *memblob.Bucket, ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error)
}

func (m mutant) Unwrap() blob.Bucket { return m.Bucket }

func (m mutant) Stat(ctx context.Context, key string) (blob.Info, error) {
	if m.stat != nil {
		return m.stat(m.Bucket, ctx, key)
	}
	return m.Bucket.Stat(ctx, key)
}

func (m mutant) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if m.open != nil {
		return m.open(m.Bucket, ctx, key, off, n)
	}
	return m.Bucket.Open(ctx, key, off, n)
}

func (m mutant) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if m.put != nil {
		return m.put(m.Bucket, ctx, key, src, opts)
	}
	return m.Bucket.Put(ctx, key, src, opts)
}

func (m mutant) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if m.list != nil {
		return m.list(m.Bucket, ctx, prefix)
	}
	return m.Bucket.List(ctx, prefix)
}

func (m mutant) Delete(ctx context.Context, key string) error {
	if m.del != nil {
		return m.del(m.Bucket, ctx, key)
	}
	return m.Bucket.Delete(ctx, key)
}

func (m mutant) Upload(ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
	begin := (*memblob.Bucket).Upload
	if m.upload != nil {
		begin = m.upload
	}
	u, err := begin(m.Bucket, ctx, key, id, o)
	if err != nil {
		return nil, err
	}
	return mutantUpload{u, m}, nil
}

type mutantUpload struct {
	blob.Upload
	m mutant
}

func (u mutantUpload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	if u.m.part != nil {
		return u.m.part(u.Upload, ctx, n, src, crc)
	}
	return u.Upload.PutPart(ctx, n, src, crc)
}

func (u mutantUpload) Parts(ctx context.Context) ([]blob.Part, error) {
	if u.m.parts != nil {
		return u.m.parts(u.Upload, ctx)
	}
	return u.Upload.Parts(ctx)
}

func (u mutantUpload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if u.m.complete != nil {
		return u.m.complete(u.m.Bucket, u.Upload, ctx, parts)
	}
	return u.Upload.Complete(ctx, parts)
}

func (u mutantUpload) Abort(ctx context.Context) error {
	if u.m.abort != nil {
		return u.m.abort(u.Upload, ctx)
	}
	return u.Upload.Abort(ctx)
}

// partial stores what a failing source gave, as closing a stream would.
func partial(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	info, err := m.Put(ctx, key, src, opts)
	if errors.Is(err, blob.ErrCorrupt) && (opts == nil || opts.CRC32C == nil) {
		m.Set(key, []byte("half"), false)
	}
	return info, err
}

// lists makes a listing of what edit leaves of the right one.
func lists(edit func(prefix string, infos []blob.Info) []blob.Info) func(m *memblob.Bucket, ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(m *memblob.Bucket, ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
		return func(yield func(blob.Info, error) bool) {
			var infos []blob.Info
			for info, err := range m.List(ctx, prefix) {
				if err != nil {
					yield(blob.Info{}, err)
					return
				}
				infos = append(infos, info)
			}
			for _, info := range edit(prefix, infos) {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// mutants are broken buckets, and the test of the suite that must notice.
var mutants = map[string]struct {
	m    mutant
	test string
}{
	"partial object of a failing source": {mutant{put: partial}, "BadSources"},
	"checksum ignored": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		if o != nil {
			o = &blob.PutOptions{IfAbsent: o.IfAbsent}
		}
		return m.Put(ctx, key, src, o)
	}}, "BadSources"},
	"condition ignored": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		if o != nil {
			o = &blob.PutOptions{CRC32C: o.CRC32C}
		}
		return m.Put(ctx, key, src, o)
	}}, "IfAbsent"},
	"condition looked at before writing": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		if o != nil && o.IfAbsent {
			_, err := m.Stat(ctx, key)
			racing.Wait() // the first two have both looked before either writes
			if err == nil {
				return blob.Info{}, &blob.Error{Op: "put", Key: key, Kind: blob.ErrPrecondition}
			}
			o = &blob.PutOptions{CRC32C: o.CRC32C}
		}
		return m.Put(ctx, key, src, o)
	}}, "IfAbsentRace"},
	"source read after Put": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		info, err := m.Put(ctx, key, src, o)
		late = append(late, src)
		return info, err
	}, open: func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
		for _, src := range late {
			src.ReadAt(make([]byte, 1), 0)
		}
		return m.Open(ctx, key, off, n)
	}}, "Section"},
	"range not cut": {mutant{open: func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
		return m.Open(ctx, key, off, -1)
	}}, "Ranges"},
	"range beyond the end is empty": {mutant{open: func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
		r, err := m.Open(ctx, key, off, n)
		if errors.Is(err, blob.ErrUnsupported) && off > 0 {
			return io.NopCloser(strings.NewReader("")), nil
		}
		return r, err
	}}, "Ranges"},
	"unclassed error": {mutant{stat: func(m *memblob.Bucket, ctx context.Context, key string) (blob.Info, error) {
		info, err := m.Stat(ctx, key)
		if err != nil {
			err = fmt.Errorf("%w", blob.ErrNotExist)
		}
		return info, err
	}}, "Absent"},
	"absent key denied": {mutant{stat: func(m *memblob.Bucket, ctx context.Context, key string) (blob.Info, error) {
		info, err := m.Stat(ctx, key)
		if errors.Is(err, blob.ErrNotExist) {
			err = &blob.Error{Op: "stat", Key: key, Kind: blob.ErrDenied}
		}
		return info, err
	}}, "Absent"},
	"keys trimmed": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		return m.Put(ctx, strings.TrimSpace(key), src, o)
	}}, "OddKeys"},
	"bad keys accepted": {mutant{stat: func(m *memblob.Bucket, ctx context.Context, key string) (blob.Info, error) {
		return m.Stat(ctx, strings.ReplaceAll(key, "//", "/"))
	}}, "BadKeys"},
	"prefix taken for a directory": {mutant{list: func(m *memblob.Bucket, ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
		return m.List(ctx, strings.TrimSuffix(prefix, "/"))
	}}, "ListPrefix"},
	"first page only": {mutant{list: lists(func(_ string, infos []blob.Info) []blob.Info { return infos[:min(len(infos), 1000)] })}, "ListPagesO38"},
	"order of a walk": {mutant{list: lists(func(_ string, infos []blob.Info) []blob.Info {
		slices.SortFunc(infos, func(a, b blob.Info) int { return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/")) })
		return infos
	})}, "ListOrder"},
	"dot names hidden": {mutant{list: lists(func(_ string, infos []blob.Info) []blob.Info {
		return slices.DeleteFunc(infos, func(i blob.Info) bool { return strings.HasPrefix(i.Key, ".") })
	})}, "OddKeys"},
	"placeholders listed": {mutant{list: lists(func(prefix string, infos []blob.Info) []blob.Info {
		if len(infos) == 0 && prefix == "" {
			return []blob.Info{{Key: "p/"}}
		}
		return infos
	})}, "ListPlaceholdersO37"},
	"listing ends when canceled": {mutant{list: func(m *memblob.Bucket, ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
		return func(yield func(blob.Info, error) bool) {
			for info, err := range m.List(ctx, prefix) {
				if err != nil || !yield(info, nil) {
					return
				}
			}
		}
	}}, "DoneWhileListing"},
	"delete of an absent key fails": {mutant{del: func(m *memblob.Bucket, ctx context.Context, key string) error {
		if _, err := m.Stat(ctx, key); err != nil {
			return err
		}
		return m.Delete(ctx, key)
	}}, "Delete"},
	"stream not ended by its context": {mutant{open: func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
		return m.Open(context.WithoutCancel(ctx), key, off, n)
	}}, "DoneWhileReading"},
	"put not ended by its context": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		return m.Put(context.WithoutCancel(ctx), key, src, o)
	}}, "DoneWhilePutting"},
	"stream follows the key": {mutant{open: func(m *memblob.Bucket, ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
		r, err := m.Open(ctx, key, off, n)
		if err != nil {
			return nil, err
		}
		return &following{ReadCloser: r, m: m, ctx: ctx, key: key, off: off, end: off + n, whole: n < 0}, nil
	}}, "StreamKeepsItsVersion"},
	"file sent without a look at its checksum": {mutant{put: func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
		if _, ok := src.(blob.FileSource); ok {
			o = nil
		}
		return m.Put(ctx, key, src, o)
	}}, "File"},
	"part checksum ignored": {mutant{part: func(u blob.Upload, ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
		p, err := u.PutPart(ctx, n, src, crc)
		if errors.Is(err, blob.ErrCorrupt) {
			var body blob.Bytes = make([]byte, src.Size())
			src.ReadAt(body, 0)
			return u.PutPart(ctx, n, body, blob.CRC32C(body))
		}
		return p, err
	}}, "UploadBadPart"},
	"bad part forgets the good one": {mutant{part: func(u blob.Upload, ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
		p, err := u.PutPart(ctx, n, src, crc)
		if err != nil {
			u.Abort(ctx)
		}
		return p, err
	}}, "UploadBadPart"},
	"complete settled by existence": {mutant{complete: func(m *memblob.Bucket, u blob.Upload, ctx context.Context, parts []blob.Part) (blob.Info, error) {
		info, err := u.Complete(ctx, parts)
		if errors.Is(err, blob.ErrNotExist) {
			return m.Stat(ctx, "up")
		}
		return info, err
	}}, "UploadCompleteTwice"},
	"complete takes any parts": {mutant{complete: func(m *memblob.Bucket, u blob.Upload, ctx context.Context, parts []blob.Part) (blob.Info, error) {
		have, err := u.Parts(ctx)
		if err != nil {
			return blob.Info{}, err
		}
		return u.Complete(ctx, have)
	}}, "UploadReplacePart"},
	"short part in the middle taken": {mutant{complete: func(_ *memblob.Bucket, u blob.Upload, ctx context.Context, parts []blob.Part) (blob.Info, error) {
		full := slices.Clone(parts)
		for i := range full[:max(len(full)-1, 0)] {
			full[i].Size = max(full[i].Size, blob.MinPart)
		}
		return u.Complete(ctx, full)
	}}, "UploadGrowingBadComplete"},
	"parts that are not given kept": {mutant{complete: func(_ *memblob.Bucket, u blob.Upload, ctx context.Context, parts []blob.Part) (blob.Info, error) {
		have, err := u.Parts(ctx)
		if err != nil || len(have) <= len(parts) {
			return u.Complete(ctx, parts)
		}
		return u.Complete(ctx, have)
	}}, "UploadGrowingFewer"},
	"parts not listed": {mutant{parts: func(u blob.Upload, ctx context.Context) ([]blob.Part, error) {
		parts, err := u.Parts(ctx)
		return parts[:min(len(parts), 1)], err
	}}, "UploadResume"},
	"abort does nothing": {mutant{abort: func(blob.Upload, context.Context) error { return nil }}, "UploadAbort"},
	"unknown upload begun anew": {mutant{upload: func(m *memblob.Bucket, ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
		u, err := m.Upload(ctx, key, id, o)
		if errors.Is(err, blob.ErrNotExist) {
			return m.Upload(ctx, key, "", o)
		}
		return u, err
	}}, "UploadUnknown"},
	"key gone while it is uploaded": {mutant{upload: func(m *memblob.Bucket, ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
		u, err := m.Upload(ctx, key, id, o)
		if err == nil {
			m.Delete(ctx, key)
		}
		return u, err
	}}, "Upload"},
}

// racing holds the writers of a mutant together; late keeps its sources.
var (
	racing barrier
	late   []blob.Source
)

// barrier lets callers go on in pairs.
type barrier struct {
	mu      sync.Mutex
	waiting chan struct{}
}

func (b *barrier) Wait() {
	b.mu.Lock()
	other := b.waiting
	if other != nil {
		b.waiting = nil
		b.mu.Unlock()
		close(other)
		return
	}
	mine := make(chan struct{})
	b.waiting = mine
	b.mu.Unlock()
	<-mine
}

// following reads whatever the key holds at the moment.
type following struct {
	io.ReadCloser
	m        *memblob.Bucket
	ctx      context.Context
	key      string
	off, end int64
	whole    bool
}

func (f *following) Read(p []byte) (int, error) {
	if !f.whole {
		p = p[:min(int64(len(p)), f.end-f.off)]
	}
	r, err := f.m.Open(f.ctx, f.key, f.off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err := r.Read(p)
	f.off += int64(n)
	return n, err
}

func (f *following) ETag() string { return f.ReadCloser.(blob.Versioned).ETag() }

const mutantEnv = "BLOBTEST_MUTANT"

// TestMutant is the suite on one mutant; TestSuiteNotices runs it in a process
// of its own, where it must fail. By itself it has one that breaks nothing, so
// that what fails there is not the mutant's frame.
func TestMutant(t *testing.T) {
	var broken mutant
	if name := os.Getenv(mutantEnv); name != "" {
		broken = mutants[name].m
	}
	blobtest.Run(t, func(*testing.T) blob.Bucket {
		m := broken
		m.Bucket = memblob.New()
		return m
	}, blobtest.Options{Placeholder: func(_ *testing.T, b blob.Bucket, key string) {
		b.(mutant).Set(key, nil, false)
	}})
}

// TestSuiteNotices: each sentence of the contract, broken, is a test of the
// suite that fails.
func TestSuiteNotices(t *testing.T) {
	for name, c := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestMutant$/^"+c.test+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s does not notice", c.test)
			} else if !strings.Contains(string(out), "--- FAIL: TestMutant/"+c.test) {
				t.Errorf("%s did not fail in the expected way:\n%s", c.test, out[:min(len(out), 3000)])
			}
		})
	}
}
