package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// Cases of public reports, as far as they concern the engine; each name has
// the number of its report.

func mkfile(t *testing.T, path string, data string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(data), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestO03StagingDirectories(t *testing.T) {
	w := newWorld(t)
	full := layouttest.HFFiles(49)
	staging := filepath.Join(w.root, "tmp-checkpoint-49")
	e := w.engine()
	defer e.Close()
	for _, f := range full { // (a) written slowly, looked at in between
		if err := layouttest.WriteFiles(staging, []layouttest.File{f}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(staging, filepath.Join(w.root, "checkpoint-49")); err != nil {
		t.Fatal(err)
	}
	// (b) half a step, and a staging directory that is never renamed
	w.step(50, layouttest.Without("optimizer.pt", "scheduler.pt", "trainer_state.json"))
	if err := layouttest.WriteFiles(filepath.Join(w.root, "tmp-checkpoint-s0yubq"), layouttest.HFFiles(50)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("49-a1-r0")
	for _, k := range w.objects() {
		if strings.Contains(k, "tmp-") {
			t.Errorf("object %s", k)
		}
	}
}

// staleFS shows an old state of some files for a while, as a multi-head NFS
// filer does to another client.
func TestO10StaleViewOfAnotherNode(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	start := w.clock.now()
	stale := func() bool { return w.clock.now().Sub(start) < 30*time.Second }
	settle := 10 * time.Second
	w.tune = func(c *Config) {
		c.Settle = &settle
		c.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			tr, err := tree.Capture(root, name, skip)
			if err == nil && stale() {
				tr.Entries = slices.DeleteFunc(tr.Entries, func(e tree.Entry) bool { return strings.HasSuffix(e.Path, "optimizer.pt") })
				for i := range tr.Entries {
					if strings.HasSuffix(tr.Entries[i].Path, "model.safetensors") {
						tr.Entries[i].Size = 0
					}
				}
			}
			return tr, err
		}
		c.fsys = func(root string) fs.FS {
			if stale() {
				return staleFS{os.DirFS(root)}
			}
			return os.DirFS(root)
		}
	}
	e := w.engine()
	defer e.Close()
	for stale() {
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantCommits()
		w.clock.after(2 * time.Second)
	}
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	// The files' mtimes are long past, and yet it is not settled.
	if l := e.lives["checkpoint-100"]; l.stage != Settling {
		t.Fatalf("at the first true view: stage %s, want settling", l.stage)
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0")
}

type staleFS struct{ fs.FS }

func (s staleFS) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "optimizer.pt") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return s.FS.Open(name)
}

func (s staleFS) ReadDir(name string) ([]fs.DirEntry, error) {
	es, err := fs.ReadDir(s.FS, name)
	return slices.DeleteFunc(es, func(e fs.DirEntry) bool { return e.Name() == "optimizer.pt" }), err
}

func TestO11JitteringTimes(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	looks := 0
	w.tune = func(c *Config) {
		c.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			tr, err := tree.Capture(root, name, skip)
			looks++
			if err == nil && looks%2 == 0 {
				for i := range tr.Entries {
					tr.Entries[i].Mod += int64(2 * time.Millisecond)
					tr.Entries[i].MTime += int64(2 * time.Millisecond)
				}
			}
			return tr, err
		}
	}
	e := w.engine()
	defer e.Close()
	for range 60 {
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(w.commits()) > 0 {
			break
		}
		w.clock.after(time.Second)
	}
	w.wantCommits("100-a1-r0")
	for range 5 { // and then nothing more
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.after(time.Second)
	}
	w.wantCommits("100-a1-r0")
	// Until it is saved again, in place, the files as large as they were.
	w.step(100, layouttest.Seed(9), layouttest.At(time.Now()))
	w.looks(e, 30)
	w.wantCommits("100-a1-r0", "100-a1-r1")
	if !same(w.content(id(100, 1, 1)), files(t, w.root, "checkpoint-100")) {
		t.Error("the commit is not the step on the disk")
	}
}

func TestO11AFileThatIsWrittenIsNotJitter(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	e := w.engine()
	defer e.Close()
	for i := range 60 { // the same size, written again and again: its time goes on with the clock
		at := w.clock.now()
		p := filepath.Join(dir, "model.safetensors")
		if err := os.Chtimes(p, at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, "trainer_state.json"), at, at); err != nil {
			t.Fatal(err)
		}
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
		if l := e.lives["checkpoint-100"]; l.stage == Held || l.jitter.loose {
			t.Fatalf("look %d: stage %s, loose %v", i, l.stage, l.jitter.loose)
		}
		w.clock.after(time.Second)
	}
}

