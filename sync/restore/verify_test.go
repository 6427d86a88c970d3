package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// verifyRun is a run of two nodes that have a path in common with different
// content, in chunks of four bytes.
func verifyRun(t *testing.T) (*committest.Run, []*commit.Manifest) {
	t.Helper()
	r := committest.New(t)
	r.Chunk = 4
	r.Declare(nil)
	id := committest.ID(1, 100)
	parts := []*commit.Manifest{
		r.Manifest(id, "step-100", 0, map[string]string{"model": "weights of node 0", "rng": "state 0", "empty": ""}),
		r.Manifest(id, "step-100", 1, map[string]string{"more": "weights of node 1", "rng": "state 1"}),
	}
	r.Seal(parts...)
	return r, parts
}

func verify(t *testing.T, r *committest.Run, quick bool) *Verified {
	t.Helper()
	v, err := Verify(t.Context(), VerifyOptions{Store: r.Store, ID: committest.ID(1, 100), Quick: quick})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func findings(v *Verified) string {
	var out []string
	for i, d := range v.Damaged {
		out = append(out, fmt.Sprintf("%s %d %s", d.Path, d.Chunk, d.Reason))
		if i < len(v.DamagedFiles) && v.DamagedFiles[i].Object != d.Object {
			out = append(out, "its file is another")
		}
	}
	return strings.Join(out, "; ")
}

func TestVerify(t *testing.T) {
	t.Parallel()
	object := func(parts []*commit.Manifest, node int, name string) string {
		for _, f := range parts[node].Files {
			if strings.HasSuffix(f.Path, "/"+name) {
				return f.Object
			}
		}
		t.Fatal(name)
		return ""
	}
	for _, c := range []struct {
		name        string
		break_      func(b *memblob.Bucket, r *committest.Run, parts []*commit.Manifest)
		slow, quick string
	}{
		{"whole", func(*memblob.Bucket, *committest.Run, []*commit.Manifest) {}, "", ""},
		{
			"a bit", func(b *memblob.Bucket, r *committest.Run, parts []*commit.Manifest) {
				b.Set(r.Store.Key(object(parts, 0, "model")), []byte("weights of nodf 0"), true)
			}, "step-100/model 3 its digest is", "",
		},
		{
			"another node's version", func(b *memblob.Bucket, r *committest.Run, parts []*commit.Manifest) {
				b.Set(r.Store.Key(object(parts, 1, "rng")), []byte("State 1"), true)
			}, "step-100/rng 0 its digest is", "",
		},
		{
			"gone", func(b *memblob.Bucket, r *committest.Run, parts []*commit.Manifest) {
				if err := b.Delete(t.Context(), r.Store.Key(object(parts, 1, "more"))); err != nil {
					t.Error(err)
				}
			}, "step-100/more", "step-100/more -1 the object is missing",
		},
		{
			"cut", func(b *memblob.Bucket, r *committest.Run, parts []*commit.Manifest) {
				b.Set(r.Store.Key(object(parts, 0, "model")), []byte("weights of node"), true)
				b.Set(r.Store.Key(object(parts, 0, "rng")), []byte("state 00"), true)
			}, "step-100/model 3 the object has 15 bytes", "step-100/model -1 the object has 15 bytes, committed were 17; step-100/rng -1 the object has 8 bytes, committed were 7",
		},
		{
			"a manifest", func(b *memblob.Bucket, r *committest.Run, _ []*commit.Manifest) {
				b.Set(r.Store.Key("parts/000000000100-a000001-r00/node-00001.00.json"), []byte("{}"), false)
			}, " -1 its bytes are not those that were committed", " -1 its bytes are not those that were committed",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, parts := verifyRun(t)
			c.break_(r.Bucket.(*memblob.Bucket), r, parts)
			for quick, want := range map[bool]string{false: c.slow, true: c.quick} {
				v := verify(t, r, quick)
				if got := findings(v); !strings.HasPrefix(got, want) || want == "" && got != "" {
					t.Errorf("quick %v: %q, want %q", quick, got, want)
				}
				if c.name != "a manifest" && (v.Files != 4 || v.Bytes != 17+7+17+7 || v.Name != "step-100") {
					t.Errorf("quick %v: %d files of %d bytes, %s", quick, v.Files, v.Bytes, v.Name)
				}
			}
		})
	}
}

// A store that fails says nothing about the commit.
func TestVerifyCannotTell(t *testing.T) {
	t.Parallel()
	for _, op := range []string{blobtest.OpOpen, blobtest.OpList} {
		r, _ := verifyRun(t)
		f := blobtest.NewFaulty(r.Bucket, 1)
		f.Add(&blobtest.Rule{Op: op, Key: "exp1/data/**", Do: blobtest.Fail(blob.ErrDenied)})
		store, err := commit.NewStore(f, r.Store.Run())
		if err != nil {
			t.Fatal(err)
		}
		v, err := Verify(t.Context(), VerifyOptions{Store: store, ID: committest.ID(1, 100), Quick: op == blobtest.OpList})
		if !errors.Is(err, ErrCannotTell) || len(v.Damaged) > 0 {
			t.Errorf("%s denied: %v, %s", op, err, findings(v))
		}
	}
	r, _ := verifyRun(t)
	if _, err := Verify(t.Context(), VerifyOptions{Store: r.Store, ID: committest.ID(1, 200)}); !errors.Is(err, ErrGone) {
		t.Errorf("a commit that is none: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := Verify(ctx, VerifyOptions{Store: r.Store, ID: committest.ID(1, 100)}); !errors.Is(err, why) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestVerifyProgress(t *testing.T) {
	t.Parallel()
	r, _ := verifyRun(t)
	var last Progress
	_, err := Verify(t.Context(), VerifyOptions{Store: r.Store, ID: committest.ID(1, 100), Progress: func(p Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	want := Progress{ID: committest.ID(1, 100), Phase: PhaseFetch, Files: 4, Bytes: 48, Done: 48, Fetched: 48}
	if d := cmp.Diff(want, last); d != "" {
		t.Error(d)
	}
}

// A listing that ends early is no proof that objects are gone.
func TestVerifyAsksTwice(t *testing.T) {
	t.Parallel()
	r, _ := verifyRun(t)
	f := blobtest.NewFaulty(r.Bucket, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpList, Key: "exp1/data/**", Do: blobtest.Cut(1)})
	store, err := commit.NewStore(f, r.Store.Run())
	if err != nil {
		t.Fatal(err)
	}
	v, err := Verify(t.Context(), VerifyOptions{Store: store, ID: committest.ID(1, 100), Quick: true})
	if err != nil || len(v.Damaged) > 0 {
		t.Errorf("%v, %s", err, findings(v))
	}
	f.CheckExercised(t)
	f.Add(&blobtest.Rule{Op: blobtest.OpStat, Do: blobtest.Fail(blob.ErrThrottled)})
	if v, err = Verify(t.Context(), VerifyOptions{Store: store, ID: committest.ID(1, 100), Quick: true}); !errors.Is(err, ErrCannotTell) || len(v.Damaged) > 0 {
		t.Errorf("%v, %s", err, findings(v))
	}
}
