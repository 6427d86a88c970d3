package format

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"
)

// mark is what MARK leaves on the stack.
type mark struct{}

// machine reads one pickle.
type machine struct {
	*ops
	opts  UnpickleOptions
	left  int64 // of opts.Limit
	stack []any
	memo  map[int64]any
}

// maxKept is the longest bytes object that is kept; longer ones are Skipped.
const maxKept = 64 << 10

var errStack = broken("a pickle whose stack does not hold what an opcode needs")

func (m *machine) run() (any, error) {
	for range maxOps {
		op, err := m.byte()
		if err != nil {
			return nil, err
		}
		if op == '.' {
			return m.pop()
		}
		if err := m.step(op); err != nil {
			return nil, err
		}
	}
	return nil, errTooLong
}

// spend takes n bytes from the budget of memory.
func (m *machine) spend(n int64) error {
	if m.left -= n; m.left < 0 {
		return errTooLong
	}
	return nil
}

func (m *machine) push(v any) error {
	m.stack = append(m.stack, v)
	return m.spend(48)
}

func (m *machine) pop() (any, error) {
	n := len(m.stack)
	if n == 0 || m.stack[n-1] == any(mark{}) {
		return nil, errStack
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v, nil
}

// top returns the topmost value without popping it.
func (m *machine) top() (any, error) {
	v, err := m.pop()
	if err == nil {
		m.stack = append(m.stack, v)
	}
	return v, err
}

// popMark returns what lies above the topmost mark, and removes both.
func (m *machine) popMark() ([]any, error) {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if m.stack[i] == any(mark{}) {
			items := append([]any(nil), m.stack[i+1:]...)
			m.stack = m.stack[:i]
			return items, m.spend(16 * int64(len(items)))
		}
	}
	return nil, errStack
}

// popN returns the n topmost values in the order they were pushed.
func (m *machine) popN(n int) ([]any, error) {
	if len(m.stack) < n {
		return nil, errStack
	}
	items := append([]any(nil), m.stack[len(m.stack)-n:]...)
	for _, v := range items {
		if v == any(mark{}) {
			return nil, errStack
		}
	}
	m.stack = m.stack[:len(m.stack)-n]
	return items, m.spend(16 * int64(n))
}

// step carries out one opcode. Opcodes are grouped by what they do: values
// here, collections, calls and the memo in their own methods.
func (m *machine) step(op byte) error {
	switch op {
	case 0x80, 0x95: // PROTO, FRAME
		return m.pass(op)
	case 0x98: // READONLY_BUFFER
		return nil
	case 'N':
		return m.push(nil)
	case 0x88:
		return m.push(true)
	case 0x89:
		return m.push(false)
	case 'J', 'K', 'M', 0x8a, 0x8b, 'G':
		return m.binaryNumber(op)
	case 'I', 'L', 'F':
		return m.textNumber(op)
	case 'X', 0x8c, 0x8d, 'T', 'U', 'B', 'C', 0x8e, 0x96:
		return m.counted(op)
	case 'S', 'V':
		s, err := m.line()
		if err != nil {
			return err
		}
		if op == 'S' {
			s = strings.Trim(s, `"'`)
		}
		return m.pushString(s)
	case '(', '0', '1', '2', ']', '}', ')', 0x8f, 'l', 'd', 't', 0x85, 0x86, 0x87, 0x91, 'a', 'e', 0x90, 's', 'u':
		return m.collect(op)
	case 'p', 'q', 'r', 0x94, 'g', 'h', 'j':
		return m.remember(op)
	case 'c', 0x93, 'i', 'o', 0x81, 0x92, 'R', 'b', 'P', 'Q', 0x82, 0x83, 0x84:
		return m.call(op)
	}
	return brokenf("a pickle with no known opcode at byte %d", m.off-1)
}

func (m *machine) pushString(s string) error {
	if err := m.spend(int64(len(s))); err != nil {
		return err
	}
	return m.push(s)
}

func (m *machine) binaryNumber(op byte) error {
	switch op {
	case 'G':
		b, err := m.take(8)
		if err != nil {
			return err
		}
		return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 'J':
		b, err := m.take(4)
		if err != nil {
			return err
		}
		return m.push(int64(int32(binary.LittleEndian.Uint32(b))))
	case 'K':
		b, err := m.byte()
		if err != nil {
			return err
		}
		return m.push(int64(b))
	case 'M':
		b, err := m.take(2)
		if err != nil {
			return err
		}
		return m.push(int64(binary.LittleEndian.Uint16(b)))
	}
	n, err := m.count(argumentOf(op))
	if err != nil {
		return err
	}
	if n > 8 {
		if err := m.skip(n); err != nil {
			return err
		}
		return m.push(Skipped{n})
	}
	b, err := m.take(int64(n))
	if err != nil {
		return err
	}
	var v int64
	for i, c := range b {
		v |= int64(c) << (8 * i)
	}
	if n > 0 && n < 8 && b[n-1]&0x80 != 0 {
		v -= 1 << (8 * n)
	}
	return m.push(v)
}

