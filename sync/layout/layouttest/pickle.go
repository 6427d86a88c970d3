package layouttest

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The values that [Pickle] can write besides nil, bool, int, int64, float64,
// string, []any (a list) and []byte.
type (
	// Dict is an ordered dict: key, value, key, value …
	Dict []any
	// Tuple is a tuple.
	Tuple []any
	// Global is a reference to a name in a module.
	Global struct{ Module, Name string }
	// Call is a callable applied to arguments (REDUCE).
	Call struct {
		Func Global
		Args Tuple
	}
	// Object is an instance made by NEWOBJ, with a state given by BUILD; a nil
	// State is none.
	Object struct {
		Class Global
		Args  Tuple
		State any
	}
	// Persistent is a persistent id, as torch uses it for storages.
	Persistent struct{ ID any }
)

// Pickle returns v pickled in the given protocol (2 or 4), as CPython would,
// but without memoising anything. It panics on a value that it does not know.
func Pickle(protocol int, v any) []byte {
	p := pickler{proto: protocol}
	p.b = append(p.b, 0x80, byte(protocol))
	p.put(v)
	return append(p.b, '.')
}

type pickler struct {
	b     []byte
	proto int
}

func (p *pickler) put(v any) {
	switch v := v.(type) {
	case nil:
		p.b = append(p.b, 'N')
	case bool:
		if v {
			p.b = append(p.b, 0x88)
		} else {
			p.b = append(p.b, 0x89)
		}
	case int:
		p.int(int64(v))
	case int64:
		p.int(v)
	case float64:
		p.b = append(p.b, 'G')
		p.b = binary.BigEndian.AppendUint64(p.b, math.Float64bits(v))
	case string:
		p.b = append(p.b, 'X')
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(len(v)))
		p.b = append(p.b, v...)
	case []byte:
		p.b = append(p.b, 'B')
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(len(v)))
		p.b = append(p.b, v...)
	case []any:
		p.b = append(p.b, ']', '(')
		p.all(v)
		p.b = append(p.b, 'e')
	case Tuple:
		p.b = append(p.b, '(')
		p.all(v)
		p.b = append(p.b, 't')
	case Dict:
		p.b = append(p.b, '}', '(')
		p.all(v)
		p.b = append(p.b, 'u')
	case Global:
		p.global(v)
	case Call:
		p.global(v.Func)
		p.put(v.Args)
		p.b = append(p.b, 'R')
	case Object:
		p.global(v.Class)
		p.put(v.Args)
		p.b = append(p.b, 0x81)
		if v.State != nil {
			p.put(v.State)
			p.b = append(p.b, 'b')
		}
	case Persistent:
		p.put(v.ID)
		p.b = append(p.b, 'Q')
	default:
		panic(fmt.Sprintf("layouttest: cannot pickle a %T", v))
	}
}

func (p *pickler) all(vs []any) {
	for _, v := range vs {
		p.put(v)
	}
}

func (p *pickler) int(v int64) {
	switch {
	case v >= 0 && v < 1<<8:
		p.b = append(p.b, 'K', byte(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.b = append(p.b, 'J')
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(int32(v)))
	default:
		p.b = append(p.b, 0x8a, 8)
		p.b = binary.LittleEndian.AppendUint64(p.b, uint64(v))
	}
}

func (p *pickler) global(g Global) {
	if p.proto >= 4 {
		p.put(g.Module)
		p.put(g.Name)
		p.b = append(p.b, 0x93)
		return
	}
	p.b = append(p.b, 'c')
	p.b = append(p.b, g.Module+"\n"+g.Name+"\n"...)
}