func TestO25LinksAreCommittedAsLinks(t *testing.T) {
	w := newWorld(t)
	secret := filepath.Join(w.dir, "other", "secret.bin")
	mkfile(t, secret, "secret")
	dir := w.step(100)
	for name, target := range map[string]string{
		"best.safetensors": "model.safetensors", // inside
		"bad.ckpt":         "logs/x/epoch=1.ckpt",
		"out.ckpt":         "../../other/secret.bin",
		"a":                "b",
		"b":                "a",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.push()
	w.wantCommits("100-a1-r0")
	_, parts, err := w.store().Load(t.Context(), id(100, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]string{}
	for _, f := range parts[0].Files {
		if f.Type == commit.TypeLink {
			targets[filepath.Base(f.Path)] = f.Target
		}
	}
	if targets["best.safetensors"] != "model.safetensors" {
		t.Errorf("links %v: the one inside is not kept as it is", targets)
	}
	if _, ok := targets["out.ckpt"]; ok {
		t.Errorf("links %v: one leads out of the root", targets)
	}
	for p, data := range w.content(id(100, 1, 0)) {
		if strings.Contains(string(data), "secret") {
			t.Errorf("%s holds bytes from outside the root", p)
		}
	}
	n := w.fresh()
	n.restore(RestoreOptions{})
	if got, err := os.Readlink(filepath.Join(n.root, "checkpoint-100", "best.safetensors")); err != nil || got != "model.safetensors" {
		t.Errorf("restored link: %q, %v", got, err)
	}
}

func TestO27OddNamesRoundTrip(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	names := []string{
		".metadata", "..x/part.bin", "a+b#c%20.bin", "x y.bin", "new\nline.bin", "bad\xff\xfeutf8.bin",
		strings.Repeat("n", 255), strings.Repeat("d", 150) + "/" + strings.Repeat("e", 200), "file.attrs", `back\slash`, "~tilde", "%41",
		strings.Repeat("\xff", 200),
	}
	for i, n := range names {
		content := fmt.Sprintf("content %d", i)
		if n == ".metadata" {
			content = "\x80\x02}." // the one name whose content is judged
		}
		mkfile(t, filepath.Join(dir, n), content)
	}
	now := time.Now() // the evidence is the newest
	if err := os.Chtimes(filepath.Join(dir, "trainer_state.json"), now.Add(time.Hour), now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if o := w.push()["checkpoint-100"]; o.Stage != Committed {
		t.Fatalf("%+v", o)
	}
	n := w.fresh()
	n.restore(RestoreOptions{})
	if !same(files(t, w.root, "checkpoint-100"), files(t, n.root, "checkpoint-100")) {
		t.Error("what came back is not what was saved")
	}
}

func TestO29RootThroughALink(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	link := filepath.Join(w.dir, "link")
	if err := os.Symlink(w.dir, link); err != nil {
		t.Fatal(err)
	}
	w.root = filepath.Join(link, "out")
	w.push()
	w.wantCommits("100-a1-r0")
	for p := range w.content(id(100, 1, 0)) {
		if !strings.HasPrefix(p, "checkpoint-100/") {
			t.Errorf("path %s is not relative to the root", p)
		}
	}
}

// watching runs the daemon in real time until the steps are committed.
func (w *world) watching(interval time.Duration, do func(), want ...string) {
	w.t.Helper()
	committed := make(chan string, 100)
	settle := 50 * time.Millisecond
	tune := w.tune
	w.tune = func(c *Config) {
		c.now, c.after, c.ScanInterval, c.Settle = nil, nil, interval, &settle
		inner := c.Reporter
		c.Reporter = ReporterFunc(func(e Event) {
			inner.Report(e)
			if s, ok := e.(StageChanged); ok && s.Stage == Committed {
				committed <- s.Step
			}
		})
		if tune != nil {
			tune(c)
		}
	}
	e := w.engine()
	defer e.Close()
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Watch(ctx, w.t.Context(), 10*time.Second) }()
	do()
	timeout := time.After(2 * time.Minute)
	for left := slices.Clone(want); len(left) > 0; {
		select {
		case s := <-committed:
			left = slices.DeleteFunc(left, func(n string) bool { return n == s })
		case <-timeout:
			w.t.Fatalf("not committed in time: %v", left)
		}
	}
	stop()
	if err := <-ended; err != nil {
		w.t.Fatal(err)
	}
}

func TestO40NoEventsAtAll(t *testing.T) {
	w := newWorld(t)
	w.tune = func(c *Config) { c.events = func() (*watch.Watcher, error) { return nil, nil } }
	w.watching(20*time.Millisecond, func() { w.step(100) }, "checkpoint-100")
	w.wantCommits("100-a1-r0")
}

func TestO41InotifyLimitIsNamed(t *testing.T) {
	w := newWorld(t)
	w.tune = func(c *Config) {
		c.events = func() (*watch.Watcher, error) {
			return nil, fmt.Errorf("the limit of inotify instances is reached: %w", syscall.EMFILE)
		}
	}
	w.watching(20*time.Millisecond, func() { w.step(100) }, "checkpoint-100")
	told := 0
	for _, e := range w.events {
		if n, ok := e.(Noticed); ok && strings.Contains(n.Text, "inotify") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told of the limit %d times, want once", told)
	}
}

func TestO42BurstOfFilesIsNotMissed(t *testing.T) {
	w := newWorld(t)
	// Nothing but events, and the settling that they start, leads to a look.
	w.watching(time.Hour, func() {
		for n := 100; n <= 500; n += 100 {
			w.step(n)
		}
	}, "checkpoint-100", "checkpoint-200", "checkpoint-300", "checkpoint-400", "checkpoint-500")
	w.wantCommits("100-a1-r0", "200-a1-r0", "300-a1-r0", "400-a1-r0", "500-a1-r0")
}

func TestO46UnreadableFile(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("as root nothing is unreadable: a file system that denies stands in")
	}
	w := newWorld(t)
	w.step(100)
	w.step(200)
	denied := true
	w.tune = func(c *Config) {
		c.fsys = func(root string) fs.FS { return deniedFS{os.DirFS(root), &denied} }
	}
	e := w.engine()
	defer e.Close()
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0")
	w.clock.after(time.Minute) // by then it is no save under way
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	told := w.reasons("checkpoint-200", Incomplete)
	if len(told) != 1 || !strings.Contains(told[0], "optimizer.pt") || !strings.Contains(told[0], "permission") {
		t.Errorf("told %q", told)
	}
	denied = false // chmod 0644: the mode is part of what is looked at
	if err := os.Chmod(filepath.Join(w.root, "checkpoint-200", "optimizer.pt"), 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0")
}

type deniedFS struct {
	fs.FS
	denied *bool
}

func (d deniedFS) Open(name string) (fs.File, error) {
	if *d.denied && strings.HasSuffix(name, "checkpoint-200/optimizer.pt") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.FS.Open(name)
}

func TestO50EmptyDirectoryRoundTrip(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	empty := filepath.Join(dir, "dataloader", "worker_3")
	if err := errors.Join(os.MkdirAll(empty, 0o750), os.Chmod(empty, 0o750)); err != nil {
		t.Fatal(err)
	}
	w.push()
	n := w.fresh()
	n.restore(RestoreOptions{})
	fi, err := os.Stat(filepath.Join(n.root, "checkpoint-100", "dataloader", "worker_3"))
	if err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o750 {
		t.Errorf("%v %v", fi, err)
	}
}

// unconditional is a store that does not know of create-if-absent.
type unconditional struct {
	blob.Bucket
	lies bool
}

func (u unconditional) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	if o != nil && o.IfAbsent {
		if !u.lies {
			return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "501 Not Implemented")
		}
		p := *o
		p.IfAbsent, o = false, &p
	}
	return u.Bucket.Put(ctx, key, src, o)
}

