package format_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/format"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func check(name string, data []byte) format.Result {
	return format.Check(name, bytes.NewReader(data), int64(len(data)))
}

// samples are whole files, by name, of every kind.
func samples() map[string][]byte {
	noise := layouttest.Noise(1, 400)
	object := layouttest.Dict{"w", layouttest.TensorRef("0", 100), "epoch", 3}
	return map[string][]byte{
		"model.safetensors":            layouttest.Safetensors(layouttest.F32("a", 10, 1), layouttest.F32("b", 7, 2)),
		"empty.safetensors":            layouttest.Safetensors(),
		"scalar.safetensors":           layouttest.Safetensors(layouttest.Tensor{Name: "s", Data: noise[:4]}),
		"model.pt":                     layouttest.TorchZip("model", object, noise),
		"last.ckpt":                    layouttest.TorchZip("archive", object, noise),
		"pytorch_model.bin":            layouttest.TorchZip("pytorch_model", object, noise),
		"legacy.pth":                   layouttest.TorchLegacy(object, noise),
		"plain.pt":                     layouttest.Pickle(2, object),
		"some.pkl":                     layouttest.Pickle(4, object),
		".metadata":                    layouttest.DCPMetadata(layouttest.Extent{FQN: "a", File: "__0_0.distcp", Length: 5}),
		"arrays.npz":                   layouttest.Zip(false, layouttest.Record{Name: "a.npy", Data: npy("<f4", "(2, 3)", 24)}),
		"model.keras":                  layouttest.Zip(true, layouttest.Record{Name: "config.json", Data: []byte("{}")}),
		"a.npy":                        npy("<f4", "(2, 3)", 24),
		"scalar.npy":                   npy("|b1", "()", 1),
		"text.npy":                     npy("<U5", "(2,)", 40),
		"old.h5":                       hdf5(0, 200, 200),
		"new.h5":                       hdf5(3, 200, 200),
		"model.gguf":                   gguf(layouttest.Noise(1, 64)),
		"x.parquet":                    []byte("PAR1datadatafoot\x04\x00\x00\x00PAR1"),
		"trainer_state.json":           []byte(`{"loss": NaN, "x": [1, -2.5e3, "\u00e9\n", null, true, {}], "y": -Infinity}`),
		"model.safetensors.index.json": []byte(`{"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}`),
		"log.jsonl":                    []byte("{\"a\": 1}\n{\"b\": [2]}\n"),
		"unended.jsonl":                []byte("{\"a\": 1}\n{\"b\": [2]}"),
		"pytorch_model.bin.index.json": []byte(`{"weight_map": {"a": "x.bin"}}`),
		"anything.unknown":             []byte("whatever"),
		"tokenizer.model":              {0, 1, 2},
		"empty.unknown":                {},
		"__0_0.distcp":                 append(layouttest.TorchZip("archive", object, noise), layouttest.TorchZip("archive", object, noise)...),
		"training_args.bin":            layouttest.TorchZip("training_args", object, noise),
		"sub/dir/model.SAFETENSORS":    layouttest.Safetensors(layouttest.F32("a", 10, 1)),
		"extension-of-something.weird": layouttest.TorchZip("x", object, noise)[:100],
		"arrays_of_objects.npy":        npyObject(),
		"version_that_will_come.h5":    append([]byte("\x89HDF\r\n\x1a\n\x09"), make([]byte, 100)...),
	}
}

func npy(descr, shape string, n int) []byte {
	h := "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }"
	h += strings.Repeat(" ", 117-len(h)) + "\n"
	out := append([]byte("\x93NUMPY\x01\x00"), 0, 0)
	binary.LittleEndian.PutUint16(out[8:], uint16(len(h)))
	return append(append(out, h...), layouttest.Noise(3, n)...)
}

func npyObject() []byte {
	out := npy("|O", "(2,)", 0)
	return append(out, layouttest.Pickle(2, []any{1, "two"})...)
}

func hdf5(version byte, end, size int) []byte {
	b := make([]byte, size)
	copy(b, "\x89HDF\r\n\x1a\n")
	b[8] = version
	if version >= 2 {
		b[9], b[10] = 8, 8
		binary.LittleEndian.PutUint64(b[28:], uint64(end))
	} else {
		b[13], b[14] = 8, 8
		binary.LittleEndian.PutUint64(b[40:], uint64(end))
	}
	return b
}

