package commit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// manifestHead has the fields of a Manifest and none of its methods.
type manifestHead Manifest

// skipped stands where a field is not to be decoded, and is left out when
// encoded.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

// Sort brings Files into the order that Validate asks for.
func (m *Manifest) Sort() {
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

// MarshalJSON implements json.Marshaler with the canonical bytes, less the
// newline at the end.
func (m *Manifest) MarshalJSON() ([]byte, error) {
	b, err := encodeManifest(m)
	return bytes.TrimSuffix(b, []byte("\n")), err
}

// encodeManifest returns the canonical bytes: the fields before the files as
// in any small object, then one line per file.
func encodeManifest(m *Manifest) ([]byte, error) {
	head, err := encode(struct {
		*manifestHead
		Files *skipped `json:"files,omitempty"`
	}{manifestHead: (*manifestHead)(m)}, maxSmall)
	if err != nil {
		return nil, fmt.Errorf("part manifest without its files: %w", err)
	}
	b := append(bytes.TrimSuffix(head, []byte("\n}\n")), ",\n  \"files\": ["...)
	for i := range m.Files {
		if i > 0 {
			b = append(b, ',')
		}
		b = m.Files[i].appendJSON(append(b, "\n    "...))
	}
	if len(m.Files) > 0 {
		b = append(b, "\n  "...)
	}
	b = append(b, "]\n}\n"...)
	if len(b) > MaxManifest {
		return nil, fmt.Errorf("part manifest of %d files: %d bytes, over the limit of %d", len(m.Files), len(b), MaxManifest)
	}
	return b, nil
}

// DecodeManifest parses the bytes of a part manifest and validates it. What
// it takes of memory is bounded by a small multiple of len(data).
func DecodeManifest(data []byte) (*Manifest, error) {
	var body struct {
		formatField
		Files json.RawMessage `json:"files"`
	}
	if err := checkFormat(data, FormatManifest, MaxManifest, &body); err != nil {
		return nil, err
	}
	if n := len(data) - len(body.Files); n > maxSmall {
		return nil, invalid("part: %d bytes besides the files, over the limit of %d", n, maxSmall)
	}
	m := new(Manifest)
	if err := json.Unmarshal(data, &struct {
		*manifestHead
		Files skipped `json:"files"`
	}{manifestHead: (*manifestHead)(m)}); err != nil {
		return nil, invalid("part: %w", err)
	}
	var err error
	if m.Files, err = decodeFiles(body.Files); err != nil {
		return nil, invalid("part: files: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return m, nil
}

// decodeFiles parses the array of files one by one, so that an array of very
// many empty entries is refused at the first.
func decodeFiles(data []byte) ([]File, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("there is no such field")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("not an array")
	}
	var files []File
	for dec.More() {
		var j fileJSON
		var f File
		err := dec.Decode(&j)
		if err == nil {
			err = f.from(&j)
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(files), err)
		}
		files = append(files, f)
	}
	return files, nil
}

// UnmarshalJSON implements json.Unmarshaler; it is DecodeManifest.
func (m *Manifest) UnmarshalJSON(data []byte) error {
	d, err := DecodeManifest(data)
	if err != nil {
		return err
	}
	*m = *d
	return nil
}

// canonicalMetadata returns md as every reader of its JSON gets it. It leaves
// md itself alone: the caller may share it.
func canonicalMetadata(md map[string]any) (map[string]any, error) {
	var out map[string]any
	for k, v := range md {
		c, _, err := canonicalValue(v)
		if err != nil {
			return nil, fmt.Errorf("metadata %q: %w", k, err)
		}
		if out == nil {
			out = make(map[string]any, len(md))
		}
		out[k] = c
	}
	return out, nil
}

// canonicalValue returns v as every reader of its JSON gets it, and how many
// bytes that takes.
func canonicalValue(v any) (any, int, error) {
	b, err := json.Marshal(cleanMetadata(v))
	if err != nil {
		return nil, 0, err
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, 0, err
	}
	b, err = json.Marshal(out)
	return out, len(b), err
}

// cleanMetadata replaces numbers that JSON does not have (a loss that is NaN)
// by their names, so that they do not stop a commit.
func cleanMetadata(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case float32:
		return cleanMetadata(float64(v))
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = cleanMetadata(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = cleanMetadata(e)
		}
		return out
	}
	return v
}
