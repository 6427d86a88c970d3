package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// only checks that the findings are well but for those that are named, as
// "level name → a part of detail or remedy → another".
func only(t *testing.T, fs Findings, want ...string) {
	t.Helper()
	var got []string
	for _, f := range fs {
		if f.Detail == "" {
			t.Errorf("%s says nothing", f.Name)
		}
		if f.Level == OK {
			continue
		}
		if f.Remedy == "" {
			t.Errorf("%s: no remedy for: %s", f.Name, f.Detail)
		}
		got = append(got, fmt.Sprintf("%s %s → %s → %s", f.Level, f.Name, f.Detail, f.Remedy))
	}
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		for part := range strings.SplitSeq(want[i], " → ") {
			ok = ok && strings.Contains(got[i], part)
		}
	}
	if !ok {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// has returns the finding of that name.
func has(t *testing.T, fs Findings, name string) Finding {
	t.Helper()
	for _, f := range fs {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("nothing was found out about %q: %+v", name, fs)
	return Finding{}
}

func keys(t *testing.T, b blob.Bucket) (keys []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestAGoodStore(t *testing.T) {
	b := memblob.New()
	fs := Store(t.Context(), b, time.Now)
	only(t, fs)
	for _, name := range []string{"list", "write", "read", "clock", "checksum", "multipart", "delete", "create-if-absent", "unfinished uploads"} {
		has(t, fs, name)
	}
	if fs.Worst() != OK || fs.Unreachable() {
		t.Errorf("worst %s, unreachable %v", fs.Worst(), fs.Unreachable())
	}
	if left := keys(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// broken is a store that does not do as it is told.
type broken struct {
	blob.Bucket
	ignoreAbsent, ignoreSums, noParts bool
	forget                            string // objects whose key begins so are acknowledged and lost
}

func (b *broken) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	var opts blob.PutOptions
	if o != nil {
		opts = *o
	}
	opts.IfAbsent = opts.IfAbsent && !b.ignoreAbsent
	if b.ignoreSums {
		opts.CRC32C = nil
	}
	info, err := b.Bucket.Put(ctx, key, src, &opts)
	if err == nil && b.forget != "" && strings.HasPrefix(key, b.forget) {
		return info, b.Delete(ctx, key)
	}
	return info, err
}

func (b *broken) Upload(ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
	if b.noParts {
		return nil, blob.Errorf(blob.ErrUnsupported, "upload", key, "only whole objects")
	}
	return b.Bucket.Upload(ctx, key, id, o)
}

// TestStores sees each finding red once.
func TestStores(t *testing.T) {
	fail := func(op string, class error) *blobtest.Rule {
		return &blobtest.Rule{Op: op, Do: blobtest.Fail(class)}
	}
	for name, c := range map[string]struct {
		rules       []*blobtest.Rule
		broken      broken
		ahead       time.Duration // of the local clock
		want        []string
		unreachable bool
		leaves      bool
	}{
		"unreachable": {
			rules: []*blobtest.Rule{fail("", blob.ErrTemporary)}, unreachable: true,
			want: []string{"bad list → the endpoint, the network"},
		},
		"throttled": {
			rules: []*blobtest.Rule{fail("", blob.ErrThrottled)}, unreachable: true,
			want: []string{"bad list → slow down"},
		},
		"no access at all": {
			rules: []*blobtest.Rule{fail("", blob.ErrDenied)}, unreachable: true,
			want: []string{"bad list → credentials → list objects"},
		},
		"may not write": {
			rules: []*blobtest.Rule{fail(blobtest.OpPut, blob.ErrDenied)}, unreachable: true,
			want: []string{"bad write → write objects"},
		},
		"may not read": {
			rules: []*blobtest.Rule{fail(blobtest.OpOpen, blob.ErrDenied)}, unreachable: true,
			want: []string{"bad read → read objects", "warn create-if-absent → access denied → read them"},
		},
		"may not delete": {
			rules: []*blobtest.Rule{fail(blobtest.OpDelete, blob.ErrDenied)}, leaves: true,
			want: []string{"warn delete → scratch objects stay → pruning does not → delete objects"},
		},
		"other bytes": {
			rules: []*blobtest.Rule{{Op: blobtest.OpOpen, Count: 1, Do: blobtest.Flip(3)}},
			want:  []string{"bad read → what is read is not what was written → proxies"},
		},
		"stale": {
			broken: broken{forget: scratch},
			want: []string{
				"bad read → what was written a moment ago is not there → at once",
				"warn create-if-absent → one writer per run",
			},
		},
		"ignores conditions": {
			broken: broken{ignoreAbsent: true},
			want:   []string{"warn create-if-absent → ignores the condition → only one writer per run"},
		},
		"knows no conditions": {
			rules: []*blobtest.Rule{{Op: blobtest.OpPut, Key: scratch + "probe-**", Do: blobtest.Fail(blob.ErrUnsupported)}},
			want:  []string{"warn create-if-absent → refuses create-if-absent → only one writer per run"},
		},
		"conditions cannot be tried": {
			rules: []*blobtest.Rule{{Op: blobtest.OpPut, Key: scratch + "probe-**", Do: blobtest.Fail(blob.ErrTemporary)}},
			want:  []string{"warn create-if-absent → probe → the network"},
		},
		"ignores checksums": {
			broken: broken{ignoreSums: true},
			want:   []string{"warn checksum → accepted content with a wrong checksum → verify"},
		},
		"refuses checksums oddly": {
			rules: []*blobtest.Rule{{Op: blobtest.OpPut, Key: "**-sum", Do: blobtest.Fail(blob.ErrUnsupported)}},
			want:  []string{"warn checksum → for another reason"},
		},
		"no parts": {
			broken: broken{noParts: true},
			want:   []string{"note multipart → in one request → begins that file anew"},
		},
		"parts denied": {
			rules: []*blobtest.Rule{fail(blobtest.OpPart, blob.ErrDenied)}, unreachable: true,
			want: []string{"bad multipart → upload in parts"},
		},
		"parts do not complete": {
			rules: []*blobtest.Rule{fail(blobtest.OpComplete, blob.ErrCorrupt)},
			want:  []string{"bad multipart → upload in parts"},
		},
		"clock": {
			ahead: 10 * time.Minute,
			want:  []string{"warn clock → 10m0s apart → NTP"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := memblob.New()
			b := c.broken
			b.Bucket = mem
			faulty := blobtest.NewFaulty(&b, 1)
			faulty.Add(c.rules...)
			fs := Store(t.Context(), faulty, func() time.Time { return time.Now().Add(c.ahead) })
			only(t, fs, c.want...)
			if fs.Unreachable() != c.unreachable {
				t.Errorf("unreachable: %v", fs.Unreachable())
			}
			if left := keys(t, mem); len(left) > 0 != c.leaves {
				t.Errorf("left behind: %q", left)
			}
			for up := range mem.Uploads(t.Context(), "") {
				t.Errorf("left unfinished: %+v", up)
			}
		})
	}
}

// An interrupted doctor cleans up all the same.
func TestInterrupted(t *testing.T) {
	mem := memblob.New()
	ctx, cancel := context.WithCancel(t.Context())
	b := blobtest.NewFaulty(mem, 1)
	b.After = func(c blobtest.Call, err error) error {
		if c.Op == blobtest.OpPart {
			cancel()
		}
		return err
	}
	fs := Store(ctx, b, time.Now)
	if f := has(t, fs, "delete"); f.Level != OK {
		t.Errorf("%+v", f)
	}
	if left := keys(t, mem); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	for up := range mem.Uploads(t.Context(), "") {
		t.Errorf("left unfinished: %+v", up)
	}
}

func TestUnfinishedUploads(t *testing.T) {
	b := memblob.New()
	for i := range 2 {
		if _, err := b.Upload(t.Context(), fmt.Sprintf("run/data/%d", i), "", &blob.UploadOptions{Size: 10 << 20, PartSize: 5 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	fs := Store(t.Context(), b, time.Now)
	only(t, fs)
	if f := has(t, fs, "unfinished uploads"); !strings.Contains(f.Detail, "2, all begun within the last day") {
		t.Errorf("%+v", f)
	}
	fs = Store(t.Context(), b, func() time.Time { return time.Now().Add(25 * time.Hour) })
	only(t, fs, "warn clock → ", "note unfinished uploads → 2, the oldest begun → lifecycle rule")
}

func TestRun(t *testing.T) {
	b := memblob.New()
	empty, err := commit.NewStore(b, "exp")
	if err != nil {
		t.Fatal(err)
	}
	only(t, Run(t.Context(), empty), "note run → nothing of it → name")
	r := committest.In(t, b, "exp")
	r.Declare(nil)
	r.Commit(committest.ID(1, 100), "step-100", map[string]string{"a": "x"})
	fs := Run(t.Context(), r.Store)
	only(t, fs)
	if f := has(t, fs, "run"); f.Detail != "1 commit, 1 attempt" {
		t.Errorf("%+v", f)
	}
	for _, key := range []string{"exp/notes.txt", "exp/commits/latest.json", "exp10/other"} {
		if _, err := b.Put(t.Context(), key, blob.Bytes("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	only(t, Run(t.Context(), r.Store), "note foreign objects → 2 under the run's prefix → exp/commits/latest.json → never touched")
	for _, key := range []string{"exp/probe/probe-ABC/seq", "exp/probe-ABC/clock"} { // of a process that died at it
		if _, err := b.Put(t.Context(), key, blob.Bytes("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	only(t, Run(t.Context(), r.Store), "note foreign objects → 2 under the run's prefix", "note scratch objects → 2 under exp/probe* → deleted by hand")
}

func TestRunOfAStoreThatFails(t *testing.T) {
	mem := memblob.New()
	committest.In(t, mem, "exp").Declare(nil)
	for name, c := range map[string]struct {
		rule *blobtest.Rule
		want string
	}{
		"not readable": {&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrDenied)}, "bad run → read objects"},
		"unreachable":  {&blobtest.Rule{Do: blobtest.Fail(blob.ErrTemporary)}, "bad run → network"},
	} {
		t.Run(name, func(t *testing.T) {
			f := blobtest.NewFaulty(mem, 1)
			f.Add(c.rule)
			st, err := commit.NewStore(f, "exp")
			if err != nil {
				t.Fatal(err)
			}
			fs := Run(t.Context(), st)
			only(t, fs, c.want)
			if !fs.Unreachable() {
				t.Error("not called unreachable")
			}
		})
	}
}

func TestWorst(t *testing.T) {
	fs := Findings{{Level: Note}, {Level: Bad}, {Level: Warn}, {Level: OK}, {Level: Warn}}
	if fs.Worst() != Bad || fs[2:].Worst() != Warn || fs[:1].Worst() != Note || fs[:0].Worst() != OK {
		t.Error("levels are not in their order")
	}
	if fs.Count(Warn) != 2 || fs.Count(Bad) != 1 {
		t.Error("miscounted")
	}
}
