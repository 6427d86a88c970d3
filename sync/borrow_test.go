package syncer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// plain makes w's steps directories epoch-N that DONE ends, or files
// epoch-N.bin with whatever is in them.
func (w *world) plain() { w.tune = w.layouts }

func (w *world) layouts(c *Config) {
	w.t.Helper()
	c.Layouts = nil
	for _, s := range []layout.Spec{
		{Name: "plain", Step: "epoch-{step}", Marker: "DONE", Empty: []string{"empty"}},
		{Name: "plain-file", Step: "epoch-{step}.bin", Kind: "file"},
	} {
		l, err := layout.New(s)
		if err != nil {
			w.t.Fatal(err)
		}
		c.Layouts = append(c.Layouts, l)
	}
}

// content of one step, by path relative to it.
type content map[string][]byte

// save writes a step of that content, DONE last.
func (w *world) save(n int, c content) string {
	w.t.Helper()
	dir := filepath.Join(w.root, fmt.Sprintf("epoch-%d", n))
	for name, data := range c {
		mkfile(w.t, filepath.Join(dir, name), string(data))
	}
	mkfile(w.t, filepath.Join(dir, "DONE"), "")
	return dir
}

// owned are the data objects that a commit sent itself, by path below the root.
func (w *world) owned(id commit.ID) []string {
	var out []string
	for _, k := range w.objects() {
		if o, ok := commit.ParseKey(strings.TrimPrefix(k, "exp1/")); ok && o.Kind == commit.KindData && o.ID == id {
			out = append(out, o.Path)
		}
	}
	return out
}

// owners are the commits that sent the objects that a commit names, by path.
func (w *world) owners(id commit.ID) map[string]commit.ID {
	w.t.Helper()
	_, parts, err := w.store().Load(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]commit.ID{}
	for _, f := range parts[0].Files {
		if o, ok := commit.ParseKey(f.Object); ok {
			out[f.Path] = o.ID
		}
	}
	return out
}

// chunk is the size of a chunk of a small file.
var chunk = int(commit.ChunkSize(1))

func TestUnchangedFilesAreNamedNotSent(t *testing.T) {
	w := newWorld(t)
	w.plain()
	base := layouttest.Noise(1, 2*chunk+1000)
	step := func(n int) content {
		return content{"base.bin": base, "sub/config.json": []byte("{}"), "empty": nil, "adapter.bin": layouttest.Noise(uint64(n), 5000)}
	}
	for n := 1; n <= 3; n++ {
		w.save(n, step(n))
		o := w.push()[fmt.Sprintf("epoch-%d", n)]
		if o.Stage != Committed || o.Uploaded+o.Reused != o.Bytes {
			t.Fatalf("%+v", o)
		}
		if n > 1 && (o.Uploaded != 5000 || !slices.Equal(w.owned(o.ID), []string{fmt.Sprintf("epoch-%d/adapter.bin", n)})) {
			t.Errorf("step %d sent %d bytes, objects %q", n, o.Uploaded, w.owned(o.ID))
		}
		if !same(w.content(o.ID), files(t, w.root, o.Step)) {
			t.Errorf("step %d differs from the disk", n)
		}
	}
	// No chains: the third names what the first sent.
	own := w.owners(id(3, 1, 0))
	for _, p := range []string{"epoch-3/base.bin", "epoch-3/sub/config.json", "epoch-3/empty", "epoch-3/DONE"} {
		if own[p] != id(1, 1, 0) {
			t.Errorf("%s is of %v", p, own[p])
		}
	}

	// A restore brings all of it; what is trained then borrows from its base.
	n := w.fresh()
	n.plain()
	if res := n.restore(RestoreOptions{}); res.ID != id(3, 1, 0) || !same(files(t, n.root, "epoch-3"), files(t, w.root, "epoch-3")) {
		t.Fatalf("%+v", res)
	}
	n.save(4, step(4))
	if o := n.push()["epoch-4"]; o.ID != id(4, 2, 0) || o.Uploaded != 5000 || n.owners(o.ID)["epoch-4/base.bin"] != id(1, 1, 0) {
		t.Errorf("%+v", o)
	}
}

