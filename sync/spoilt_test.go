package syncer

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

func (w *world) markDamaged(id commit.ID) {
	w.t.Helper()
	must(w.t, w.store().PutMark(w.t.Context(), &commit.Mark{
		Format: commit.FormatMark, ID: id, Word: commit.Damaged, Reason: "rot", Token: commit.NewOpToken(), Created: commit.At(time.Unix(1, 0)),
	}))
}

// A step whose commit proved damaged is whole on this disk: it is committed again,
// of objects that are new, and once.
func TestDamagedStepIsCommittedAgainFromTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	w.step(200)
	w.push()
	w.markDamaged(id(200, 1, 0))
	if o := w.push()["checkpoint-200"]; o.Stage != Committed || o.ID != id(200, 1, 1) || !o.Now {
		t.Errorf("%+v", o)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0", "200-a1-r1")
	if head, _ := w.view().Head(); head != id(200, 1, 1) {
		t.Errorf("the head is %v", head)
	}
	m, _, err := w.store().GetManifest(t.Context(), id(200, 1, 1), 0, 0)
	must(t, err)
	for _, f := range m.Files {
		if strings.Contains(f.Object, id(200, 1, 0).String()) {
			t.Errorf("%s is that of the damaged commit", f.Path)
		}
	}
	if o := w.push()["checkpoint-200"]; o.Stage != Committed || o.ID != id(200, 1, 1) || o.Now {
		t.Errorf("again: %+v", o)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0", "200-a1-r1")
}

// So a restore on the node that has the step still takes it.
func TestRestoreTakesADamagedStepFromItsOwnDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	w.push()
	w.markDamaged(id(100, 1, 0))
	e := w.engine()
	defer e.Close()
	r, err := e.Restore(t.Context(), RestoreOptions{})
	if err != nil || r.ID != id(100, 1, 1) {
		t.Errorf("%v, %v", r.ID, err)
	}
}

// What replaces a damaged commit borrows nothing: which object is damaged is not
// known, and a commit that is not marked may name it too.
func TestWhatReplacesADamagedCommitBorrowsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plain()
	for n := 1; n <= 3; n++ {
		w.save(n, content{"base.bin": []byte("frozen")})
		w.push()
	}
	w.markDamaged(id(2, 1, 0))
	w.push()
	if o := w.owners(id(2, 1, 1))["epoch-2/base.bin"]; o != id(2, 1, 1) {
		t.Errorf("it names what %s sent", o)
	}
}

// What is on the disk and is not whole replaces nothing.
func TestTornStepReplacesNoDamagedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	w.push()
	w.markDamaged(id(100, 1, 0))
	must(t, os.Remove(w.root+"/checkpoint-100/optimizer.pt"))
	if o := w.push()["checkpoint-100"]; o.Stage == Committed && o.Now {
		t.Errorf("%+v", o)
	}
	w.wantCommits("100-a1-r0")
}

// A state directory that cannot be made says what to do.
func TestStateDirectoryThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	err := stateDirError(&fs.PathError{Op: "mkdir", Path: "/mnt/out.ckptsync", Err: fs.ErrPermission})
	if !strings.Contains(err.Error(), "/mnt/out.ckptsync") || !strings.Contains(err.Error(), "--state-dir") {
		t.Error(err)
	}
}
