//go:build linux && amd64

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk knows which changes of a traced program were not made durable yet, and
// takes them back as a power cut may:
//
//   - of a file that was written and not fsynced since, any part of what was
//     written may be missing, also where the file is longer than what is there;
//   - a name that was made, moved or removed in a directory that was not fsynced
//     since may be as it was before, with what is below it. A move is one change:
//     it lasts once the directory that it leads to was fsynced;
//   - changes of the names in one directory are lost from the last one back, as
//     a journal of the file system loses them; each directory for itself.
//
// What was durable when the trace began is left alone. Modes and times are not
// taken back.
type disk struct {
	limbo string // for what was removed and may come back; on the same file system
	files map[inode]*dirtyFile
	dirs  map[inode]*os.File
	names []*nameOp // in order
	kept  int
}

type inode struct{ dev, ino uint64 }

// dirtyFile is a file that was written since it was last durable.
type dirtyFile struct {
	f       *os.File // a handle of its own
	durable []byte   // what is sure to be there
}

// nameOp is a change of names.
type nameOp struct {
	kind      kind
	dir, dir2 inode
	name, to  string
	saved     string // in limbo: what was removed or replaced
	exchange  bool
}

func newDisk(limbo string) (*disk, error) {
	return &disk{limbo: limbo, files: map[inode]*dirtyFile{}, dirs: map[inode]*os.File{}}, os.MkdirAll(limbo, 0o700)
}

// close gives back the handles.
func (d *disk) close() {
	for _, f := range d.files {
		f.f.Close()
	}
	for _, f := range d.dirs {
		f.Close()
	}
}

func idOf(f *os.File) (inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return inode{st.Dev, st.Ino}, err
}

// dir opens a directory and keeps it, under whatever name it goes later.
func (d *disk) dir(path string) (inode, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return inode{}, err
	}
	id, err := idOf(f)
	if err != nil || d.dirs[id] != nil {
		f.Close()
		return id, err
	}
	d.dirs[id] = f
	return id, nil
}

// at is a path to a name in a directory, wherever that is now.
func (d *disk) at(dir inode, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.dirs[dir].Fd(), name)
}

// before notes what a call is about to change.
func (d *disk) before(c *call) error {
	switch c.kind {
	case writes:
		return d.dirty(fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[c.fd])))
	case opens:
		return d.beforeOpen(c)
	case makesDir, links, symlinks, removes, renames:
		return d.beforeName(c)
	}
	return nil
}

// beforeOpen keeps what an open with O_TRUNC takes, and notes whether the name
// is new.
func (d *disk) beforeOpen(c *call) error {
	if _, err := os.Lstat(c.path); err != nil {
		return d.beforeName(c)
	}
	if c.args[c.spec.path+1]&unix.O_TRUNC != 0 {
		return d.dirty(c.path)
	}
	return nil
}

// dirty keeps the durable content of a file that is about to be written.
func (d *disk) dirty(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	id, err := idOf(f)
	if err != nil || d.files[id] != nil {
		f.Close()
		return err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		f.Close()
		return err
	}
	d.files[id] = &dirtyFile{f, data}
	return nil
}

// beforeName keeps, by a link of its own, what a removal or a move takes away.
func (d *disk) beforeName(c *call) error {
	op := &nameOp{kind: c.kind, name: filepath.Base(c.path)}
	var err error
	if op.dir, err = d.dir(filepath.Dir(c.path)); err != nil {
		return nil // the call will fail for that too
	}
	victim := c.path
	if c.kind == renames {
		op.to, victim = filepath.Base(c.other), c.other
		if op.dir2, err = d.dir(filepath.Dir(c.other)); err != nil {
			return nil
		}
		op.exchange = c.name == "renameat2" && c.args[4]&unix.RENAME_EXCHANGE != 0
	}
	if fi, err := os.Lstat(victim); err == nil && (c.kind == renames && !op.exchange || c.kind == removes) {
		d.kept++
		op.saved = filepath.Join(d.limbo, fmt.Sprint(d.kept))
		if fi.IsDir() {
			err = os.Mkdir(op.saved, fi.Mode().Perm()) // it is empty, or the call fails
		} else {
			err = os.Link(victim, op.saved)
		}
		if err != nil {
			return err
		}
	}
	c.note = op
	return nil
}

