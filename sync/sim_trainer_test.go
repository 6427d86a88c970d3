package syncer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// simTrainer saves steps on a node, in small operations between which anything
// may happen.
type simTrainer struct {
	n     *simNode
	job   int
	step  int64    // the last one that it began to save
	ops   []func() // what is left of the save or the deletion under way
	busy  string   // the step that they are of
	kept  []string // the steps that it has saved and not deleted, oldest first
	whole map[string]*simSave
}

// simDone is the evidence of a step, written last.
const simDone = "DONE"

func simStep(n int64) string { return fmt.Sprintf("s-%d", n) }

// touch gives a path a time of its own.
func (n *simNode) touch(p string) {
	n.w.writes++
	at := time.Now().Add(time.Duration(n.w.writes))
	n.w.must(os.Chtimes(p, at, at))
}

// touched gives times to a path and to the directories above it.
func (n *simNode) touched(p string) {
	for ; len(p) >= len(n.root()); p = filepath.Dir(p) {
		if _, err := os.Lstat(p); err == nil {
			n.touch(p)
		}
	}
}

func (n *simNode) path(rel string) string { return filepath.Join(n.root(), rel) }

func (n *simNode) write(rel string, data []byte) {
	p := n.path(rel)
	n.w.must(os.MkdirAll(filepath.Dir(p), 0o755))
	n.w.must(os.WriteFile(p, data, 0o644))
	n.touched(p)
}

// content is what a save has in a file.
func (t *simTrainer) content(file string, step int64, save int) []byte {
	rng := t.n.w.rng
	if file == "c.bin" && rng.IntN(4) > 0 {
		return bytes.Repeat([]byte("base "), 30) // the same in most steps: it may be borrowed
	}
	head := fmt.Sprintf("%s of step %d, save %06d by job %04d\n", file, step, save, t.job)
	return append([]byte(head), bytes.Repeat([]byte{'.'}, 20*rng.IntN(3))...)
}

// save begins to save a step.
func (t *simTrainer) save(step int64) {
	w := t.n.w
	w.saves++
	name, save := simStep(step), w.saves
	t.busy, t.ops = name, nil
	delete(t.whole, name)
	t.kept = append(slices.DeleteFunc(t.kept, func(k string) bool { return k == name }), name)
	_, err := os.Lstat(t.n.path(name))
	again := err == nil
	how := w.rng.IntN(4)
	if again && how == 3 {
		how = 0
	}
	to := name
	if how == 3 { // aside, and renamed when it is whole
		to = "unfinished-" + name
		t.op(func() { w.must(os.RemoveAll(t.n.path(to))) })
	}
	if how == 1 && again { // the evidence goes first
		t.op(func() { t.n.remove(filepath.Join(to, simDone)) })
	}
	files := slices.Clone(w.files)
	if w.rng.IntN(3) == 0 {
		files = append(files, "x.bin") // which this save alone may have
	}
	w.rng.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	for _, f := range files {
		data, p := t.content(f, step, save), filepath.Join(to, f)
		if how == 2 { // each file aside, and renamed
			t.op(func() { t.n.write(p+".tmp", data) })
			t.op(func() { t.n.rename(p+".tmp", p) })
			continue
		}
		t.op(func() { t.n.write(p, data[:len(data)/2]) })
		t.op(func() { t.n.write(p, data) })
	}
	t.op(func() {
		t.n.write(filepath.Join(to, simDone), fmt.Appendf(nil, "save %06d", save))
		if how != 3 {
			t.finished(step)
		}
	})
	if how == 3 {
		t.op(func() { t.n.rename(to, name); t.finished(step) })
	}
}

func (t *simTrainer) op(f func()) { t.ops = append(t.ops, f) }

// finished tells the oracle of a step that is whole now.
func (t *simTrainer) finished(step int64) {
	s := &simSave{name: simStep(step), step: step, job: t.job, parts: []map[string][]byte{t.n.files(simStep(step))}}
	t.whole[s.name] = s
	o := t.n.w.oracle
	o.saves[s.name] = append(o.saves[s.name], s)
	t.n.w.say("n%d: job %d has saved %s", t.n.id, t.job, s.name)
}

// files reads a step, by path below the root; nothing, if it is not there.
func (n *simNode) files(name string) map[string][]byte {
	out := map[string][]byte{}
	if _, err := os.Lstat(n.path(name)); errors.Is(err, fs.ErrNotExist) {
		return out
	}
	n.w.must(filepath.WalkDir(n.path(name), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(p) == ".tmp" {
			return err
		}
		rel, err := filepath.Rel(n.root(), p)
		if err != nil {
			return err
		}
		out[filepath.ToSlash(rel)], err = os.ReadFile(p)
		return err
	}))
	return out
}

func (n *simNode) rename(from, to string) {
	n.w.must(os.Rename(n.path(from), n.path(to)))
	n.touched(n.path(to))
}

func (n *simNode) remove(rel string) {
	p := n.path(rel)
	if err := os.Remove(p); !errors.Is(err, fs.ErrNotExist) {
		n.w.must(err)
	}
	n.touched(filepath.Dir(p))
}

// rotate begins to delete a step. What half a deletion leaves is never whole.
func (t *simTrainer) rotate(name string) {
	t.busy = name
	delete(t.whole, name)
	t.kept = slices.DeleteFunc(t.kept, func(k string) bool { return k == name })
	order := append([]string{simDone}, t.n.w.files...)
	if t.n.w.rng.IntN(2) == 0 {
		order[0], order[2] = order[2], order[0]
	}
	for _, f := range order {
		t.op(func() { t.n.remove(filepath.Join(name, f)) })
	}
	t.op(func() { t.n.w.must(os.RemoveAll(t.n.path(name))); t.n.touched(t.n.root()) })
}

// act does the next little thing.
func (t *simTrainer) act() {
	w := t.n.w
	if len(t.ops) > 0 {
		op := t.ops[0]
		t.ops = t.ops[1:]
		op()
		return
	}
	t.busy = ""
	switch r := w.rng.IntN(10); {
	case r < 2 && len(t.kept) > 0: // the same step once more
		t.save(t.number(t.kept[len(t.kept)-1]))
	case r < 4 && len(t.kept) > w.keep:
		t.rotate(t.kept[0])
	default:
		t.step++
		t.save(t.step)
	}
	w.say("n%d: job %d begins with %s", t.n.id, t.job, t.busy)
}

func (t *simTrainer) number(name string) (n int64) {
	_, err := fmt.Sscanf(name, "s-%d", &n)
	t.n.w.must(err)
	return n
}