func gguf(data []byte) []byte {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	b := []byte("GGUF")
	b = le.AppendUint32(b, 3)
	b = le.AppendUint64(b, 1) // tensors
	b = le.AppendUint64(b, 3) // pairs
	b = le.AppendUint32(str(b, "general.alignment"), 4)
	b = le.AppendUint32(b, 64)
	b = str(le.AppendUint32(str(b, "general.name"), 8), "small")
	b = le.AppendUint32(str(b, "tokens"), 9)
	b = le.AppendUint64(le.AppendUint32(b, 8), 2)
	b = str(str(b, "<s>"), "</s>")
	b = le.AppendUint32(str(b, "w"), 1)
	b = le.AppendUint64(b, uint64(len(data)/4))
	b = le.AppendUint32(b, 0) // float32
	b = le.AppendUint64(b, 0)
	for len(b)%64 != 0 {
		b = append(b, 0)
	}
	return append(b, data...)
}

func TestWholeFiles(t *testing.T) {
	for name, data := range samples() {
		if res := check(name, data); res.Problem != "" || res.Err != nil {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

// loose are the samples of which a byte more or less may go unnoticed, and
// why: not checked at all (""), or not when longer ("longer").
var loose = map[string]string{
	"anything.unknown": "", "tokenizer.model": "", "empty.unknown": "", "__0_0.distcp": "", "extension-of-something.weird": "",
	"version_that_will_come.h5": "", "log.jsonl": "", "old.h5": "longer", "new.h5": "longer", "model.gguf": "longer",
}

func TestTornFiles(t *testing.T) {
	for name, data := range samples() {
		how, isLoose := loose[name]
		if isLoose && how == "" {
			continue
		}
		if res := check(name, nil); res.Problem != "empty" {
			t.Errorf("%s emptied: %+v", name, res)
		}
		for n := range len(data) {
			if n > 0 && n < len(data)-1 && n%7 != 0 {
				continue
			}
			if res := check(name, data[:n]); res.Problem == "" {
				t.Errorf("%s cut to %d of %d bytes: %+v", name, n, len(data), res)
			}
		}
		if res := check(name, append(bytes.Clone(data), 'x')); res.Problem == "" && how != "longer" {
			t.Errorf("%s with a byte more: %+v", name, res)
		}
	}
}

func TestProblems(t *testing.T) {
	header := func(h string, data int) []byte {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(h)))
		return append(append(b, h...), make([]byte, data)...)
	}
	zip := layouttest.TorchZip("model", layouttest.Dict{}, layouttest.Noise(1, 100))
	huge := bytes.Clone(layouttest.Zip(false, layouttest.Record{Name: "m/data.pkl", Data: []byte("N.")}))
	binary.LittleEndian.PutUint16(huge[len(huge)-12:], 60000)
	fewer := layouttest.Zip(false, layouttest.Record{Name: "a"}, layouttest.Record{Name: "b"})
	fewer[len(fewer)-12] = 1
	local := bytes.Clone(zip)
	local[0] = 'X'
	noPickle := layouttest.Zip(true, layouttest.Record{Name: "other", Data: []byte("x")})
	open := hdf5(3, 200, 200)
	open[11] = 1
	legacy := layouttest.TorchLegacy(layouttest.Dict{"w", layouttest.TensorRef("0", 100)}, layouttest.Noise(1, 396), nil)
	for _, c := range []struct {
		what, name string
		data       []byte
		want       string
	}{
		{"header longer than the limit", "a.safetensors", binary.LittleEndian.AppendUint64(nil, 1<<40), "claims a header of 1099511627776 bytes, over the format's limit: not safetensors"},
		{"header of all ones", "a.safetensors", bytes.Repeat([]byte{0xff}, 100), "claims a header of 18446744073709551615 bytes, over the format's limit: not safetensors"},
		{"zeros", "a.safetensors", make([]byte, 100), "has a header of no bytes: its content never reached the disk"},
		{"not JSON", "a.safetensors", header("{\"a\":", 0), "has a broken header: the text ends in the middle of a value at byte 5"},
		{"leading space", "a.safetensors", header(" {}", 0), "has a broken header: the header does not begin with { at byte 1"},
		{"gap", "a.safetensors", header(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "has a broken header: a gap or overlap at data offset 0"},
		{"overlap", "a.safetensors", header(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "has a broken header: a gap or overlap at data offset 2"},
		{"shape and extent", "a.safetensors", header(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), `has a broken header: tensor "a" has 4 bytes, which its type and shape do not make at byte 53`},
		{"shape overflows", "a.safetensors", header(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, 0), `has a broken header: tensor "a" has a shape of too many elements at byte 50`},
		{"negative", "a.safetensors", header(`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1), `has a broken header: tensor "a" has a number that is none at byte 30`},
		{"half bytes", "a.safetensors", header(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), `has a broken header: tensor "a" has 1 bytes, which its type and shape do not make at byte 52`},
		{"absurd offset", "a.safetensors", header(`{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`, 0), `has a broken header: tensor "a" has 9223372036854775807 bytes, which its type and shape do not make at byte 88`},
		{"absurd sum", "a.safetensors", header(`{"a":{"dtype":"U8","shape":[1000000000000000000],"data_offsets":[0,1000000000000000000]},"b":{"dtype":"X","shape":[],"data_offsets":[1000000000000000000,9223372036854775807]}}`, 0), "has a header that claims more data than any file can hold"},
		{"longer", "a.safetensors", header(`{}`, 5), "has 5 bytes more than its header says"},
		{"zip without a pickle", "a.pt", noPickle, "a zip without data.pkl: torch.save did not write it"},
		{"zip with too many entries", "a.pt", huge, "broken zip: a directory of 56 bytes cannot hold 60000 records"},
		{"zip with a broken local header", "a.zip", local, `broken zip: record "model/data.pkl" is not where the directory says`},
		{"zip with bytes after it", "a.pt", append(bytes.Clone(zip), "tail"...), "has 4 bytes after the end of the zip"},
		{"zeros for a zip", "a.pt", make([]byte, 1000), "begins with zero bytes: its content never reached the disk"},
		{"text for a zip", "a.pth", []byte("hello, world"), "neither a torch zip nor a pickle"},
		{"start of a zip", "a.pt", []byte("PK"), "truncated after its first bytes"},
		{"legacy, other length", "a.pt", legacy, "has a storage of 99 elements where its pickle says 100"},
		{"HDF5 open", "a.h5", open, "is still open for writing, or was never closed"},
		{"HDF5 short", "a.h5", hdf5(0, 300, 200), "short by 100 bytes"},
		{"HDF5 without an end", "a.h5", hdf5(2, -1, 200), "was never closed: its superblock has no end"},
		{"JSON with zeros after it", "a.json", []byte("{}\x00\x00"), `not valid JSON: '\x00' after the end of the value at byte 2`},
		{"JSON with a doubled comma", "a.json", []byte("[1,,2]"), `not valid JSON: "" is no value at byte 3`},
		{"deep JSON", "a.json", bytes.Repeat([]byte("["), 100000), "not valid JSON: values are nested too deeply at byte 513"},
		{"torn line", "a.jsonl", []byte("{\"a\":1}\n{\"a\":"), "its last line is not whole"},
		{"torn number", "a.jsonl", []byte("1\n12"), "its last line is not whole"},
		{"broken line", "a.jsonl", []byte("{\"a\":1}\n{\"a\":\n"), "its last line is not JSON: the text ends in the middle of a value at byte 5"},
		{"empty index", "a.index.json", []byte(`{"weight_map":{}}`), "an index whose weight_map is empty"},
		{"absurd npy header", "a.npy", []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff\x00\x00"), "claims a header of 4294967295 bytes"},
		{"absurd npy shape", "a.npy", npy("<f8", "(99999999999, 99999999999)", 8), "has a header with a shape that is none"},
		{"pickle of a length beyond the end", "a.pkl", []byte("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."), "a pickle that ends in mid-opcode at byte 12"},
		{"text after a pickle", "a.pkl", []byte("\x80\x02N.N."), "something else follows a pickle at byte 4"},
		{"zip with an entry that is not counted", "a.zip", fewer, "broken zip: its directory has 47 bytes too many"},
		{"pickle with an unknown opcode", "a.pkl", []byte("\x80\x04\xff."), "a pickle with no known opcode at byte 2"},
	} {
		if got := check(c.name, c.data); got.Problem != c.want {
			t.Errorf("%s: %+v, want %q", c.what, got, c.want)
		}
	}
}

func TestZeroTailIsAWarning(t *testing.T) {
	data := layouttest.Safetensors(layouttest.F32("w", 50000, 1))
	if res := check("a.safetensors", data); len(res.Warnings) > 0 {
		t.Errorf("whole: %q", res.Warnings)
	}
	clear(data[len(data)-70000:])
	if res := check("a.safetensors", data); res.Problem != "" || len(res.Warnings) != 1 {
		t.Errorf("zero tail: %+v", res)
	}
}

func TestUnknownTypeIsAWarning(t *testing.T) {
	h := `{"a":{"dtype":"F128","shape":[2],"data_offsets":[0,4]}}`
	data := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), 1, 2, 3, 4)
	if res := check("a.safetensors", data); res.Problem != "" || len(res.Warnings) != 1 {
		t.Errorf("%+v", res)
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestReaderErrors(t *testing.T) {
	for name, data := range samples() {
		if len(data) == 0 {
			continue
		}
		broken := errors.New("input/output error")
		if res := format.Check(name, failing{broken}, int64(len(data))); res.Err == nil && res.Kind != format.Unknown || res.Err != nil && !errors.Is(res.Err, broken) {
			t.Errorf("%s: %+v", name, res)
		}
		// A file that shrank since its size was taken.
		if res := format.Check(name, bytes.NewReader(data[:1]), int64(len(data))); res.Problem == "" && res.Kind != format.Unknown {
			t.Errorf("%s shrank: %+v", name, res)
		}
	}
	if res := format.Check("a.json", failing{io.EOF}, 5); res.Problem != "ended before its 5 bytes: it shrank while it was read" {
		t.Errorf("%+v", res)
	}
}

// counting counts the bytes that a check reads.
type counting struct {
	io.ReaderAt
	n int64
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, off)
	c.n += int64(n)
	return n, err
}

func TestReadsLittle(t *testing.T) {
	for name, data := range map[string][]byte{
		"big.safetensors": layouttest.Safetensors(layouttest.F32("w", 4<<20, 1)),
		"big.pt":          layouttest.TorchZip("big", layouttest.Dict{}, layouttest.Noise(1, 16<<20)),
		"legacy.pt":       layouttest.TorchLegacy(layouttest.Dict{"w", layouttest.TensorRef("0", 4<<20)}, layouttest.Noise(1, 16<<20)),
	} {
		c := &counting{ReaderAt: bytes.NewReader(data)}
		if res := format.Check(name, c, int64(len(data))); res.Problem != "" {
			t.Errorf("%s: %+v", name, res)
		}
		if c.n > 512<<10 {
			t.Errorf("%s: read %d of %d bytes", name, c.n, len(data))
		}
	}
}

func TestUnpickle(t *testing.T) {
	ordered := layouttest.Global{Module: "collections", Name: "OrderedDict"}
	for _, protocol := range []int{2, 4} {
		data := layouttest.Pickle(protocol, layouttest.Dict{
			"n", -70000, "big", int64(1) << 40, "neg", int64(-1) << 40, "f", 2.5, "l", []any{1, nil, true}, "t", layouttest.Tuple{"a", false},
			"o", layouttest.Object{Class: layouttest.Global{Module: "m", Name: "C"}, Args: layouttest.Tuple{1}, State: layouttest.Dict{"x", 7}},
			"c", layouttest.Call{Func: ordered, Args: layouttest.Tuple{}}, "p", layouttest.Persistent{ID: "id"}, "b", []byte("raw"),
		})
		v, next, err := format.Unpickle(bytes.NewReader(data), 0, int64(len(data)), format.UnpickleOptions{})
		if err != nil || next != int64(len(data)) {
			t.Fatalf("protocol %d: %v, ended at %d of %d", protocol, err, next, len(data))
		}
		want := &format.Dict{
			Keys: []any{"n", "big", "neg", "f", "l", "t", "o", "c", "p", "b"},
			Values: []any{int64(-70000), int64(1) << 40, int64(-1) << 40, 2.5, &format.List{Items: []any{int64(1), nil, true}}, format.Tuple{"a", false},
				&format.Object{Class: format.Global{Module: "m", Name: "C"}, Args: format.Tuple{int64(1)},
					State: &format.Dict{Keys: []any{"x"}, Values: []any{int64(7)}}},
				&format.Object{Class: format.Global{Module: "collections", Name: "OrderedDict"}, Args: format.Tuple(nil)},
				format.Persistent{ID: "id"}, []byte("raw")},
		}
		if d := cmp.Diff(want, v, cmp.Transformer("nil", func(t format.Tuple) []any { return append([]any{}, t...) })); d != "" {
			t.Errorf("protocol %d: %s", protocol, d)
		}
		if x, ok := format.Lookup(want.Values[6], "x"); !ok || x != int64(7) {
			t.Errorf("lookup in an object's state: %v", x)
		}
	}
}

// Pickles of protocol 0, written by hand, and of the memo.
func TestUnpickleText(t *testing.T) {
	for in, want := range map[string]any{
		"I42\n.": int64(42), "I01\n.": true, "L5L\n.": int64(5), "F1.5\n.": 1.5, "S'abc'\n.": "abc", "Vabc\n.": "abc",
		"(lp0\nI1\na.":            &format.List{Items: []any{int64(1)}},
		"(dp0\nS'k'\np1\ng1\ns.":  &format.Dict{Keys: []any{"k"}, Values: []any{"k"}},
		"(I1\nI2\nt.":             format.Tuple{int64(1), int64(2)},
		"cos\nsystem\n(S'x'\ntR.": &format.Object{Class: format.Global{Module: "os", Name: "system"}, Args: format.Tuple{"x"}},
	} {
		v, _, err := format.Unpickle(strings.NewReader(in), 0, int64(len(in)), format.UnpickleOptions{})
		if d := cmp.Diff(want, v); err != nil || d != "" {
			t.Errorf("%q: %v %s", in, err, d)
		}
	}
	for _, in := range []string{"", ".", "0.", "a.", "I1\na.", "g7\n.", "Iabc\n.", "(.", "u.", "R.", "(e.", "NNb", "b.", "\x85.", "(o."} {
		if v, _, err := format.Unpickle(strings.NewReader(in), 0, int64(len(in)), format.UnpickleOptions{}); err == nil {
			t.Errorf("%q gave %v", in, v)
		}
	}
}

func TestUnpickleIsBounded(t *testing.T) {
	data := append([]byte("\x80\x02]("), bytes.Repeat([]byte("K\x01"), 1<<20)...)
	data = append(data, "e."...)
	_, _, err := format.Unpickle(bytes.NewReader(data), 0, int64(len(data)), format.UnpickleOptions{Limit: 1 << 20})
	if !errors.Is(err, format.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestDCPMetadata(t *testing.T) {
	data := layouttest.DCPMetadata(
		layouttest.Extent{FQN: "a", File: "__0_0.distcp", Offset: 0, Length: 10},
		layouttest.Extent{FQN: "b", File: "__0_0.distcp", Offset: 10, Length: 90},
		layouttest.Extent{FQN: "c", File: "__1_0.distcp", Offset: 0, Length: 5})
	got, err := format.DCPMetadata(bytes.NewReader(data), int64(len(data)))
	if d := cmp.Diff(format.ShardExtents{"__0_0.distcp": 100, "__1_0.distcp": 5}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for what, bad := range map[string][]byte{
		"another pickle": layouttest.Pickle(4, layouttest.Dict{}),
		"longer":         append(bytes.Clone(data), '.'),
		"negative":       layouttest.DCPMetadata(layouttest.Extent{FQN: "a", File: "x", Offset: -1, Length: 10}),
	} {
		if got, err := format.DCPMetadata(bytes.NewReader(bad), int64(len(bad))); err == nil {
			t.Errorf("%s: %v", what, got)
		}
	}
}