// after takes in what a call has done.
func (d *disk) after(c *call) error {
	if c.ret < 0 {
		return nil
	}
	switch c.kind {
	case syncs:
		return d.synced(fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[c.fd])))
	case syncsAll:
		d.names = nil
		for id := range d.files {
			d.clean(id)
		}
	case opens:
		if op, ok := c.note.(*nameOp); ok {
			d.names = append(d.names, op)
			return d.dirty(fmt.Sprintf("/proc/%d/fd/%d", c.tid, c.ret)) // what it holds now was made just now
		}
	default:
		if op, ok := c.note.(*nameOp); ok {
			d.names = append(d.names, op)
		}
	}
	return nil
}

func (d *disk) clean(id inode) {
	if f := d.files[id]; f != nil {
		f.f.Close()
		delete(d.files, id)
	}
}

// synced takes in the fsync of a file or a directory.
func (d *disk) synced(path string) error {
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	id, err := idOf(f)
	if err != nil {
		return err
	}
	d.clean(id)
	left := d.names[:0]
	for _, op := range d.names {
		last := op.dir
		if op.kind == renames {
			last = op.dir2
		}
		if last != id {
			left = append(left, op)
		}
	}
	d.names = left
	return nil
}

// cut takes back what a power cut may: with a nil rng everything that is not
// durable, else a random part of it.
func (d *disk) cut(rng *rand.Rand) (lost int, err error) {
	keep := map[inode]int{} // of the changes in each directory, how many last
	total := map[inode]int{}
	for _, op := range d.names {
		total[op.last()]++
	}
	for id, n := range total {
		if rng != nil {
			keep[id] = rng.IntN(n + 1)
		}
	}
	left := map[inode]int{}
	var undo []*nameOp
	for _, op := range d.names {
		if left[op.last()]++; left[op.last()] > keep[op.last()] {
			undo = append(undo, op)
		}
	}
	for i := len(undo) - 1; i >= 0; i-- {
		if err := d.undo(undo[i]); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
			return lost, fmt.Errorf("take back: %w", err)
		}
		lost++
	}
	for _, f := range d.files {
		if err := f.cut(rng); err != nil {
			return lost, fmt.Errorf("take back: %w", err)
		}
		lost++
	}
	return lost, nil
}

// last is the directory whose fsync makes the change durable.
func (op *nameOp) last() inode {
	if op.kind == renames {
		return op.dir2
	}
	return op.dir
}

func (d *disk) undo(op *nameOp) error {
	switch op.kind {
	case removes:
		return os.Rename(op.saved, d.at(op.dir, op.name))
	case renames:
		from, to := d.at(op.dir2, op.to), d.at(op.dir, op.name)
		if op.exchange {
			return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
		}
		if err := os.Rename(from, to); err != nil || op.saved == "" {
			return err
		}
		return os.Rename(op.saved, from)
	}
	return os.RemoveAll(d.at(op.dir, op.name))
}

// cut takes back what was written: all of it, a tail of it, or its content but
// not its length.
func (f *dirtyFile) cut(rng *rand.Rand) error {
	fi, err := f.f.Stat()
	if err != nil {
		return err
	}
	size, durable := fi.Size(), f.durable
	if rng != nil {
		switch rng.IntN(3) {
		case 0:
			return nil
		case 1: // what was appended is zeros
			if size > int64(len(durable)) {
				durable = append(durable[:len(durable):len(durable)], make([]byte, size-int64(len(durable)))...)
			}
		case 2: // a part of what was appended is there
			if n := size - int64(len(durable)); n > 0 {
				return f.f.Truncate(int64(len(durable)) + rng.Int64N(n))
			}
		}
	}
	if err := f.f.Truncate(0); err != nil {
		return err
	}
	_, err = f.f.WriteAt(durable, 0)
	return err
}
