package layout

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// readTorch reads the object of a file below the root that torch.save wrote,
// without executing it. An error that matches ErrNoStep says that torch.save
// wrote something else there, as far as its first bytes tell.
func readTorch(fsys fs.FS, name string) (any, error) {
	t := tree{fsys: fsys, step: Step{Name: name}}
	f, err := t.open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, min(2, f.size))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(bytes.Trim(head, "\x00")) > 1 && string(head) != "PK" && head[0] != 0x80 {
		return nil, fmt.Errorf("%w: it is no file of torch.save", ErrNoStep)
	}
	// The storages are of no use here: without them a pickle is small.
	return format.TorchObject(f, f.size, format.UnpickleOptions{Persist: func(any) any { return nil }})
}

// counters are the keys under which trainers keep the number of a step.
type counters []string

// in returns the number under the first of the keys that has one.
func (c counters) in(v any) (int64, bool) {
	for _, key := range c {
		x, _ := format.Lookup(v, key)
		if n, ok := x.(int64); ok && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

// torchFile reads the object of a file of the step that has no reason yet. One
// that cannot be read though its format is right gets one: its number and what
// it holds are not known.
func (j *judge) torchFile(rel string) (any, bool) {
	if j.files[rel] == nil || j.broken[rel] {
		return nil, false
	}
	v, err := readTorch(j.fsys, j.full(rel))
	if err != nil {
		j.spoil(rel, "%s: what it holds cannot be read: %s", j.name(rel), strings.TrimPrefix(cause(err), ErrNoStep.Error()+": "))
		return nil, false
	}
	return v, true
}

// numberIs holds the step's number against what a file of it says, under the
// first of the keys that it has. The step may have been saved anew since its
// number was found.
func (j *judge) numberIs(v any, rel string, keys ...string) {
	switch n, ok := counters(keys).in(v); {
	case !ok:
		j.spoil(rel, "%s says no %s", j.name(rel), keys[0])
	case n != j.step.Number:
		j.spoil(rel, "%s says %s %d, where the step was found to be %d: it is being saved again", j.name(rel), keys[0], n, j.step.Number)
	}
}

// needs sets the resume class by the keys that exact resume needs.
func (j *judge) needs(v any, keys ...string) {
	j.v.Resume = commit.ResumeExact
	for _, key := range keys {
		if x, ok := format.Lookup(v, key); !ok || x == nil {
			j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, key)
		}
	}
}

// metaOf takes plain values as metadata.
func (j *judge) metaOf(v any, keys ...string) {
	for _, key := range keys {
		switch x, _ := format.Lookup(v, key); x.(type) {
		case int64, float64, string, bool:
			j.v.meta(key, x)
		}
	}
}

// smallJSON reads a small JSON file below the root.
func smallJSON(fsys fs.FS, name string) (any, error) {
	t := tree{fsys: fsys, step: Step{Name: name}}
	f, err := t.open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j := format.NewJSON(io.NewSectionReader(f, 0, f.size))
	v, err := j.Value(maxJSON)
	if err == nil {
		err = j.End()
	}
	return v, err
}

// leaveOut takes entries out of the step: those that out matches, a directory
// with all that it holds.
func (t *tree) leaveOut(out func(rel string) bool) {
	var gone []string
	for rel := range t.dirs {
		if out(rel) {
			gone = append(gone, rel)
		}
	}
	for _, rel := range t.sorted {
		if out(rel) {
			gone = append(gone, rel)
		}
	}
	for rel := range t.astray {
		if out(rel) {
			gone = append(gone, rel)
		}
	}
	set := make(map[string]bool, len(gone))
	for _, rel := range gone {
		set[rel] = true
	}
	for _, rel := range gone {
		delete(t.files, rel)
		delete(t.dirs, rel)
		delete(t.astray, rel)
		above := false
		for d := path.Dir(rel); d != "." && !above; d = path.Dir(d) {
			above = set[d]
		}
		if !above {
			t.skip = append(t.skip, rel)
		}
	}
	t.sorted = slices.DeleteFunc(t.sorted, func(rel string) bool { return t.files[rel] == nil })
}
