package layout

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Bounds of a list of checkpoints; beyond them it is not read.
const (
	maxRows    = 64 << 20 // bytes of the file
	maxRow     = 1 << 20  // bytes of one line
	maxRowKeys = 64       // members of one row that become metadata
)

// rowsName is the list that tinker-cookbook keeps, and older versions of the
// Fireworks cookbook kept with its reader.
const rowsName = "checkpoints.jsonl"

// row is one line of such a list: a checkpoint that the service held when the
// line was written.
type row struct {
	line    int // from 1
	members map[string]any
}

// str returns a member that is a string.
func (r *row) str(key string) string {
	s, _ := r.members[key].(string)
	return s
}

// number is the training step of a row: its batch, else its step, else the
// number that its name ends in.
func (r *row) number() (int64, bool) {
	for _, k := range []string{"batch", "step"} {
		if n, ok := r.members[k].(int64); ok && n >= 0 {
			return n, true
		}
	}
	return endNumber(r.str("name"))
}

// fireworks reports whether a row is of the Fireworks cookbook.
func (r *row) fireworks() bool {
	for _, k := range []string{"state_path", "sampler_path"} {
		if strings.HasPrefix(r.str(k), "cross_job://") {
			return true
		}
	}
	return r.members["source_job_id"] != nil
}

// rows is a list of checkpoints.
type rows struct {
	all  []row
	torn bool  // bytes follow the last newline
	bad  error // of the first line that its reader would refuse
}

// readRows reads every whole line. Its error means that the file could not be
// read; what a line has against it is in the result.
func readRows(fsys fs.FS, name string) (*rows, error) {
	f, err := openRegular(fsys, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() > maxRows {
		return nil, fmt.Errorf("it is over %d bytes", maxRows)
	}
	out := &rows{}
	return out, out.read(bufio.NewReaderSize(io.LimitReader(f, fi.Size()), maxRow))
}

func (rs *rows) read(r *bufio.Reader) error {
	for line := 1; ; line++ {
		b, err := r.ReadSlice('\n')
		switch {
		case err == io.EOF:
			rs.torn = len(b) > 0
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("line %d is over %d bytes", line, maxRow)
		case err != nil:
			return err
		}
		if rs.bad == nil {
			rs.add(line, b)
		}
	}
}

// add reads one whole line.
func (rs *rows) add(line int, b []byte) {
	m, err := members(format.NewJSON(bytes.NewReader(b)), nil, true)
	switch {
	case err != nil:
		rs.bad = fmt.Errorf("line %d is %w", line, err)
	case m["name"] == nil:
		rs.bad = fmt.Errorf("line %d has no name", line)
	default:
		rs.all = append(rs.all, row{line: line, members: m})
	}
}

// newest returns the row of the highest step number, of several the last:
// among those that training can resume from, if there are such, else among
// all. A row without a state, which an evaluation leaves, is no progress that
// could be lost; its higher number must not hide the states that follow.
//
// The highest counts, and not the last, because a row may be late (one that is
// written in the background lands behind its successor's), and training may
// have gone back by hand: either way the list as it is now, with all its rows,
// is a revision of the step that it has come to, and so the newest of all.
func (rs *rows) newest() (best *row, number int64) {
	state := false
	for i := range rs.all {
		r := &rs.all[i]
		n, ok := r.number()
		if has := r.str("state_path") != ""; ok && (best == nil || has && !state || has == state && n >= number) {
			best, number, state = r, n, has
		}
	}
	return best, number
}

// resumed returns the row that its trainer resumes from: the last that has a
// state.
func (rs *rows) resumed() *row {
	for i := len(rs.all) - 1; i >= 0; i-- {
		if rs.all[i].str("state_path") != "" {
			return &rs.all[i]
		}
	}
	return nil
}

// number is the step that the list as a whole is at.
func (rs *rows) number() (int64, error) {
	best, n := rs.newest()
	switch {
	case best != nil:
		return n, nil
	case rs.bad != nil && rs.bad.Error() == "line 1 has no name":
		return 0, fmt.Errorf("%w: its rows have no name, as those of checkpoints have", ErrNoStep)
	case len(rs.all) > 0:
		return 0, fmt.Errorf("%w: no row of it says a batch or step", ErrNoStep)
	}
	return 0, errors.New("it holds no whole row")
}

// endNumber returns the number that a name ends in.
func endNumber(name string) (int64, bool) {
	i := len(name)
	for i > 0 && isDigit(name[i-1]) {
		i--
	}
	if i == len(name) || len(name)-i > 18 {
		return 0, false
	}
	var n int64
	for _, c := range []byte(name[i:]) {
		n = 10*n + int64(c-'0')
	}
	return n, true
}
