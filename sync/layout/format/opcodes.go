package format

import (
	"encoding/binary"
	"io"
)

// argument is how the argument of a pickle opcode is laid out.
type argument byte

const (
	argBad    argument = iota // no such opcode
	argNone                   // no argument
	arg1                      // one byte
	arg2                      // two bytes
	arg4                      // four bytes
	arg8                      // eight bytes
	argLine                   // text up to a newline
	argLines                  // two of them
	argCount1                 // a length of one byte, then so many bytes
	argCount4                 // a length of four bytes, then so many bytes
	argCount8                 // a length of eight bytes, then so many bytes
)

// argumentOf returns the layout of the argument of each opcode of protocols 0
// to 5.
func argumentOf(op byte) argument {
	switch op {
	case '.', '(', '0', '1', '2', 'N', ']', '}', ')', 'l', 'd', 't', 'a', 'e', 's', 'u', 'o', 'R', 'b', 'Q',
		0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0x90, 0x91, 0x92, 0x93, 0x94, 0x97, 0x98:
		return argNone
	case 'K', 'q', 'h', 0x80, 0x82:
		return arg1
	case 'M', 0x83:
		return arg2
	case 'J', 'r', 'j', 0x84:
		return arg4
	case 'G', 0x95:
		return arg8
	case 'I', 'L', 'F', 'S', 'V', 'P', 'p', 'g':
		return argLine
	case 'c', 'i':
		return argLines
	case 'U', 'C', 0x8a, 0x8c:
		return argCount1
	case 'T', 'X', 'B', 0x8b:
		return argCount4
	case 0x8d, 0x8e, 0x96:
		return argCount8
	}
	return argBad
}

// ops reads opcodes and their arguments from a part of a file.
type ops struct {
	r        io.ReaderAt
	off, end int64 // next byte; end of the part
	buf      []byte
	bufOff   int64 // where buf lies
	torn     error // what to say when the part ends too early
}

const opsWindow = 64 << 10

func newOps(r io.ReaderAt, off, end int64) *ops {
	return &ops{r: r, off: off, end: end, torn: brokenf("a pickle that ends in mid-opcode at byte %d", end)}
}

// fill makes the next n bytes, at most opsWindow, available and returns them
// without consuming them.
func (o *ops) fill(n int64) ([]byte, error) {
	if o.off < 0 || o.off > o.end || n > o.end-o.off {
		return nil, o.torn
	}
	if at := o.off - o.bufOff; at >= 0 && at+n <= int64(len(o.buf)) {
		return o.buf[at : at+n], nil
	}
	size := min(opsWindow, o.end-o.off)
	if int64(cap(o.buf)) < size {
		o.buf = make([]byte, opsWindow)
	}
	o.buf, o.bufOff = o.buf[:size], o.off
	if err := readAt(o.r, o.buf, o.off); err != nil {
		o.buf = o.buf[:0]
		return nil, err
	}
	return o.buf[:n], nil
}

func (o *ops) take(n int64) ([]byte, error) {
	b, err := o.fill(n)
	if err == nil {
		o.off += n
	}
	return b, err
}

func (o *ops) byte() (byte, error) {
	b, err := o.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// skip steps over n bytes without reading them.
func (o *ops) skip(n uint64) error {
	if n > uint64(o.end-o.off) {
		return o.torn
	}
	o.off += int64(n)
	return nil
}

// line reads up to a newline, which it consumes and does not return.
func (o *ops) line() (string, error) {
	for n := int64(64); ; n *= 4 {
		n = min(n, o.end-o.off, opsWindow)
		b, err := o.fill(n)
		if err != nil {
			return "", err
		}
		for i, c := range b {
			if c == '\n' {
				o.off += int64(i) + 1
				return string(b[:i]), nil
			}
		}
		if n == o.end-o.off {
			return "", o.torn
		}
		if n == opsWindow {
			return "", brokenf("a pickle with an endless line at byte %d", o.off)
		}
	}
}

// count reads the length before a counted argument.
func (o *ops) count(a argument) (uint64, error) {
	switch a {
	case argCount1:
		b, err := o.byte()
		return uint64(b), err
	case argCount4:
		b, err := o.take(4)
		if err != nil {
			return 0, err
		}
		return uint64(binary.LittleEndian.Uint32(b)), nil
	default:
		b, err := o.take(8)
		if err != nil {
			return 0, err
		}
		return binary.LittleEndian.Uint64(b), nil
	}
}

// pass steps over the argument of op.
func (o *ops) pass(op byte) error {
	switch a := argumentOf(op); a {
	case argBad:
		return brokenf("a pickle with no known opcode at byte %d", o.off-1)
	case argNone:
		return nil
	case arg1:
		return o.skip(1)
	case arg2:
		return o.skip(2)
	case arg4:
		return o.skip(4)
	case arg8:
		return o.skip(8)
	case argLine, argLines:
		_, err := o.line()
		if err == nil && a == argLines {
			_, err = o.line()
		}
		return err
	default:
		n, err := o.count(a)
		if err != nil {
			return err
		}
		return o.skip(n)
	}
}

// maxOps bounds how many opcodes of a pickle are walked.
const maxOps = 64 << 20

// walk steps over one pickle, up to and including its STOP.
func (o *ops) walk() error {
	for range maxOps {
		op, err := o.byte()
		if err != nil {
			return err
		}
		if err := o.pass(op); err != nil {
			return err
		}
		if op == '.' {
			return nil
		}
	}
	return errTooLong
}
