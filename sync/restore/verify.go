package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// VerifyOptions say which commit to verify, and how.
type VerifyOptions struct {
	Store *commit.Store
	ID    commit.ID
	// Quick looks at names and sizes only, in listings; no data is read.
	Quick bool

	Concurrency  int // ranges in flight; 0: DefaultConcurrency
	MemoryBudget int64
	Logger       *slog.Logger
	Progress     func(Progress) // as in Options; the phase is PhaseFetch
}

// Verified is what a verification found.
type Verified struct {
	ID       commit.ID
	Name     string
	Files    int   // that have bytes, over all nodes
	Bytes    int64 // of them
	Damaged  []*DamagedError
	Duration time.Duration

	// The files of Damaged, as their manifests have them, in its order; for
	// damage of the manifests themselves there is none.
	DamagedFiles []commit.File
}

// maxFindings bounds how many damaged files are told of one commit.
const maxFindings = 1000

// Verify reads a commit back from the bucket and compares every chunk of every
// node's files with its digest; nothing is written anywhere. Damage is no
// error: it is in the result, a finding per file. The errors are those of Run
// that say nothing about damage.
func Verify(ctx context.Context, vo VerifyOptions) (*Verified, error) {
	start := time.Now()
	o := Options{
		Store: vo.Store, ID: vo.ID, Concurrency: vo.Concurrency, MemoryBudget: vo.MemoryBudget,
		Logger: vo.Logger, test: &testHooks{},
	}
	o.bound()
	v := &verifier{o: &o, res: Verified{ID: vo.ID}, progress: vo.Progress}
	err := v.run(ctx, vo.Quick)
	v.res.Duration = time.Since(start)
	var damaged *DamagedError
	err = stillThere(ctx, &o, err)
	if errors.As(err, &damaged) {
		v.found(damaged, nil)
		err = nil
	}
	v.sort()
	return &v.res, err
}

type verifier struct {
	o        *Options
	progress func(Progress)

	mu  sync.Mutex
	now Progress
	res Verified
}

// objects are the files to look at: each object once, though several entries
// may name it.
func (v *verifier) objects(l *loaded) []*PlannedFile {
	var out []*PlannedFile
	seen := map[string]bool{}
	for _, m := range l.Manifests {
		for i := range m.Files {
			f := &m.Files[i]
			if f.Type != commit.TypeFile || f.Size == 0 || seen[f.Object] {
				continue
			}
			seen[f.Object] = true
			out = append(out, &PlannedFile{Entry: Entry{File: *f, Node: m.Node}})
			v.res.Files++
			v.res.Bytes += f.Size
		}
	}
	return out
}

func (v *verifier) run(ctx context.Context, quick bool) error {
	l, err := load(ctx, v.o)
	if err != nil {
		return err
	}
	v.res.Name = l.Marker.Name
	if err := l.merge(Selection{}); err != nil {
		return err
	}
	files := v.objects(l)
	v.now = Progress{ID: v.o.ID, Phase: PhaseFetch, Files: v.res.Files, Bytes: v.res.Bytes}
	if quick {
		return v.sizes(ctx, files)
	}
	return v.bytes(ctx, files)
}

// bytes reads everything.
func (v *verifier) bytes(ctx context.Context, files []*PlannedFile) error {
	x := &fetcher{
		id: v.o.ID, bucket: v.o.Store.Bucket(), key: v.o.Store.Key, wait: backoff,
		pool: newBuffers(v.o.Concurrency), spare: newBuffers(0), pace: &pace{}, // no second request: nothing is in a hurry
		count: v.advance,
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(v.o.Concurrency)
	for _, f := range files {
		for i := range f.Digest {
			if gctx.Err() != nil {
				break
			}
			g.Go(func() error {
				err := x.chunk(gctx, f, i, nowhere{})
				var damaged *DamagedError
				if errors.As(err, &damaged) {
					v.found(damaged, &f.File)
					return nil
				}
				return err
			})
		}
	}
	return g.Wait()
}

// nowhere takes what was proven.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) ReadAt([]byte, int64) (int, error)      { return 0, errors.ErrUnsupported }

// sizes compares a listing with what was committed. Objects may lie under other
// commits too; each of their prefixes is listed once.
func (v *verifier) sizes(ctx context.Context, files []*PlannedFile) error {
	there := map[string]int64{}
	for _, p := range prefixes(files) {
		for info, err := range v.o.Store.Bucket().List(ctx, v.o.Store.Key(p)) {
			if err != nil {
				return &StoreError{Op: fmt.Sprintf("list the data of commit %s", v.o.ID), Err: err}
			}
			there[info.Key] = info.Size
		}
	}
	for _, f := range files {
		if size, ok := there[v.o.Store.Key(f.Object)]; !ok || size != f.Size {
			if err := v.again(ctx, f); err != nil {
				return err
			}
			continue
		}
		v.advance(f.Size)
	}
	return nil
}

// again asks for an object itself that a listing did not show as it should be:
// one answer is no proof of damage.
func (v *verifier) again(ctx context.Context, f *PlannedFile) error {
	d := &DamagedError{ID: v.o.ID, Path: f.Path, Object: f.Object, Chunk: -1}
	info, err := v.o.Store.Bucket().Stat(ctx, v.o.Store.Key(f.Object))
	switch {
	case err == nil && info.Size == f.Size:
		v.advance(f.Size)
		return nil
	case err == nil:
		d.Reason = fmt.Sprintf("the object has %d bytes, committed were %d", info.Size, f.Size)
	case errors.Is(err, blob.ErrNotExist):
		d.Reason, d.Err = "the object is missing", err
	default:
		return &StoreError{Op: fmt.Sprintf("look for %q of commit %s", f.Path, v.o.ID), Err: err}
	}
	v.found(d, &f.File)
	return nil
}

// prefixes are the folders of commits that hold the files, ascending.
func prefixes(files []*PlannedFile) []string {
	var out []string
	for _, f := range files {
		if o, ok := commit.ParseKey(f.Object); ok {
			out = append(out, "data/"+o.ID.String()+"/")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// found notes damage, once per file.
func (v *verifier) found(d *DamagedError, f *commit.File) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, was := range v.res.Damaged {
		if was.Object == d.Object {
			if d.Chunk < was.Chunk {
				v.res.Damaged[i] = d
			}
			return
		}
	}
	if len(v.res.Damaged) == maxFindings {
		return
	}
	v.res.Damaged = append(v.res.Damaged, d)
	if f != nil {
		v.res.DamagedFiles = append(v.res.DamagedFiles, *f)
	}
}

func (v *verifier) sort() {
	slices.SortFunc(v.res.Damaged, func(a, b *DamagedError) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Object, b.Object))
	})
	slices.SortFunc(v.res.DamagedFiles, func(a, b commit.File) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Object, b.Object))
	})
}

func (v *verifier) advance(n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now.Done += n
	v.now.Fetched += n
	if v.progress != nil {
		v.progress(v.now)
	}
}
