package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// maxMember bounds what is kept of one member of a JSON object, in bytes.
const maxMember = 64 << 10

// readMembers reads a JSON file that is an object, as a stream, and keeps those
// members whose key is wanted. A nil keys keeps all, up to 64 KiB in total.
func readMembers(fsys fs.FS, name string, keys map[string]bool) (map[string]any, error) {
	f, err := openRegular(fsys, name)
	if err != nil {
		return nil, errors.New(cause(err))
	}
	defer f.Close()
	return members(format.NewJSON(f), keys, true)
}

// openRegular opens a file, and nothing that would keep its reader waiting.
func openRegular(fsys fs.FS, name string) (fs.File, error) {
	fi, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("it is %s", kindOf(fi.Mode()))
	}
	return fsys.Open(name)
}

// members reads one object; whole says that nothing may follow it.
func members(j *format.JSON, keys map[string]bool, whole bool) (map[string]any, error) {
	out, left := map[string]any{}, maxMember
	err := j.Object(func(key string) error {
		if keys != nil && !keys[key] || keys == nil && left <= 0 {
			return j.Skip()
		}
		v, err := j.Value(maxMember)
		if s, ok := v.(string); ok {
			left -= len(s)
		}
		left -= len(key) + 8
		out[key] = v
		return err
	})
	if err == nil && whole {
		err = j.End()
	}
	if err != nil {
		return nil, wording(err)
	}
	return out, nil
}

// wording is an error of a JSON file as a reason says it.
func wording(err error) error {
	var s *format.SyntaxError
	switch {
	case errors.As(err, &s):
		return errors.New("not valid JSON: " + s.Error())
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it shrank while it was read")
	}
	return errors.New(cause(err))
}

// keySet makes a set of keys.
func keySet(keys ...string) map[string]bool {
	out := make(map[string]bool, len(keys))
	for _, k := range keys {
		out[k] = true
	}
	return out
}

// scalar reports whether a JSON value is one that metadata may hold.
func scalar(v any) bool {
	switch v := v.(type) {
	case nil, bool, int64, float64:
		return true
	case string:
		return len(v) <= 4096
	}
	return false
}

// equal reports whether two members are the same scalar, or both none.
func equal(a, b any) bool {
	if !scalar(a) || !scalar(b) {
		return !scalar(a) && !scalar(b)
	}
	return a == b
}
