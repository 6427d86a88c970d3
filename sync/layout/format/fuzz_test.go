package format_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// FuzzCheck feeds every checker any bytes under any name: no panic, no read
// outside the file, bounded time, and no error that is not the reader's.
func FuzzCheck(f *testing.F) {
	for name, data := range samples() {
		f.Add(name, data)
		f.Add(name, data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		res := format.Check(name, strict{t, data}, int64(len(data)))
		if res.Err != nil {
			t.Errorf("an error of a reader that has none: %v", res.Err)
		}
	})
}

// strict fails the test on a read outside the file.
type strict struct {
	t    *testing.T
	data []byte
}

func (s strict) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(s.data)) {
		s.t.Errorf("read at %d of %d", off, len(s.data))
		return 0, io.EOF
	}
	return bytes.NewReader(s.data).ReadAt(p, off)
}

func FuzzUnpickle(f *testing.F) {
	for _, data := range samples() {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, next, err := format.Unpickle(bytes.NewReader(data), 0, int64(len(data)), format.UnpickleOptions{Limit: 1 << 20})
		if err == nil && (next < 1 || next > int64(len(data))) {
			t.Errorf("ended at %d of %d", next, len(data))
		}
		format.Lookup(v, "key")
	})
}

func FuzzDCPMetadata(f *testing.F) {
	f.Add(samples()[".metadata"])
	f.Fuzz(func(t *testing.T, data []byte) {
		ext, err := format.DCPMetadata(bytes.NewReader(data), int64(len(data)))
		for name, n := range ext {
			if err != nil || n < 0 {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
	})
}

func FuzzTorchObject(f *testing.F) {
	f.Add(samples()["model.pt"])
	f.Add(samples()["legacy.pth"])
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = format.TorchObject(bytes.NewReader(data), int64(len(data)), format.UnpickleOptions{Limit: 1 << 20})
	})
}

func FuzzReadIndex(f *testing.F) {
	f.Add(samples()["model.safetensors.index.json"])
	f.Fuzz(func(t *testing.T, data []byte) {
		ix, err := format.ReadIndex(bytes.NewReader(data), int64(len(data)))
		if err == nil && len(ix.Shards) == 0 {
			t.Error("an index of nothing, and no error")
		}
	})
}

// What our JSON reader takes, and nothing else, is JSON but for the three
// words of Python.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,"\u00e9",null,true]}`, `[NaN]`, `"x`, `01`, `-`, `1.`, `"\ud800"`, "[\"\x01\"]", `{"a":1,"a":2}`, `{} {}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		skip := func() error {
			j := format.NewJSON(bytes.NewReader(data))
			if err := j.Skip(); err != nil {
				return err
			}
			return j.End()
		}()
		value := func() error {
			j := format.NewJSON(bytes.NewReader(data))
			if _, err := j.Value(1 << 20); err != nil {
				return err
			}
			return j.End()
		}()
		if (skip == nil) != (value == nil) && len(data) < 1<<16 {
			t.Errorf("skipping says %v, reading says %v", skip, value)
		}
		compareWithStandard(t, data, skip == nil)
	})
}
