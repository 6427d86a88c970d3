package syncer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// lasting is a site with two commits and a third step, whose store goes wrong
// until it is set right.
func lasting(t *testing.T) (*site, *blobtest.Faulty) {
	t.Helper()
	f := blobtest.NewFaulty(memblob.New(), 1)
	s := siteAt(t, t.TempDir()+"/out", f)
	s.step(100)
	s.step(200)
	s.push()
	s.step(300, layouttest.Size(17<<20)) // in parts
	s.saved()
	return s, f
}

// tryPush pushes while the store is at fault.
func (s *site) tryPush() []Outcome {
	s.t.Helper()
	e, err := New(crashConfig(s.root, s.bucket, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.Close()
	out, err := e.Push(s.t.Context())
	if err != nil && !strings.Contains(err.Error(), "injected fault") {
		s.t.Errorf("the pass failed: %v", err)
	}
	return out
}

// A store that refuses one kind of call for good: the step is not committed,
// the two before are, and once it is allowed the step is.
func TestStoreThatRefusesAPush(t *testing.T) {
	for name, rule := range map[string]*blobtest.Rule{
		"no listing":           {Op: blobtest.OpList, Do: blobtest.Fail(blob.ErrDenied)},
		"no reading":           {Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrDenied)},
		"no writing":           {Op: blobtest.OpPut, Do: blobtest.Fail(blob.ErrDenied)},
		"no uploads in parts":  {Op: blobtest.OpUpload, Do: blobtest.Fail(blob.ErrDenied)},
		"no parts":             {Op: blobtest.OpPart, Do: blobtest.Fail(blob.ErrDenied)},
		"no completion":        {Op: blobtest.OpComplete, Do: blobtest.Fail(blob.ErrDenied)},
		"full from here on":    {Op: blobtest.OpPut, From: 3, Do: blobtest.Fail(blob.ErrDenied)},
		"full, says try later": {Op: blobtest.OpPart, From: 2, Do: blobtest.Fail(blob.ErrTemporary)},
		"manifests refused":    {Op: blobtest.OpPut, Key: "exp1/parts/**", Do: blobtest.Fail(blob.ErrDenied)},
		"markers refused":      {Op: blobtest.OpPut, Key: "exp1/commits/**", Do: blobtest.Fail(blob.ErrDenied)},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := lasting(t)
			f.Add(rule)
			out := s.tryPush()
			f.CheckExercised(t)
			f.Clear()
			s.check()
			s.wantCommits("100-a1-r0", "200-a1-r0")
			for _, o := range out {
				if o.Step == "checkpoint-300" && o.Stage == Failed && !strings.Contains(strings.Join(o.Reasons, " "), "injected fault") {
					t.Errorf("told: %v", o.Reasons)
				}
			}
			s.push()
			s.check()
			s.wantCommits("100-a1-r0", "200-a1-r0", "300-a1-r0")
		})
	}
}

// A restore that may not list, or may not read, cannot tell: it is never a
// first start, and nothing older is taken either.
func TestStoreThatRefusesARestore(t *testing.T) {
	for name, rule := range map[string]*blobtest.Rule{
		"no listing":      {Op: blobtest.OpList, Do: blobtest.Fail(blob.ErrDenied)},
		"no reading":      {Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrDenied)},
		"no reading data": {Op: blobtest.OpOpen, Key: "exp1/data/**", Do: blobtest.Fail(blob.ErrDenied)},
		"unreachable":     {Do: blobtest.Fail(blob.ErrTemporary)},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := lasting(t)
			n := siteAt(t, t.TempDir()+"/out", f)
			f.Add(rule)
			e, err := New(crashConfig(n.root, f, nil))
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			o := RestoreOptions{IfExists: true}
			res, err := e.Restore(t.Context(), o)
			f.CheckExercised(t)
			f.Clear()
			switch {
			case err == nil:
				t.Errorf("restored %+v", res)
			case errors.Is(err, restore.ErrNothingCommitted), errors.Is(err, restore.ErrNothingUsable):
				t.Errorf("what cannot be read is taken for %v", err)
			}
			if left := n.local(); len(left) > 0 {
				t.Errorf("the root holds %q", left)
			}
			if marks := s.view().Marks; len(marks) > 0 {
				t.Errorf("marks %v", marks)
			}
		})
	}
}

// A store that lets nothing be deleted: the prune says so, what is protected is
// whole, and later it is all done.
func TestStoreThatRefusesDeletions(t *testing.T) {
	s, f := lasting(t)
	f.Add(&blobtest.Rule{Op: blobtest.OpDelete, Do: blobtest.Fail(blob.ErrDenied)})
	o := prune.Options{Store: s.store(), Policy: retain.Policy{KeepLast: 1}}
	if _, err := prune.New().Run(t.Context(), o); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("the prune says %v", err)
	}
	f.CheckExercised(t)
	s.check()
	s.content(id(200, 1, 0))
	f.Clear()
	for range 2 {
		if _, err := prune.New().Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	s.wantCommits("200-a1-r0")
	for _, k := range s.objects() {
		if strings.Contains(k, "data/000000000100") {
			t.Errorf("%s is left", k)
		}
	}
	s.push()
	s.wantCommits("200-a1-r0", "300-a1-r0")
}

// A lifecycle rule has expired a part of the newest step, data or manifests or
// its marker: a restore falls back to the one before, or takes what is whole,
// and says so; never half a step.
func TestLifecycleRuleTookAPart(t *testing.T) {
	for _, taken := range []string{"/optimizer.pt", "parts/000000000200", "commits/000000000200"} {
		t.Run(strings.Trim(taken, "/"), func(t *testing.T) {
			s, _ := lasting(t)
			gone := 0
			for _, k := range s.objects() {
				if strings.Contains(k, "000000000200") && strings.Contains(k, taken) {
					gone++
					if err := s.bucket.Delete(t.Context(), k); err != nil {
						t.Fatal(err)
					}
				}
			}
			if gone == 0 {
				t.Fatalf("nothing is called %s", taken)
			}
			n := siteAt(t, t.TempDir()+"/out", s.bucket)
			res := n.bringBack(RestoreOptions{})
			if res.ID != id(100, 1, 0) {
				t.Errorf("restored %v", res.ID)
			}
			if !same(files(t, n.root, res.Name), s.want["checkpoint-100"]) {
				t.Error("it is not what was saved")
			}
			if damaged := s.view().Marks[id(200, 1, 0)][commit.Damaged]; !damaged && !strings.HasPrefix(taken, "commits") {
				t.Errorf("step 200 is not marked: %v", s.view().Marks)
			}
			if n := n.local(); !slices.Equal(n, []string{"checkpoint-100"}) {
				t.Errorf("the root holds %q", n)
			}
		})
	}
}

// A state directory on a disk that is full, or that may not be written: nothing
// is committed, the reason is told, and the steps are committed later.
func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	s := siteAt(t, t.TempDir()+"/out", memblob.New())
	s.step(100)
	s.saved()
	if err := os.WriteFile(s.root+".ckptsync", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(crashConfig(s.root, s.bucket, nil)); err == nil || !strings.Contains(err.Error(), "state directory") {
		t.Errorf("told: %v", err)
	}
	if n := len(s.objects()); n > 0 {
		t.Error(fmt.Sprint(n, " objects were written"))
	}
	if err := os.Remove(s.root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	s.push()
	s.wantCommits("100-a1-r0")
}
