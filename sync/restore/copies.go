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
		i := slices.IndexFunc(r.plan.Files, func(f PlannedFile) bool { return f.Path == c.Of })
		switch {
		case i < 0:
			r.warn(fmt.Sprintf("%q was not written: it is a copy of %q, which is not here", c.Path, c.Of))
			continue
		case r.plan.Files[i].Size > maxPointer:
			r.warn(fmt.Sprintf("%q was not written: it is a copy of %q, which is larger than pointer files are; copy it by hand", c.Path, c.Of))
			continue
		}
		text, err := readWhole(r.area.root, c.Of)
		if err != nil {
			return fmt.Errorf("copy %q to %q: %w", c.Of, c.Path, err)
		}
		if err := r.pointer(ctx, commit.Pointer{Path: c.Path, Content: text}); err != nil {
			return err
		}
	}
	return nil
}

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