func TestUnchangedStepSendsNothing(t *testing.T) {
	w := newWorld(t)
	w.plain()
	m := meterblob.New(w.bucket, nil)
	w.bucket = m
	c := content{"big.bin": layouttest.Noise(1, chunk+1)}
	for i := range 3 * fewObjects {
		c[fmt.Sprintf("part-%d", i)] = layouttest.Noise(uint64(i), 100)
	}
	w.save(1, c)
	w.push()
	before := m.Stats()
	w.save(2, c)
	o := w.push()["epoch-2"]
	if o.Stage != Committed || !o.Now || o.Uploaded != 0 || o.Reused != o.Bytes || o.Bytes < int64(chunk) {
		t.Errorf("%+v", o)
	}
	if own := w.owned(id(2, 1, 0)); len(own) > 0 {
		t.Errorf("sent %q", own)
	}
	after := m.Stats()
	if n := after.Up - before.Up; n > 64<<10 {
		t.Errorf("%d bytes were sent, for manifest and marker", n)
	}
	stats, puts := meterblob.Calls{Op: "stat", Class: blob.ClassName(nil)}, meterblob.Calls{Op: "put", Class: blob.ClassName(nil)}
	if after.Calls[stats]-before.Calls[stats] > fewObjects || after.Calls[puts]-before.Calls[puts] > 5 {
		t.Errorf("calls %v, before %v: not one listing for all that is borrowed", after.Calls, before.Calls)
	}

	// The same step again is no revision.
	if err := os.RemoveAll(filepath.Join(w.root, "epoch-2")); err != nil {
		t.Fatal(err)
	}
	w.push()
	w.save(2, c)
	if o := w.push()["epoch-2"]; o.Stage != Committed || o.Now || o.ID != id(2, 1, 0) {
		t.Errorf("%+v", o)
	}
	w.wantCommits("1-a1-r0", "2-a1-r0")
}

func TestChangedFileIsSentWhole(t *testing.T) {
	old := layouttest.Noise(1, 4*chunk+1000)
	change := func(at int) []byte {
		b := bytes.Clone(old)
		b[at] ^= 1
		return b
	}
	for name, data := range map[string][]byte{
		"first chunk": change(0), "third chunk": change(2*chunk + 5), "last byte": change(len(old) - 1), "longer": append(bytes.Clone(old), 1),
	} {
		for _, store := range []string{"parts", "no parts"} {
			t.Run(name+", "+store, func(t *testing.T) {
				w := newWorld(t)
				w.plain()
				if store == "no parts" {
					w.bucket = noParts{w.bucket}
				}
				w.save(1, content{"model.bin": old, "small": []byte("old")})
				w.push()
				w.save(2, content{"model.bin": data, "small": []byte("new")})
				o := w.push()["epoch-2"]
				if o.Stage != Committed || o.Uploaded != o.Bytes || o.Reused != 0 {
					t.Errorf("%+v", o)
				}
				if own := w.owned(o.ID); !slices.Equal(own, []string{"epoch-2/model.bin", "epoch-2/small"}) {
					t.Errorf("sent %q", own)
				}
				if !same(w.content(o.ID), files(t, w.root, "epoch-2")) {
					t.Error("the commit differs from the disk")
				}
			})
		}
	}
}

// noParts is a bucket without uploads in parts.
type noParts struct{ blob.Bucket }

func (noParts) Upload(_ context.Context, key, _ string, _ *blob.UploadOptions) (blob.Upload, error) {
	return nil, blob.Errorf(blob.ErrUnsupported, "upload", key, "no parts here")
}

func TestStepThatIsOneFileIsNamedToo(t *testing.T) {
	w := newWorld(t)
	w.plain()
	mkfile(t, filepath.Join(w.root, "epoch-1.bin"), "the same")
	w.push()
	mkfile(t, filepath.Join(w.root, "epoch-2.bin"), "the same")
	if o := w.push()["epoch-2.bin"]; o.Stage != Committed || o.Uploaded != 0 || w.owners(o.ID)["epoch-2.bin"] != id(1, 1, 0) {
		t.Errorf("%+v", o)
	}
}

