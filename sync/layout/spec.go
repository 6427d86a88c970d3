package layout

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

var specName = regexp.MustCompile(`\A[a-z0-9][a-z0-9._-]{0,63}\z`)

// IsShared reports whether a file, relative to the step, has to be the same on
// every node that saves it.
func (s *Spec) IsShared(rel string) bool { return matchAny(s.Shared, rel) }

// Validate returns every problem of the spec, joined; nil if there is none.
func (s *Spec) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case !specName.MatchString(s.Name):
		bad("name: %q is not 1 to 64 of a-z, 0-9, \".\", \"_\" and \"-\"", s.Name)
	case s.Name == Auto || s.Name == Generic:
		bad("name: %q has a meaning of its own; choose another", s.Name)
	}
	if _, err := compile(s.Step); err != nil {
		errs = append(errs, err)
	}
	switch s.Kind {
	case "", "dir", "any":
	case "file":
		if len(s.Required)+len(s.AnyOf)+len(s.Exact)+len(s.Late)+len(s.Ignore) > 0 || s.Marker != "" {
			bad("kind: a step that is a file has no required, any_of, marker, exact, late or ignore files")
		}
	default:
		bad("kind: %q is not dir, file or any", s.Kind)
	}
	if s.Settle < 0 {
		bad("settle: %v is negative", s.Settle)
	}
	errs = append(errs, s.validatePaths()...)
	return errors.Join(errs...)
}

func (s *Spec) validatePaths() []error {
	var errs []error
	one := func(field, p string, globs bool) {
		if err := checkRelative(p, globs); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q %w", field, p, err))
		}
	}
	all := func(field string, globs []string) {
		for _, g := range globs {
			one(field, g, true)
		}
	}
	all("required", s.Required)
	for _, group := range s.AnyOf {
		if len(group) == 0 {
			errs = append(errs, errors.New("any_of: a group is empty"))
		}
		all("any_of", group)
	}
	if s.Marker != "" {
		one("marker", s.Marker, false)
	}
	for _, f := range s.Forbidden {
		one("forbidden", strings.TrimPrefix(f, "/"), true)
	}
	all("empty", s.Empty)
	all("late", s.Late)
	all("ignore", s.Ignore)
	all("shared", s.Shared)
	all("exact", s.Exact)
	for _, p := range s.Pointers {
		one("pointers", p.Path, false)
		if p.Content == "" {
			errs = append(errs, fmt.Errorf("pointers: %q has no content; {name} and {step} may stand in it", p.Path))
		}
	}
	return errs
}

func checkRelative(p string, globs bool) error {
	switch {
	case p == "":
		return errors.New("is empty")
	case path.IsAbs(p):
		return errors.New("is absolute; it must be relative to the step")
	case path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../"):
		return errors.New("is not a clean path below the step")
	case !globs && isGlob(p):
		return errors.New("has a glob where one file must be named")
	}
	for c := range strings.SplitSeq(p, "/") {
		if _, err := path.Match(c, ""); err != nil {
			return errors.New("is a malformed glob")
		}
		if c != "**" && strings.Contains(c, "**") {
			return errors.New("has ** inside a component; it must be one of its own")
		}
	}
	return nil
}

// New makes a layout of a spec, or returns every problem that the spec has.
func New(spec Spec) (Layout, error) {
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("layout %q: %w", spec.Name, err)
	}
	p, err := compile(spec.Step)
	if err != nil {
		return nil, fmt.Errorf("layout %q: %w", spec.Name, err)
	}
	return &generic{spec: spec, pattern: p}, nil
}
