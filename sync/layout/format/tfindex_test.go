package format_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/format"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func tfIndex(shards int, tensors ...layouttest.TFTensor) []byte {
	files := layouttest.TFBundle("x", shards, tensors...)
	return files[len(files)-1].Data
}

func TestReadTFIndex(t *testing.T) {
	data := tfIndex(2, layouttest.TFTensor{Name: "layer/bias", Bytes: 40}, layouttest.TFTensor{Name: "layer/kernel", Shard: 1, Bytes: 24},
		layouttest.TFTensor{Name: "layer/kernel/Adam", Bytes: 300})
	var names []string
	ix, err := format.ReadTFIndex(bytes.NewReader(data), int64(len(data)), func(s string) { names = append(names, s) })
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&format.TFIndex{Extents: []int64{340, 24}, Tensors: 3}, ix); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"layer/bias", "layer/kernel", "layer/kernel/Adam"}, names); d != "" {
		t.Error(d)
	}
}

// Cut anywhere, or with any byte changed that a checksum covers, it is broken,
// and never more than that.
func TestReadTFIndexTorn(t *testing.T) {
	data := tfIndex(1, layouttest.TFTensor{Name: "a", Bytes: 40}, layouttest.TFTensor{Name: "b", Bytes: 8})
	for n := range data {
		if _, err := format.ReadTFIndex(bytes.NewReader(data[:n]), int64(n), nil); err == nil {
			t.Errorf("whole with %d of %d bytes", n, len(data))
		}
	}
	for i := range len(data) - 48 {
		bad := bytes.Clone(data)
		bad[i] ^= 0x10
		if _, err := format.ReadTFIndex(bytes.NewReader(bad), int64(len(bad)), nil); err == nil {
			t.Errorf("byte %d changed, and nothing said", i)
		}
	}
}

func TestReadTFIndexReasons(t *testing.T) {
	for want, data := range map[string][]byte{
		"too short for the index of a TensorFlow bundle": []byte("x"),
		"has no footer of a table":                       bytes.Repeat([]byte("x"), 100),
		"a table without the header":                     layouttest.EmptyTable(),
		"an index with an entry that has no place":       layouttest.TFIndexOnly(1, layouttest.TFTensor{Name: "a", Shard: 1, Bytes: 8}),
	} {
		if _, err := format.ReadTFIndex(bytes.NewReader(data), int64(len(data)), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func FuzzReadTFIndex(f *testing.F) {
	f.Add(tfIndex(1, layouttest.TFTensor{Name: "a", Bytes: 40}))
	f.Add(tfIndex(3, layouttest.TFTensor{Name: "aa", Bytes: 40}, layouttest.TFTensor{Name: "ab", Shard: 2, Bytes: 8}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = format.ReadTFIndex(bytes.NewReader(data), int64(len(data)), func(string) {})
	})
}