func TestO17StoreWithoutCreateIfAbsent(t *testing.T) {
	for _, lies := range []bool{false, true} {
		t.Run(fmt.Sprintf("lies=%v", lies), func(t *testing.T) {
			w := newWorld(t)
			w.bucket = unconditional{w.bucket, lies}
			w.step(100)
			w.push()
			w.step(200)
			w.push()
			var steps []string // the attempt's number has the writer's token in it
			for _, c := range w.view().Commits {
				steps = append(steps, fmt.Sprintf("%d-r%d", c.Step, c.Revision))
			}
			if slices.Sort(steps); !slices.Equal(steps, []string{"100-r0", "200-r0"}) {
				t.Fatalf("commits %v", steps)
			}
			warned := 0
			for _, e := range w.events {
				if n, ok := e.(Noticed); ok && n.Path == "store" && strings.Contains(n.Text, "create-if-absent") {
					warned++
				}
			}
			if warned != 2 { // once by each start
				t.Errorf("warned %d times in two starts", warned)
			}
			n := w.fresh()
			if res := n.restore(RestoreOptions{}); res.ID.Step != 200 || res.Metadata["source_run"] != nil {
				t.Errorf("%+v", res)
			}
			for _, k := range w.objects() {
				if strings.Contains(k, "probe") {
					t.Errorf("left behind: %s", k)
				}
			}
		})
	}
}

func TestO17MarkersAreSignedAllTheSame(t *testing.T) {
	w := newWorld(t)
	w.bucket = unconditional{w.bucket, false}
	key, err := commit.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	w.tune = func(c *Config) { c.Signer, c.Trust = key, []commit.PublicKey{key.Public()} }
	w.step(100)
	w.push()
	n := w.fresh()
	n.tune = w.tune
	if res := n.restore(RestoreOptions{}); res.ID.Step != 100 {
		t.Errorf("%+v", res)
	}
}

func TestO02NoStepHasEverQualified(t *testing.T) {
	w := newWorld(t)
	for n := 100; n <= 500; n += 100 {
		w.step(n, layouttest.PEFT(), layouttest.Without("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"))
	}
	e := w.engine()
	defer e.Close()
	for pass := range 5 {
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.after(time.Minute)
		told := 0
		for _, ev := range w.events {
			if n, ok := ev.(Noticed); ok && strings.HasPrefix(n.Path, "layout ") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("after %d passes it was told %d times that no step has ever qualified, want once", pass+1, told)
		}
	}
	w.wantCommits()
}
