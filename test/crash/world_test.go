package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/test/stores"
)

// world is one node and its store. A run of it is a training run of its own:
// another name in the store, and a state directory that is empty.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	dir  string
	root string
	tr   *trainer

	url     string
	env     []string
	bucket  blob.Bucket
	objects string // directory in which a run's objects are
	gateway *stores.Gateway

	run   string
	runs  int
	lives []*process // of this run

	seen   map[string]string      // object: version that was compared with the trainer's bytes
	wrote  map[string]string      // data object: version that was first seen
	sent   map[string]sentObj     // path: what a journal had down as sent when the program was killed
	begun  map[string]journalLine // path: an upload of which a part was sent when the program was killed
	head   commit.ID
	landed map[string]int // kills, by what they interrupted
}

// sentObj is a file of which a journal says that it was sent whole.
type sentObj struct {
	ident   ident
	objects int // that carried the path in the bucket when that was first seen
}

// storeKinds are the stores that every test runs on.
var storeKinds = []string{"file", "s3"}

// newWorld makes a node with an empty root. Its moments follow from the seed
// and the test's name.
func newWorld(t *testing.T, kind string) *world {
	t.Helper()
	h := crc32.ChecksumIEEE([]byte(t.Name()))
	t.Logf("-crash.seed=%d", *seedFlag)
	dir := t.TempDir()
	w := &world{
		t: t, dir: dir, root: filepath.Join(dir, "out"),
		rng:    rand.New(rand.NewPCG(uint64(*seedFlag), uint64(h))),
		landed: map[string]int{},
	}
	w.tr = newTrainer(t, w.root)
	var err error
	switch kind {
	case "file":
		w.objects = filepath.Join(dir, "store")
		w.url = (&url.URL{Scheme: "file", Path: w.objects}).String()
		var b *fileblob.Bucket
		if b, err = fileblob.Open(w.objects, &fileblob.Options{Create: true}); err == nil {
			t.Cleanup(func() { b.Close() })
		}
		w.bucket = b
	case "s3":
		w.gateway = stores.Versitygw(t)
		w.env = w.gateway.Env()
		name := w.gateway.Bucket(t, "ckpt")
		w.url = w.gateway.URL(name, "team")
		w.objects = filepath.Join(w.gateway.DataDir(), name, "team")
		w.bucket, err = s3blob.Open(t.Context(), w.url, s3blob.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.tell)
	w.newRun()
	return w
}

// newRun begins another run: what the one before left on this node and in the
// store is thrown away.
func (w *world) newRun() {
	w.t.Helper()
	if w.run != "" {
		if err := errors.Join(os.RemoveAll(w.state()), os.RemoveAll(filepath.Join(w.objects, w.run))); err != nil {
			w.t.Fatal(err)
		}
	}
	w.runs++
	w.lives = nil
	w.run = fmt.Sprintf("run-%d", w.runs)
	w.seen, w.wrote, w.sent, w.begun, w.head = map[string]string{}, map[string]string{}, map[string]sentObj{}, map[string]journalLine{}, commit.ID{}
}

// tell logs what the program said in the present run, if the test failed.
func (w *world) tell() {
	if !w.t.Failed() {
		return
	}
	for i, p := range w.lives {
		p.kill()
		w.t.Logf("life %d of %s, %s from %s:\n%s", i+1, w.run, p.cmd.Args[1], p.started.UTC().Format(time.RFC3339Nano), p.log.Bytes())
	}
}

func (w *world) state() string { return w.root + ".ckptsync" }

func (w *world) store() *commit.Store {
	w.t.Helper()
	s, err := commit.NewStore(w.bucket, w.run)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// within is a random moment in a span.
func (w *world) within(span time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(span)))
}

// eventually waits until done says so.
func (w *world) eventually(what string, done func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // another process works on it
	}
}

// span measures how long a command takes from its start until all three steps
// are committed, when it is left alone: the median of three, or one look in
// the short slice.
func (w *world) span(command string) time.Duration {
	w.t.Helper()
	var took []time.Duration
	looks := 1
	if *killsFlag > 0 {
		looks = 3
	}
	for range looks {
		p := w.start(command, w.root)
		w.eventually("three commits", func() bool { return w.committed() == 3 })
		took = append(took, time.Since(p.started))
		p.kill()
		w.check()
		w.newRun()
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// committed counts markers, cheaply: by files where the store is a directory.
func (w *world) committed() int {
	ms, err := filepath.Glob(filepath.Join(w.objects, w.run, "commits", "*.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(ms)
}

// journalled are the lines that the journals of this node have, as far as
// they check out.
func (w *world) journalled() []journalLine {
	w.t.Helper()
	names, err := filepath.Glob(filepath.Join(w.state(), "journal", "*", "*.jsonl"))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []journalLine
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			w.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			sum, body, _ := strings.Cut(line, " ")
			body, whole := strings.CutSuffix(body, "\n")
			want, err := strconv.ParseUint(sum, 16, 32)
			if !whole || err != nil || uint32(want) != crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)) {
				break // torn by the kill: the rest counts as never written
			}
			var l journalLine
			if err := json.Unmarshal([]byte(body), &l); err != nil {
				w.t.Fatalf("%s: a line with a right checksum is no record: %v", n, err)
			}
			out = append(out, l)
		}
	}
	return out
}

// journalLine is a record of a journal, as far as the test needs it.
type journalLine struct {
	Kind   string `json:"k"`
	Path   string `json:"path"`
	Ident  ident  `json:"ident"`
	Object string `json:"object"`
	Upload string `json:"upload"`
}

// ident is the identity of a local file.
type ident struct {
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"`
	Inode uint64 `json:"ino"`
}

// phase says what a kill interrupted, by what it left.
func (w *world) phase(v *commit.View) string {
	if len(v.Commits) >= 3 {
		return "idle"
	}
	if _, err := os.Stat(filepath.Join(w.state(), "attempt.json")); err != nil {
		return "start"
	}
	parts, err := w.store().AllParts(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(parts) > len(v.Commits) {
		return "sealed"
	}
	committed := map[string]bool{}
	for _, c := range v.Commits {
		committed[fmt.Sprintf("checkpoint-%d/", c.Step)] = true
	}
	phase := "between"
	for _, l := range w.journalled() {
		step, _, _ := strings.Cut(l.Path, "/")
		switch {
		case committed[step+"/"]:
		case l.Kind == "file", l.Kind == "upload":
			return "sending"
		}
	}
	if held, err := filepath.Glob(filepath.Join(w.state(), "holds", "*")); err == nil && len(held) > 0 {
		phase = "held"
	}
	return phase
}

// during counts the kills that landed while an upload was under way: from the
// first hold to the last marker.
func (w *world) during() int {
	return w.landed["held"] + w.landed["sending"] + w.landed["sealed"] + w.landed["between"]
}
