package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxJSON is the size, in bytes, up to which JSON is parsed whole.
const maxJSON = 256 << 20

// content turns a syntax error into a problem of the file.
func content(err error) error {
	var s *SyntaxError
	if errors.As(err, &s) {
		return brokenf("not valid JSON: %v", s)
	}
	return err
}

func section(f file) *io.SectionReader { return io.NewSectionReader(f.r, 0, f.size) }

// whole makes an end of the reader before the file's size an error of the
// reader, not of the text.
type whole struct {
	r    io.Reader
	left int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.left -= int64(n); err == io.EOF && w.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func jsonOf(f file) *JSON { return NewJSON(&whole{r: section(f), left: f.size}) }

func checkJSON(f file, res *Result) error {
	if f.size > maxJSON {
		res.Warnings = append(res.Warnings, fmt.Sprintf("over %d bytes of JSON: not parsed", maxJSON))
		return nil
	}
	j := jsonOf(f)
	if err := j.Skip(); err != nil {
		return content(err)
	}
	return content(j.End())
}

// Index is the content of a Hugging Face "*.index.json".
type Index struct {
	Shards map[string][]string // tensor names by the shard file that holds them
}

// maxIndex bounds the bytes of names that ReadIndex keeps.
const maxIndex = 128 << 20

// ReadIndex parses an index of size bytes. An error that is not of the reader
// is of the content.
func ReadIndex(r io.ReaderAt, size int64) (Index, error) {
	ix := Index{Shards: map[string][]string{}}
	f := file{r: r, size: size}
	if size > maxJSON {
		return ix, brokenf("an index of over %d bytes", maxJSON)
	}
	seen, kept := false, 0
	j := jsonOf(f)
	err := j.Object(func(key string) error {
		if key != "weight_map" {
			return j.Skip()
		}
		seen = true
		return j.Object(func(tensor string) error {
			shard, err := j.String(4096)
			if kept += len(tensor) + 16; err == nil && kept < maxIndex {
				ix.Shards[shard] = append(ix.Shards[shard], tensor)
			}
			return err
		})
	})
	if err == nil {
		err = j.End()
	}
	switch {
	case err != nil:
		return ix, content(err)
	case !seen:
		return ix, broken("an index without weight_map")
	case kept >= maxIndex:
		return ix, broken("an index of too many names")
	case len(ix.Shards) == 0:
		return ix, broken("an index whose weight_map is empty")
	}
	return ix, nil
}

func checkIndex(f file, _ *Result) error {
	_, err := ReadIndex(f.r, f.size)
	var b broken
	if errors.As(err, &b) && b == "an index without weight_map" {
		return nil // some other index
	}
	return err
}

// maxLine bounds the last line of JSON Lines that is looked at, in bytes.
const maxLine = 16 << 20

// checkJSONLines looks at the last line alone: lines are appended, so that a
// torn file is torn there.
func checkJSONLines(f file, res *Result) error {
	for window := int64(64 << 10); ; window *= 4 {
		window = min(window, f.size, maxLine)
		buf := make([]byte, window)
		if err := readAt(f.r, buf, f.size-window); err != nil {
			return err
		}
		line, ended := bytes.TrimRight(buf, "\r\n"), buf[len(buf)-1] == '\n'
		i := bytes.LastIndexByte(line, '\n')
		if i < 0 && window < f.size {
			if window < maxLine {
				continue
			}
			res.Warnings = append(res.Warnings, "its last line is too long to look at")
			return nil
		}
		return lastLine(bytes.TrimSpace(line[i+1:]), ended)
	}
}

func lastLine(line []byte, ended bool) error {
	if len(line) == 0 {
		return nil
	}
	j := NewJSON(bytes.NewReader(line))
	err := j.Skip()
	if err == nil {
		err = j.End()
	}
	switch {
	case err != nil && ended:
		return brokenf("its last line is not JSON: %v", err)
	case err != nil, !ended && line[len(line)-1] != '}' && line[len(line)-1] != ']':
		return broken("its last line is not whole")
	}
	return nil
}