func TestWhatCannotBeBorrowedIsSent(t *testing.T) {
	base := layouttest.Noise(1, chunk+1000)
	object := func(w *world, path string) string {
		for _, k := range w.objects() {
			if strings.HasSuffix(k, path) {
				return k
			}
		}
		t.Fatalf("no object %s", path)
		return ""
	}
	mark := func(w *world, id commit.ID) error {
		return w.store().PutMark(t.Context(), &commit.Mark{Format: commit.FormatMark, ID: id, Word: commit.Damaged, Reason: "test", Token: "t", Created: commit.At(time.Now())})
	}
	for name, spoil := range map[string]func(w *world) error{
		"lender retired": func(w *world) error { return w.retire(id(2, 1, 0)) },
		"lender damaged": func(w *world) error { return mark(w, id(2, 1, 0)) },
		"sender damaged": func(w *world) error { return mark(w, id(1, 1, 0)) },
		"object gone":    func(w *world) error { return w.bucket.Delete(t.Context(), object(w, "epoch-1/base.bin")) },
		"object short": func(w *world) error {
			w.bucket.(*memblob.Bucket).Set(object(w, "epoch-1/base.bin"), []byte("short"), false)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.plain()
			for n := 1; n <= 2; n++ {
				w.save(n, content{"base.bin": base, "step": fmt.Append(nil, n)})
				w.push()
			}
			dir := w.save(3, content{"base.bin": base, "step": []byte("3")})
			want := files(t, w.root, "epoch-3")
			e := w.engine()
			e.cfg.hook = at("sealed", 1, func() {
				// Just then; and the trainer deletes the step. It must not be lost.
				if err := spoil(w); err != nil {
					t.Error(err)
				}
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			_, err := e.Push(t.Context())
			if err := errors.Join(err, e.Close()); err != nil {
				t.Fatal(err)
			}
			if got := w.content(id(3, 1, 1)); !same(got, want) {
				t.Fatalf("not committed whole: %d files", len(got))
			}
			for p, owner := range w.owners(id(3, 1, 1)) {
				if owner != id(3, 1, 1) {
					t.Errorf("%s is still of %v", p, owner)
				}
			}
			if slices.Contains(w.commits(), "3-a1-r0") {
				t.Error("what borrowed from a lost lender was committed")
			}
			// Whoever comes next borrows from the one that is whole.
			w.save(4, content{"base.bin": base, "step": []byte("4")})
			if o := w.push()["epoch-4"]; w.owners(o.ID)["epoch-4/base.bin"] != id(3, 1, 1) {
				t.Errorf("%+v", o)
			}
		})
	}
}

// retire ends a commit as retention does, and leaves its data.
func (w *world) retire(id commit.ID) error {
	s := w.store()
	if err := s.PutTomb(w.t.Context(), &commit.Tomb{Format: commit.FormatTomb, ID: id, Token: "t", Created: commit.At(time.Now())}); err != nil {
		return err
	}
	return s.DeleteMarker(w.t.Context(), id)
}

func TestASenderThatIsRetiredIsStillNamed(t *testing.T) {
	w := newWorld(t)
	w.plain()
	base := []byte("frozen")
	for n := 1; n <= 2; n++ {
		w.save(n, content{"base.bin": base})
		w.push()
	}
	if err := w.retire(id(1, 1, 0)); err != nil {
		t.Fatal(err)
	}
	for n := 3; n <= 4; n++ {
		w.save(n, content{"base.bin": base})
		if o := w.push()[fmt.Sprintf("epoch-%d", n)]; o.ID != id(int64(n), 1, 0) || o.Uploaded != 0 {
			t.Errorf("%+v: what the commit before names was sent again", o)
		}
	}
}

func TestADamagedCommitLendsNothing(t *testing.T) {
	w := newWorld(t)
	w.plain()
	base := []byte("frozen")
	for n := 1; n <= 2; n++ {
		w.save(n, content{"base.bin": base})
		w.push()
	}
	// A restore of the second found the object of the first broken.
	err := w.store().PutMark(t.Context(), &commit.Mark{Format: commit.FormatMark, ID: id(2, 1, 0), Word: commit.Damaged, Reason: "test", Token: "t", Created: commit.At(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	w.save(3, content{"base.bin": base})
	w.push()
	for _, n := range []commit.ID{id(2, 1, 1), id(3, 1, 0)} { // the second is committed again
		o := w.owners(n)[fmt.Sprintf("epoch-%d/base.bin", n.Step)]
		if o != id(2, 1, 1) && o != id(3, 1, 0) {
			t.Errorf("%s names what %s sent", n, o)
		}
	}
}

func TestSealedBeforeAKillAndLenderRetired(t *testing.T) {
	w := newWorld(t)
	w.plain()
	w.save(1, content{"base.bin": []byte("frozen")})
	w.push()
	w.save(2, content{"base.bin": []byte("frozen")})
	ctx, kill := context.WithCancel(t.Context())
	e := w.engine()
	e.cfg.hook = at("sealed", 1, kill)
	if _, err := e.Push(ctx); err == nil {
		t.Fatal("the push was not interrupted")
	}
	e.Close()
	if err := w.retire(id(1, 1, 0)); err != nil {
		t.Fatal(err)
	}
	if o := w.push()["epoch-2"]; o.Stage != Committed || o.ID != id(2, 1, 1) || o.Uploaded != o.Bytes || o.Reused != 0 || w.owners(o.ID)["epoch-2/base.bin"] != o.ID {
		t.Errorf("%+v", o)
	}
	w.wantCommits("2-a1-r1")
}

func TestBehindTheNewestStepIsSentFirst(t *testing.T) {
	w := newWorld(t)
	w.plain()
	for n := 1; n <= 4; n++ {
		w.save(n, content{"model.bin": layouttest.Noise(uint64(n), 100)})
	}
	e := w.engine()
	defer e.Close()
	// All of them are held before the first is sent, as after an outage.
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	w.clock.after(time.Hour)
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	var order []int64
	for _, ev := range w.events {
		if c, ok := ev.(StageChanged); ok && c.Stage == Committed {
			order = append(order, c.Number)
		}
	}
	if !slices.Equal(order, []int64{4, 3, 2, 1}) {
		t.Errorf("committed in the order %v", order)
	}
}
