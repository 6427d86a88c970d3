package crash

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// check reads the bucket back and holds it against the promises. It returns
// what it saw.
func (w *world) check() *commit.View {
	w.t.Helper()
	v, err := w.store().View(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	contents := map[string]commit.ID{}
	whole := map[commit.ID]bool{}
	for _, c := range v.Commits {
		m := w.checkCommit(c.ID)
		whole[c.ID] = true
		key := content(m)
		if twin, ok := contents[key]; ok {
			w.t.Errorf("%s and %s commit the same content of %s", twin, c.ID, m.Name)
		}
		contents[key] = c.ID
	}
	head, ok := v.Head()
	if ok && !whole[head] || !ok && len(v.Commits) > 0 {
		w.t.Errorf("head %v (%v) of %d commits", head, ok, len(v.Commits))
	}
	if w.head.Step > head.Step || w.head.Step == head.Step && w.head.Attempt == head.Attempt && w.head.Revision > head.Revision {
		w.t.Errorf("the head went back from %v to %v", w.head, head)
	}
	w.head = head
	w.checkNotSentAgain()
	w.checkGoesOn()
	return v
}

// content identifies what a commit holds.
func content(m *commit.Manifest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", m.Step, m.Name)
	for i := range m.Files {
		fmt.Fprintf(&b, "%q %v %v\n", m.Files[i].Path, m.Files[i].Type, m.Files[i].Digest)
	}
	return b.String()
}

// checkCommit proves that a commit is, byte for byte, one save of the trainer.
func (w *world) checkCommit(id commit.ID) *commit.Manifest {
	w.t.Helper()
	s := w.store()
	_, parts, err := s.Load(w.t.Context(), id)
	if err != nil {
		w.t.Fatalf("a marker without its parts: %v", err)
	}
	if len(parts) != 1 {
		w.t.Fatalf("%s has %d parts", id, len(parts))
	}
	of, why := w.tr.of(parts[0])
	if why != "" {
		w.t.Fatalf("%s is none of the trainer's %d saves: %s", id, len(w.tr.saves[parts[0].Name]), why)
	}
	for i := range parts[0].Files {
		f := &parts[0].Files[i]
		if f.Type == commit.TypeFile {
			w.checkObject(id, s.Key(f.Object), of[f.Path].data)
		}
	}
	return parts[0]
}

// checkObject compares an object with the trainer's bytes, once per version.
func (w *world) checkObject(id commit.ID, key string, want []byte) {
	w.t.Helper()
	info, err := w.bucket.Stat(w.t.Context(), key)
	if err != nil {
		w.t.Fatalf("commit %s names an object that is not there: %v", id, err)
	}
	version := fmt.Sprint(info.ETag, info.Size, info.ModTime)
	if w.seen[key] == version {
		return
	}
	got, err := blob.ReadAll(w.t.Context(), w.bucket, key, 1<<30)
	if err != nil {
		w.t.Fatalf("commit %s: %v", id, err)
	}
	if !bytes.Equal(got, want) {
		w.t.Fatalf("commit %s: %s is not what the trainer saved", id, key)
	}
	w.seen[key] = version
}

// checkNotSentAgain holds the objects that are in the bucket against what the
// journals had down as sent at the kill before, and notes what they have down
// now. It is called while nothing runs.
func (w *world) checkNotSentAgain() {
	w.t.Helper()
	count := map[string]int{}
	keys := map[string]bool{}
	for o, err := range w.bucket.List(w.t.Context(), w.store().Key("data/")) {
		if err != nil {
			w.t.Fatal(err)
		}
		keys[o.Key] = true
		version := fmt.Sprint(o.ETag, o.Size, o.ModTime)
		if was, ok := w.wrote[o.Key]; ok && was != version {
			w.t.Errorf("%s was written again: a key never carries two contents, and what is whole is not sent again", o.Key)
		}
		w.wrote[o.Key] = version
		// data/<commit>/node-00000.<token>/<path>
		if c := strings.SplitN(strings.TrimPrefix(o.Key, w.run+"/"), "/", 4); len(c) == 4 {
			count[c[3]]++
		}
	}
	now := map[string]sentObj{}
	for _, l := range w.journalled() {
		if l.Kind != "file" {
			continue
		}
		if !keys[w.store().Key(l.Object)] {
			w.t.Errorf("the journal says that %s was sent as %s, which is not there", l.Path, l.Object)
		}
		now[l.Path] = sentObj{l.Ident, count[l.Path]}
	}
	for path, was := range w.sent {
		if !w.newest(path, was.ident) {
			delete(w.sent, path) // the trainer has saved it again
			continue
		}
		if is, ok := now[path]; !ok || count[path] > was.objects {
			w.t.Errorf("%s was sent whole, and after a restart again: %d objects carry it, %d did (journal now: %v)", path, count[path], was.objects, is)
		}
	}
	for path, is := range now {
		if _, ok := w.sent[path]; !ok && w.newest(path, is.ident) {
			w.sent[path] = is
		}
	}
}

// checkGoesOn proves that an upload in parts of which the journal had a part
// down is gone on with, and not begun anew.
func (w *world) checkGoesOn() {
	w.t.Helper()
	lines := w.journalled()
	parted := map[string]bool{}
	for _, l := range lines {
		parted[l.Upload] = parted[l.Upload] || l.Kind == "part"
	}
	for _, l := range lines {
		was, ok := w.begun[l.Path]
		if !ok || l.Ident != was.Ident {
			continue
		}
		if l.Kind == "upload" && l.Upload != was.Upload || l.Kind == "file" && l.Object != was.Object {
			w.t.Errorf("parts of %s had been sent, and after a restart it was begun anew: %+v, then %+v", l.Path, was, l)
		}
	}
	w.begun = map[string]journalLine{}
	for _, l := range lines {
		if l.Kind == "upload" && parted[l.Upload] && w.newest(l.Path, l.Ident) {
			w.begun[l.Path] = l
		}
	}
}

// newest reports whether a file is as the trainer saved it last.
func (w *world) newest(path string, id ident) bool {
	step, _, _ := strings.Cut(path, "/")
	saves := w.tr.saves[step]
	return len(saves) > 0 && saves[len(saves)-1][path].mtime == id.MTime
}

// checkUploads holds the number of objects of files that are sent in parts to
// one a save: an upload is continued, or is not begun.
func (w *world) checkUploads() {
	w.t.Helper()
	for name, saves := range w.tr.saves {
		for _, s := range saves[:1] {
			for p, n := range s {
				if int64(len(n.data)) <= commit.ChunkSize(int64(len(n.data))) {
					continue
				}
				objects, err := filepath.Glob(filepath.Join(w.objects, w.run, "data", "*", "*", filepath.FromSlash(p)))
				if err != nil {
					w.t.Fatal(err)
				}
				if len(objects) > len(saves) {
					w.t.Errorf("%s of %s was sent %d times in parts for %d saves", p, name, len(objects), len(saves))
				}
			}
		}
	}
}

// restore brings the head into a node with an empty disk and compares it with
// the trainer's tree. Then it does so again, and nothing may move.
func (w *world) restore() {
	w.t.Helper()
	dir, err := os.MkdirTemp(w.dir, "node")
	if err != nil {
		w.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, "out")
	first := w.start("restore", root, "--json", "--read-only")
	first.must(w.t)
	name, moved, _ := restored(w.t, first.out.Bytes())
	saves := w.tr.saves[name]
	if len(saves) == 0 {
		w.t.Fatalf("restored %q", name)
	}
	got := readTree(w.t, root, name)
	if why := saves[len(saves)-1].differs(got); why != "" {
		w.t.Fatalf("the restored %s is not the trainer's: %s", name, why)
	}
	if moved == 0 {
		w.t.Errorf("a restore onto an empty disk says that it moved nothing")
	}
	w.onlyWhole(root)
	second := w.start("restore", root, "--json", "--read-only")
	second.must(w.t)
	if _, moved, total := restored(w.t, second.out.Bytes()); moved != 0 || total == 0 {
		w.t.Errorf("a second restore moved %d of %d bytes", moved, total)
	}
}

// onlyWhole proves that nothing under a root looks like a step but whole ones,
// and that nothing else is there.
func (w *world) onlyWhole(root string) {
	w.t.Helper()
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		got, err := tryReadTree(root, e.Name())
		if err != nil {
			w.t.Fatal(err)
		}
		if !slices.ContainsFunc(w.tr.saves[e.Name()], func(s save) bool { return s.differs(got) == "" }) {
			w.t.Fatalf("%s in the root is no whole step", e.Name())
		}
	}
}
