package format_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// compareWithStandard holds our judgement of a text against the standard
// library's. Texts that may hold Python's words, or be nested deeper than we
// allow, are not compared.
func compareWithStandard(t *testing.T, data []byte, ours bool) {
	t.Helper()
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > 500 || bytes.Contains(data, []byte("N")) || bytes.Contains(data, []byte("I")) {
		return
	}
	if std := json.Valid(data); std != ours {
		t.Errorf("%q: valid by the standard library %v, by us %v", data, std, ours)
	}
}

func TestJSONValue(t *testing.T) {
	in := `{"i": -7, "f": 2.5, "big": 1e999, "n": null, "b": [true, false, NaN, Infinity, -Infinity], "s": "a\u00e9\n\ud83d\ude00", "o": {"x": []}}`
	got, err := format.NewJSON(strings.NewReader(in)).Value(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"i": int64(-7), "f": 2.5, "big": "1e999", "n": nil,
		"b": []any{true, false, "NaN", "Infinity", "-Infinity"}, "s": "aé\n😀", "o": map[string]any{"x": []any{}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestJSONValueIsBounded(t *testing.T) {
	in := `["` + strings.Repeat("x", 100) + `", "` + strings.Repeat("y", 1<<20) + `", 3]`
	j := format.NewJSON(strings.NewReader(in))
	v, err := j.Value(1000)
	if err != nil || j.End() != nil {
		t.Fatal(err)
	}
	l, _ := v.([]any)
	if len(l) == 0 || l[0] != strings.Repeat("x", 100) {
		t.Errorf("got %T of %d", v, len(l))
	}
	kept := 0
	for _, x := range l {
		if s, ok := x.(string); ok {
			kept += len(s)
		}
	}
	if kept > 1000 {
		t.Errorf("kept %d bytes, over 1000", kept)
	}
}