func (m *machine) textNumber(op byte) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	switch {
	case op == 'F':
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return brokenf("a pickle with the number %.20q", s)
		}
		return m.push(f)
	case op == 'I' && (s == "00" || s == "01"):
		return m.push(s == "01")
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(s, "L"), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return m.push(Skipped{uint64(len(s))})
	}
	if err != nil {
		return brokenf("a pickle with the number %.20q", s)
	}
	return m.push(n)
}

// counted reads a string or bytes object behind its length.
func (m *machine) counted(op byte) error {
	n, err := m.count(argumentOf(op))
	if err != nil {
		return err
	}
	text := op == 'X' || op == 0x8c || op == 0x8d || op == 'T' || op == 'U'
	if n > maxKept {
		if err := m.skip(n); err != nil {
			return err
		}
		return m.push(Skipped{n})
	}
	b, err := m.take(int64(n))
	if err != nil {
		return err
	}
	if text {
		return m.pushString(string(b))
	}
	if err := m.spend(int64(n)); err != nil {
		return err
	}
	return m.push(append([]byte{}, b...))
}

// collect carries out the opcodes of stack and collections.
func (m *machine) collect(op byte) error {
	switch op {
	case '(':
		return m.push(mark{})
	case '0':
		if n := len(m.stack); n > 0 {
			m.stack = m.stack[:n-1]
			return nil
		}
		return errStack
	case '1':
		_, err := m.popMark()
		return err
	case '2':
		v, err := m.top()
		if err != nil {
			return err
		}
		return m.push(v)
	case ']', 0x8f:
		return m.push(&List{})
	case '}':
		return m.push(&Dict{})
	case ')':
		return m.push(Tuple(nil))
	case 0x85, 0x86, 0x87:
		items, err := m.popN(int(op) - 0x84)
		if err != nil {
			return err
		}
		return m.push(Tuple(items))
	case 'a':
		items, err := m.popN(1)
		if err != nil {
			return err
		}
		return m.add(items)
	case 's':
		items, err := m.popN(2)
		if err != nil {
			return err
		}
		return m.set(items)
	}
	items, err := m.popMark()
	if err != nil {
		return err
	}
	switch op {
	case 'l':
		return m.push(&List{Items: items})
	case 't', 0x91:
		return m.push(Tuple(items))
	case 'd':
		if err := m.push(&Dict{}); err != nil {
			return err
		}
		return m.set(items)
	case 'u':
		return m.set(items)
	}
	return m.add(items) // 'e', 0x90
}

// add appends to the list on the stack.
func (m *machine) add(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case *List:
		v.Items = append(v.Items, items...)
	case *Object:
		v.Items = append(v.Items, items...)
	}
	return nil // what is neither was replaced by the caller's hook
}

// set assigns keys and values to the dict on the stack.
func (m *machine) set(items []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	if len(items)%2 != 0 {
		return errStack
	}
	var d *Dict
	switch v := v.(type) {
	case *Dict:
		d = v
	case *Object:
		d = &v.Dict
	default:
		return nil
	}
	for i := 0; i < len(items); i += 2 {
		d.Keys, d.Values = append(d.Keys, items[i]), append(d.Values, items[i+1])
	}
	return nil
}

// remember carries out the opcodes of the memo.
func (m *machine) remember(op byte) error {
	var key int64
	switch op {
	case 0x94:
		key = int64(len(m.memo))
	case 'p', 'g':
		s, err := m.line()
		if err != nil {
			return err
		}
		if key, err = strconv.ParseInt(s, 10, 64); err != nil {
			return brokenf("a pickle with the number %.20q", s)
		}
	case 'q', 'h':
		b, err := m.byte()
		if err != nil {
			return err
		}
		key = int64(b)
	case 'r', 'j':
		b, err := m.take(4)
		if err != nil {
			return err
		}
		key = int64(binary.LittleEndian.Uint32(b))
	}
	if op == 'g' || op == 'h' || op == 'j' {
		v, ok := m.memo[key]
		if !ok {
			return brokenf("a pickle that asks its memo for %d, which is not there", key)
		}
		return m.push(v)
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	m.memo[key] = v
	return m.spend(64)
}
