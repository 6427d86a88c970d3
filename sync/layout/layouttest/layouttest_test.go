package layouttest_test

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// The standard library's reader, which is not ours, must accept our zips.
func TestTorchZipIsAZip(t *testing.T) {
	for _, zip64 := range []bool{false, true} {
		want := layouttest.Noise(1, 1000)
		data := layouttest.Zip(zip64, layouttest.Record{Name: "a/data.pkl", Data: []byte("x")}, layouttest.Record{Name: "a/data/0", Data: want})
		zr, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("zip64=%v: %v", zip64, err)
		}
		f, err := zr.Open("a/data/0")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("zip64=%v: read %d bytes, %v", zip64, len(got), err)
		}
	}
}

func TestHFStepOnDisk(t *testing.T) {
	dir := layouttest.MustHFStep(t, t.TempDir(), 300, layouttest.DeepSpeed(2))
	var names []string
	last := layouttest.HFFiles(300, layouttest.DeepSpeed(2))
	for _, f := range last {
		names = append(names, f.Name)
		fi, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		if !fi.ModTime().Equal(f.MTime) {
			t.Errorf("%s: mtime %v, want %v", f.Name, fi.ModTime(), f.MTime)
		}
	}
	want := []string{"config.json", "model.safetensors", "training_args.bin",
		"global_step300/mp_rank_00_model_states.pt",
		"global_step300/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
		"global_step300/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
		"latest", "zero_to_fp32.py", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if newest := last[len(last)-1].MTime; !fi.ModTime().Equal(newest) {
		t.Errorf("directory mtime %v, want %v", fi.ModTime(), newest)
	}
}
