package adopt

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func bucket(t *testing.T, files map[string]string) *memblob.Bucket {
	t.Helper()
	b := memblob.New()
	for key, text := range files {
		put(t, b, key, text)
	}
	return b
}

func put(t *testing.T, b blob.Bucket, key, text string) {
	t.Helper()
	if _, err := b.Put(t.Context(), key, blob.Bytes([]byte(text)), nil); err != nil {
		t.Fatal(err)
	}
}

func finder(t *testing.T) *layout.Finder {
	t.Helper()
	l, err := layout.New(layout.Spec{Name: "plain", Step: "epoch-{step}", Marker: "DONE", Required: []string{"w.json"}, Ignore: []string{"*.tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	return layout.NewFinder(l)
}

func step(n string) map[string]string {
	return map[string]string{"epoch-" + n + "/w.json": `{"w": ` + n + `}`, "epoch-" + n + "/DONE": ""}
}

func look(t *testing.T, b blob.Bucket) *Found {
	t.Helper()
	f, err := Look(t.Context(), b, finder(t), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLookPassesOverKeysThatAreNoPaths(t *testing.T) {
	b := bucket(t, step("1"))
	put(t, b, "epoch-1", "a placeholder")
	for _, key := range []string{`epoch-2\w.json`, "epoch-3/w.json"} {
		put(t, b, key, "{}")
	}
	f := look(t, b)
	if len(f.Steps) != 2 || len(f.Steps[0].Reasons) > 0 || len(f.Steps[1].Reasons) == 0 {
		t.Errorf("steps %+v", f.Steps)
	}
	if len(f.Ignored) != 2 {
		t.Errorf("ignored %+v", f.Ignored)
	}
}

func TestLookJudgesRealSteps(t *testing.T) {
	b := memblob.New()
	for _, f := range layouttest.HFFiles(100) {
		put(t, b, "checkpoint-100/"+f.Name, string(f.Data))
	}
	for _, f := range layouttest.HFFiles(200) {
		if f.Name != "trainer_state.json" {
			put(t, b, "checkpoint-200/"+f.Name, string(f.Data))
		}
	}
	f, err := Look(t.Context(), b, layout.NewFinder(layout.Builtins()...), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Steps) != 2 || len(f.Steps[0].Reasons) > 0 || !strings.Contains(strings.Join(f.Steps[1].Reasons, " "), "trainer_state.json") {
		t.Errorf("%+v", f.Steps)
	}
}

func TestAStoreThatCannotBeAskedIsNoTornStep(t *testing.T) {
	b := &failing{Bucket: bucket(t, step("1"))}
	if _, err := Look(t.Context(), b, finder(t), time.Now().Add(time.Hour)); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("error %v", err)
	}
}

// failing lists and lets nothing be read.
type failing struct{ blob.Bucket }

func (b *failing) Open(_ context.Context, key string, _, _ int64) (io.ReadCloser, error) {
	return nil, blob.Errorf(blob.ErrDenied, "open", key, "no")
}

func TestBringNoticesWhatIsUploadedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(b blob.Bucket){
		"nothing":            func(blob.Bucket) {},
		"another step":       func(b blob.Bucket) { put(t, b, "epoch-10/w.json", "{}") },
		"a file more":        func(b blob.Bucket) { put(t, b, "epoch-1/more", "x") },
		"the same size anew": func(b blob.Bucket) { put(t, b, "epoch-1/w.json", `{"w": 9}`) },
		"a file less": func(b blob.Bucket) {
			if err := b.Delete(t.Context(), "epoch-1/DONE"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := bucket(t, step("1"))
			s := look(t, b).Steps[0]
			change(b)
			root := t.TempDir()
			err := Bring(t.Context(), b, &s, root, 2)
			if want := name == "nothing" || name == "another step"; (err == nil) != want {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			got, err := os.ReadFile(filepath.Join(root, "epoch-1", "w.json"))
			if err != nil || string(got) != `{"w": 1}` {
				t.Errorf("brought %q, %v", got, err)
			}
			if _, err := os.Stat(filepath.Join(root, "epoch-10")); err == nil {
				t.Error("another step came along")
			}
		})
	}
}
