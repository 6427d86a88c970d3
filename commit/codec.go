package commit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of what decoders take, in bytes. Encoders refuse to write more.
const (
	MaxManifest = 64 << 20 // a part manifest
	maxList     = 4 << 20  // markers and votes: one entry per node
	maxSmall    = 1 << 20  // everything else, and a manifest without its files
)

// encode returns the canonical bytes of a small object: the fields in the
// order of the struct, two spaces of indentation, no HTML escaping, a newline
// at the end.
func encode(v any, limit int) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	if b.Len() > limit {
		return nil, fmt.Errorf("encode %T: %d bytes, over the limit of %d", v, b.Len(), limit)
	}
	return b.Bytes(), nil
}

// decode parses data as an object of that format into v, which is a pointer
// to a struct. Unknown fields are ignored.
func decode(data []byte, format string, limit int, v any) error {
	var head formatField
	if err := checkFormat(data, format, limit, &head); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return invalid("%s: %w", kindOf(format), err)
	}
	return nil
}

// formatField is the field that every object has.
type formatField struct {
	Format *string `json:"format"`
}

func (f *formatField) format() *string { return f.Format }

// checkFormat checks what can be known of data before it is parsed into a
// type: its size, its encoding, that it is one JSON object, and its format.
// head is a struct with a formatField in it, which is filled.
func checkFormat(data []byte, format string, limit int, head interface{ format() *string }) error {
	switch {
	case len(data) > limit:
		return invalid("%s of %d bytes, over the limit of %d", kindOf(format), len(data), limit)
	case !utf8.Valid(data):
		return invalid("%s is not valid UTF-8", kindOf(format))
	}
	if err := json.Unmarshal(data, head); err != nil {
		return invalid("%s: %w", kindOf(format), err)
	}
	got := head.format()
	if got == nil {
		return fmt.Errorf("%w: it has no field \"format\", want %s", ErrFormat, format)
	}
	return sameFormat(*got, format)
}

// sameFormat compares a format as found with the one that is understood.
func sameFormat(got, want string) error {
	if got == want {
		return nil
	}
	kind, version, ok := splitFormat(got)
	wantKind, wantVersion, _ := splitFormat(want)
	switch {
	case !ok:
		return fmt.Errorf("%w: format %.60q is none of ckptsync's, want %s", ErrFormat, got, want)
	case kind != wantKind:
		return fmt.Errorf("%w: it is a %s (format %.60s), not a %s", ErrFormat, kind, got, wantKind)
	case version > wantVersion:
		return fmt.Errorf("%w: written by a newer ckptsync: format %.60s, this one reads up to v%d; use the newer one here", ErrFormat, got, wantVersion)
	}
	return fmt.Errorf("%w: format %.60s, want %s", ErrFormat, got, want)
}

// splitFormat splits ckptsync/<kind>/v<major>.
func splitFormat(s string) (kind string, version int, ok bool) {
	s, ok1 := strings.CutPrefix(s, "ckptsync/")
	kind, v, ok2 := strings.Cut(s, "/v")
	version, err := strconv.Atoi(v)
	return kind, version, ok1 && ok2 && err == nil && kind != "" && version > 0
}

// kindOf is the kind of a format, for messages.
func kindOf(format string) string {
	kind, _, _ := splitFormat(format)
	return kind
}
