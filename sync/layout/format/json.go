package format

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of JSON values, and so the stack.
const maxDepth = 512

// JSON reads one JSON value as a stream, in memory that does not grow with it.
// It takes what Python's json module writes, NaN and Infinity included, and
// refuses what that module refuses. The caller consumes exactly one value per
// call: each callback of Object and Array must read its value.
type JSON struct {
	r     *bufio.Reader
	off   int64 // bytes consumed
	depth int
}

// NewJSON returns a reader of the JSON text in r.
func NewJSON(r io.Reader) *JSON { return &JSON{r: bufio.NewReaderSize(r, 32<<10)} }

// SyntaxError is text that is not JSON, or not the JSON that was asked for.
type SyntaxError struct {
	Offset int64 // bytes before it
	What   string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.What, e.Offset) }

func (j *JSON) fail(what string) error { return &SyntaxError{Offset: j.off, What: what} }

// ended turns an end of file into a syntax error.
func (j *JSON) ended(err error) error {
	if err == io.EOF {
		return j.fail("the text ends in the middle of a value")
	}
	return err
}

func (j *JSON) next() (byte, error) {
	c, err := j.r.ReadByte()
	if err != nil {
		return 0, j.ended(err)
	}
	j.off++
	return c, nil
}

func (j *JSON) back() {
	if j.r.UnreadByte() == nil {
		j.off--
	}
}

// space skips white space and returns the byte after it.
func (j *JSON) space() (byte, error) {
	for {
		c, err := j.next()
		if err != nil || (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
			return c, err
		}
	}
}

// Peek returns the first byte of the next value without consuming it.
func (j *JSON) Peek() (byte, error) {
	c, err := j.space()
	if err == nil {
		j.back()
	}
	return c, err
}

func (j *JSON) expect(want byte) error {
	c, err := j.space()
	if err != nil {
		return err
	}
	if c != want {
		j.back()
		return j.fail(fmt.Sprintf("%q where %q should be", c, want))
	}
	return nil
}

func (j *JSON) enter() error {
	if j.depth++; j.depth > maxDepth {
		return j.fail("values are nested too deeply")
	}
	return nil
}

// Object reads an object; fn must read the value of the key. Keys longer than
// 64 KiB are cut.
func (j *JSON) Object(fn func(key string) error) error {
	if err := j.expect('{'); err != nil {
		return err
	}
	return j.members('}', func() error {
		key, _, err := j.str(64 << 10)
		if err != nil {
			return err
		}
		if err := j.expect(':'); err != nil {
			return err
		}
		return fn(key)
	})
}

// Array reads an array; fn must read the element.
func (j *JSON) Array(fn func() error) error {
	if err := j.expect('['); err != nil {
		return err
	}
	return j.members(']', fn)
}

// members reads the comma-separated rest of an object or array.
func (j *JSON) members(end byte, fn func() error) error {
	if err := j.enter(); err != nil {
		return err
	}
	defer func() { j.depth-- }()
	c, err := j.space()
	if err != nil {
		return err
	}
	if c == end {
		return nil
	}
	j.back()
	for {
		if err := fn(); err != nil {
			return err
		}
		c, err := j.space()
		switch {
		case err != nil:
			return err
		case c == end:
			return nil
		case c != ',':
			j.back()
			return j.fail(fmt.Sprintf("%q after a value", c))
		}
	}
}

// String reads a string of at most max bytes; a longer one is an error.
func (j *JSON) String(max int) (string, error) {
	s, whole, err := j.str(max)
	if err == nil && !whole {
		err = j.fail("a string is too long")
	}
	return s, err
}

// str reads a string and keeps its first max bytes.
func (j *JSON) str(max int) (s string, whole bool, err error) {
	if err := j.expect('"'); err != nil {
		return "", false, err
	}
	raw, escaped := []byte{'"'}, false
	for {
		c, err := j.next()
		if err != nil {
			return "", false, err
		}
		if c < 0x20 {
			j.back()
			return "", false, j.fail(fmt.Sprintf("control character %q in a string", c))
		}
		if len(raw) <= max+1 {
			raw = append(raw, c)
		}
		if c == '"' {
			break
		}
		if c == '\\' {
			escaped = true
			if raw, err = j.escape(raw, max); err != nil {
				return "", false, err
			}
		}
	}
	if len(raw) > max+2 || raw[len(raw)-1] != '"' {
		return string(bytes.ToValidUTF8(raw[1:min(len(raw), max+1)], nil)), false, nil
	}
	if !escaped && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1]), true, nil
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", false, j.fail("a string that is not valid")
	}
	return s, true, nil
}

func (j *JSON) escape(raw []byte, max int) ([]byte, error) {
	c, err := j.next()
	if err != nil {
		return raw, err
	}
	digits := 0
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
	case 'u':
		digits = 4
	default:
		return raw, j.fail(fmt.Sprintf("unknown escape \\%c", c))
	}
	if len(raw) <= max+1 {
		raw = append(raw, c)
	}
	for range digits {
		c, err := j.next()
		if err != nil {
			return raw, err
		}
		if !(c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f') {
			return raw, j.fail("an escape without four hexadecimal digits")
		}
		if len(raw) <= max+1 {
			raw = append(raw, c)
		}
	}
	return raw, nil
}

// Skip reads a value of any kind and checks it.
func (j *JSON) Skip() error {
	_, err := j.Value(0)
	return err
}

// Value reads a value of any kind as nil, bool, int64, float64, string, []any
// or map[string]any. NaN and the infinities, which JSON has not, become
// strings. What exceeds max bytes of text in all is checked and left out: a
// string is cut, an element or member is dropped.
func (j *JSON) Value(max int) (any, error) {
	budget := max
	return j.value(&budget)
}

func (j *JSON) value(budget *int) (any, error) {
	c, err := j.Peek()
	if err != nil {
		return nil, err
	}
	switch c {
	case '{':
		m := map[string]any{}
		return m, j.Object(func(key string) error {
			*budget -= len(key) + 8
			v, err := j.value(budget)
			if *budget >= 0 {
				m[key] = v
			}
			return err
		})
	case '[':
		l := []any{}
		return l, j.Array(func() error {
			*budget -= 8
			v, err := j.value(budget)
			if *budget >= 0 {
				l = append(l, v)
			}
			return err
		})
	case '"':
		s, _, err := j.str(clamp(*budget, 0, 1<<20))
		*budget -= len(s)
		return s, err
	}
	return j.scalar()
}

func clamp(n, lo, hi int) int { return min(max(n, lo), hi) }

// scalar reads a literal or a number.
func (j *JSON) scalar() (any, error) {
	start := j.off
	var word []byte
	for {
		c, err := j.r.ReadByte()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		j.off++
		if !(c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '+' || c == '-' || c == '.') {
			j.back()
			break
		}
		if word = append(word, c); len(word) > 4096 {
			return nil, j.fail("a number is too long")
		}
	}
	switch s := string(word); s {
	case "null":
		return nil, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "NaN", "Infinity", "-Infinity":
		return s, nil
	default:
		if !json.Valid(word) {
			if len(s) > 20 {
				s = s[:20] + "…"
			}
			return nil, &SyntaxError{Offset: start, What: fmt.Sprintf("%q is no value", s)}
		}
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil { // out of range
			return s, nil
		}
		return f, nil
	}
}

// End checks that nothing but white space follows.
func (j *JSON) End() error {
	for {
		c, err := j.r.ReadByte()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case c != ' ' && c != '\n' && c != '\r' && c != '\t':
			return j.fail(fmt.Sprintf("%q after the end of the value", c))
		}
		j.off++
	}
}
