package commit

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxObject bounds the key of a data object below the run's prefix, in bytes,
// so that with the longest run name and a store prefix of up to 200 bytes it
// stays below blob.MaxKey.
const maxObject = 690

const hexDigits = "0123456789ABCDEF"

// DataPrefix is the folder, below the run's prefix and with a slash at its
// end, of what node sent for a commit under one token.
func (s *Store) DataPrefix(id ID, node int, token string) string {
	return fmt.Sprintf("data/%s/node-%05d.%s/", id, node, token)
}

// DataKey is the key, below the run's prefix, for the file at path (relative
// to the watched root, clean). The path stays as spelled wherever a key can
// hold it:
//
//   - '%', control characters, DEL, U+FFFE, U+FFFF and bytes that are not
//     valid UTF-8 become %XX, byte by byte, and so does a backslash, which
//     Azure takes for a slash;
//   - a path of which a component then has more than 255 bytes, or whose key
//     is too long, or that is not clean, becomes ~/<BLAKE3 of the path>;
//   - a leading component "~" becomes %7E.
//
// In an encrypted run every path becomes ~/<digest of the path>, a digest that only
// who has the run's key can compute.
//
// Different paths have different keys. Nobody computes a path from a key, or
// the key of an existing object from its path: the manifest names both.
func (s *Store) DataKey(id ID, node int, token, path string) string {
	prefix := s.DataPrefix(id, node, token)
	if d, ok := s.keyring().hidden(s.run, path); ok {
		return prefix + "~/" + d.String()
	}
	if key, ok := escapePath(path); ok && len(prefix)+len(key) <= maxObject {
		return prefix + key
	}
	return prefix + "~/" + Sum([]byte(path)).String()
}

// escapePath returns path with every component escaped, and whether all of
// them can stand in a key.
func escapePath(path string) (string, bool) {
	var b strings.Builder
	b.Grow(len(path) + 16)
	for i, c := range strings.Split(path, "/") {
		if c == "" || c == "." || c == ".." {
			return "", false
		}
		if i > 0 {
			b.WriteByte('/')
		}
		start := b.Len()
		if i == 0 && c == "~" {
			b.WriteString("%7E")
		} else {
			escape(&b, c, true)
		}
		if b.Len()-start > 255 {
			return "", false
		}
	}
	return b.String(), true
}

// escape writes s with '%' and what is not valid UTF-8 as %XX, byte by byte,
// and if key is set also what must not be in a key. unescape undoes it.
func escape(b *strings.Builder, s string, key bool) {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		bad := r == utf8.RuneError && n == 1 || r == '%'
		if key {
			bad = bad || r == '\\' || r < 0x20 || r == 0x7f || r == 0xfffe || r == 0xffff
		}
		for _, c := range []byte(s[:n]) {
			if bad {
				b.WriteByte('%')
				b.WriteByte(hexDigits[c>>4])
				b.WriteByte(hexDigits[c&15])
			} else {
				b.WriteByte(c)
			}
		}
		s = s[n:]
	}
}

// unescape undoes escape; it refuses a '%' without two upper-case hexadecimal
// digits after it.
func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%q ends within a %%XX", s)
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%q has a %% without two upper-case hexadecimal digits", s)
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), nil
}
