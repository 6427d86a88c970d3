package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	Where string // "line 12", "$CKPTSYNC_RUN" or "--run"; empty if it is nowhere in particular
	Text  string // what is wrong and what to do, without secrets

	line int // for sorting; 0 if not in the file
}

// Line is the line of the file that it is about; 0 if it is about none.
func (p Problem) Line() int { return p.line }

func (p Problem) String() string {
	if p.Where == "" {
		return p.Text
	}
	return p.Where + ": " + p.Text
}

// Error is a configuration that cannot be used. It is a usage error: the
// program ends with status 2.
type Error struct {
	File     string // the configuration file; empty if there is none
	Problems []Problem
}

// Error lists every problem, one a line if there are several.
func (e *Error) Error() string {
	in := "configuration"
	if e.File != "" {
		in += " " + e.File
	}
	if len(e.Problems) == 1 {
		return in + ": " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d problems", in, len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// problems collects.
type problems struct {
	list []Problem
}

func (ps *problems) add(at place, format string, args ...any) {
	ps.list = append(ps.list, Problem{Where: at.String(), Text: fmt.Sprintf(format, args...), line: at.line})
}

// err returns nil, or an *Error with the problems of the file first, by line.
func (ps *problems) err(file string) error {
	if len(ps.list) == 0 {
		return nil
	}
	list := slices.Clone(ps.list)
	slices.SortStableFunc(list, func(a, b Problem) int {
		switch {
		case a.line == b.line:
			return 0
		case a.line == 0:
			return 1
		case b.line == 0:
			return -1
		}
		return cmp.Compare(a.line, b.line)
	})
	return &Error{File: file, Problems: slices.Compact(list)}
}

// place says where a setting came from.
type place struct {
	line int    // in the file
	name string // of the variable or flag, as its user spells it
}

func (p place) String() string {
	switch {
	case p.name != "":
		return p.name
	case p.line > 0:
		return fmt.Sprintf("line %d", p.line)
	}
	return ""
}
