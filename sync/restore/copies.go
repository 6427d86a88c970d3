package restore

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
)

// copies makes the files beside the step that are copies of files of it, from
// what is in place now. One that cannot be made is warned about: what the
// framework reads there may name another step.
func (r *runner) copies(ctx context.Context) error {
	for _, c := range r.plan.Copies {
		text, not, err := r.copyText(c)
		if err != nil {
			return fmt.Errorf("copy %q to %q: %w", c.Of, c.Path, err)
		}
		if not != "" {
			r.warn(fmt.Sprintf("%q was not written: it is a copy of %q, which is %s", c.Path, c.Of, not))
			continue
		}
		if err := r.pointer(ctx, commit.Pointer{Path: c.Path, Content: text}); err != nil {
			return err
		}
	}
	return nil
}

// copyText is what a copy holds, or why it cannot be made.
func (r *runner) copyText(c commit.Copy) (text, not string, err error) {
	const large = "larger than pointer files are; copy it by hand"
	i := slices.IndexFunc(r.plan.Files, func(f PlannedFile) bool { return f.Path == c.Of })
	switch fetched, ok := r.texts[c.Of]; {
	case i >= 0 && r.plan.Files[i].Size > maxPointer:
		return "", large, nil
	case i >= 0:
		text, err = readWhole(r.area.root, c.Of)
		return text, "", err
	case ok:
		return fetched, "", nil
	case r.tree.Abroad[c.Of] != nil:
		return "", large, nil
	}
	return "", "not here", nil
}

// fetchAbroad reads the other nodes' files that are copied beside the step,
// before anything is written.
func (r *runner) fetchAbroad(ctx context.Context) error {
	for path, e := range r.tree.Abroad {
		if e.Size > maxPointer {
			continue
		}
		f := &PlannedFile{Entry: *e}
		x := r.stager().fetch
		x.count = func(int64) {} // it is no byte of the step
		text := make(memory, e.Size)
		for i := range f.Digest {
			if err := x.chunk(ctx, f, i, text); err != nil {
				return err
			}
		}
		if r.texts == nil {
			r.texts = map[string]string{}
		}
		r.texts[path] = string(text)
	}
	return nil
}

// memory is a small file in memory, as a place to write to.
type memory []byte

func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }
func (m memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m[off:]), nil }

// readWhole reads a file as small as pointer files are.
func readWhole(root *os.Root, name string) (string, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPointer+1))
	if err == nil && len(b) > maxPointer {
		err = fmt.Errorf("it has over %d bytes", maxPointer)
	}
	return string(b), err
}

// pointer writes one pointer file, if it is not right yet.
func (r *runner) pointer(ctx context.Context, p commit.Pointer) error {
	if pointerRight(r.area.root, p) {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := r.open(); err != nil {
		return err
	}
	if err := r.stager().pointer(&r.tree.Entries[0], p); err != nil {
		return fmt.Errorf("write the pointer file %q: %w", p.Path, err)
	}
	return nil
}
