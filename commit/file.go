package commit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fileJSON is a File as it stands in a manifest. Digests are one string, 64
// hexadecimal digits for each chunk.
type fileJSON struct {
	Path     string   `json:"path"`
	Type     FileType `json:"type"`
	Mode     string   `json:"mode"`
	UID      int      `json:"uid"`
	GID      int      `json:"gid"`
	MTime    int64    `json:"mtime_ns"`
	Size     int64    `json:"size"`
	Target   string   `json:"target"`
	Object   string   `json:"object"`
	Chunk    int64    `json:"chunk"`
	Digests  string   `json:"digests"`
	Late     bool     `json:"late"`
	Encoding string   `json:"encoding"`
}

const encodingPercent = "percent"

// MarshalJSON implements json.Marshaler: one line, without spaces.
func (f File) MarshalJSON() ([]byte, error) { return f.appendJSON(nil), nil }

// appendJSON appends the file as one line. Fields that the type of entry does
// not have are left out.
func (f *File) appendJSON(b []byte) []byte {
	path, target := f.Path, f.Target
	percent := !utf8.ValidString(path) || !utf8.ValidString(target)
	if percent {
		path, target = percentEncode(path), percentEncode(target)
	}
	b = append(b, `{"path":`...)
	b = appendString(b, path)
	b = append(b, `,"type":`...)
	b = appendString(b, string(f.Type))
	b = append(b, fmt.Sprintf(`,"mode":"%04o","uid":%d,"gid":%d,"mtime_ns":%d`, f.Mode, f.UID, f.GID, f.MTime)...)
	if f.Type == TypeFile || f.Size != 0 {
		b = strconv.AppendInt(append(b, `,"size":`...), f.Size, 10)
	}
	if target != "" {
		b = appendString(append(b, `,"target":`...), target)
	}
	if f.Object != "" {
		b = appendString(append(b, `,"object":`...), f.Object)
	}
	if f.Chunk != 0 {
		b = strconv.AppendInt(append(b, `,"chunk":`...), f.Chunk, 10)
	}
	if len(f.Digest) > 0 {
		b = append(b, `,"digests":"`...)
		for i := range f.Digest {
			b = hex.AppendEncode(b, f.Digest[i][:])
		}
		b = append(b, '"')
	}
	if f.Late {
		b = append(b, `,"late":true`...)
	}
	if percent {
		b = append(b, `,"encoding":"percent"`...)
	}
	return append(b, '}')
}

// UnmarshalJSON implements json.Unmarshaler. It checks the form of every
// field; what the fields mean is for Manifest.Validate.
func (f *File) UnmarshalJSON(data []byte) error {
	var j fileJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	return f.from(&j)
}

// from sets f from what was decoded.
func (f *File) from(j *fileJSON) error {
	if j.Path == "" {
		return fmt.Errorf("an entry without a path")
	}
	switch j.Encoding {
	case "":
	case encodingPercent:
		var err error
		if j.Path, err = unescape(j.Path); err != nil {
			return fmt.Errorf("path: %w", err)
		}
		if j.Target, err = unescape(j.Target); err != nil {
			return fmt.Errorf("%q: target: %w", j.Path, err)
		}
	default:
		return fmt.Errorf("%q: unknown encoding %.40q", j.Path, j.Encoding)
	}
	mode, err := strconv.ParseUint(j.Mode, 8, 32)
	if err != nil {
		return fmt.Errorf("%q: mode %.20q is not an octal number", j.Path, j.Mode)
	}
	digests, err := parseDigests(j.Digests)
	if err != nil {
		return fmt.Errorf("%q: %w", j.Path, err)
	}
	*f = File{Path: j.Path, Type: j.Type, Mode: uint32(mode), UID: j.UID, GID: j.GID, MTime: j.MTime, Size: j.Size,
		Target: j.Target, Object: j.Object, Chunk: j.Chunk, Digest: digests, Late: j.Late}
	return nil
}

// parseDigests parses digests that stand one after the other.
func parseDigests(s string) ([]Digest, error) {
	const n = 2 * len(Digest{})
	if len(s)%n != 0 {
		return nil, fmt.Errorf("digests of %d characters, which is no multiple of %d", len(s), n)
	}
	if len(s) == 0 {
		return nil, nil
	}
	out := make([]Digest, len(s)/n)
	for i := range out {
		if err := out[i].UnmarshalText([]byte(s[i*n : (i+1)*n])); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// JSONName is a name as JSON can hold it: itself, and no encoding, or, if it is
// not valid UTF-8, with '%' and the bytes that are not as %XX, and "percent".
func JSONName(name string) (text, encoding string) {
	if utf8.ValidString(name) {
		return name, ""
	}
	return percentEncode(name), encodingPercent
}

// percentEncode is the "percent" encoding: '%' and every byte that is not
// part of valid UTF-8 become %XX.
func percentEncode(s string) string {
	var b strings.Builder
	escape(&b, s, false)
	return b.String()
}

// appendString appends s, which is valid UTF-8, as a JSON string.
func appendString(b []byte, s string) []byte {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\'
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"')
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
