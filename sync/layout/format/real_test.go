package format_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Files that real trainers wrote: whole as they are, and torn by one byte.
func TestRealFiles(t *testing.T) {
	kinds := map[string]int{}
	err := filepath.WalkDir("../testdata/hf", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		res := check(p, data)
		if res.Problem != "" || res.Err != nil {
			t.Errorf("%s: %+v", p, res)
		}
		kinds[res.Kind]++
		if res.Kind == format.Unknown {
			return nil
		}
		data = bytes.TrimRight(data, "\n") // a JSON text may end in white space
		if torn := check(p, data[:len(data)-1]); torn.Problem == "" {
			t.Errorf("%s (%s): torn by one byte and not noticed", p, res.Kind)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{format.Safetensors, format.TorchZip, format.TorchLegacy, format.JSONText, format.HFIndex, format.Pickle} {
		if kinds[k] == 0 {
			t.Errorf("no file of kind %s", k)
		}
	}
}

func TestRealDCPMetadata(t *testing.T) {
	for _, dir := range []string{"pytorch_model_fsdp_0", "optimizer_0"} {
		dir = "../testdata/hf/fsdp-sharded/checkpoint-2/" + dir
		f, err := os.Open(dir + "/.metadata")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		ext, err := format.DCPMetadata(f, fi.Size())
		if err != nil {
			t.Fatal(err)
		}
		if len(ext) != 2 {
			t.Errorf("%s: names %d files, want 2: %v", dir, len(ext), ext)
		}
		for name, n := range ext {
			fi, err := os.Stat(dir + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if fi.Size() != n {
				t.Errorf("%s/%s: metadata says %d bytes, the file has %d", dir, name, n, fi.Size())
			}
		}
	}
}
