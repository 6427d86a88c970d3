package restore

import (
	"fmt"
	"path"
	"strings"
)

// filter is the --include and --exclude of a restore.
type filter struct {
	include, exclude [][]string // patterns, cut at slashes
}

// newFilter parses patterns: those of path.Match, relative to the step, where
// a component "**" stands for any number of directories. A pattern that
// matches a directory stands for all in it.
func newFilter(include, exclude []string) (*filter, error) {
	cut := func(patterns []string) ([][]string, error) {
		var out [][]string
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return nil, fmt.Errorf("the pattern %q is malformed", p)
			}
			out = append(out, strings.Split(strings.TrimSuffix(p, "/"), "/"))
		}
		return out, nil
	}
	in, err := cut(include)
	if err != nil {
		return nil, err
	}
	ex, err := cut(exclude)
	if err != nil {
		return nil, err
	}
	return &filter{include: in, exclude: ex}, nil
}

// active reports whether the filter takes anything away.
func (f *filter) active() bool { return len(f.include)+len(f.exclude) > 0 }

// keep says whether the entry at rel, relative to the step, is wanted for
// itself. Directories that only lead to wanted entries are not.
func (f *filter) keep(rel string) bool {
	comps := strings.Split(rel, "/")
	if len(f.include) > 0 && !matchAny(f.include, comps) {
		return false
	}
	return !matchAny(f.exclude, comps)
}

// matchAny reports whether a pattern matches comps or a directory above it.
func matchAny(patterns [][]string, comps []string) bool {
	for _, p := range patterns {
		if matchPrefix(p, comps) {
			return true
		}
	}
	return false
}

// matchPrefix reports whether pattern matches some prefix of comps.
func matchPrefix(pattern, comps []string) bool {
	if len(pattern) == 0 {
		return true
	}
	if pattern[0] == "**" {
		if len(pattern) == 1 {
			return len(comps) > 0
		}
		for i := range comps {
			if matchPrefix(pattern[1:], comps[i:]) {
				return true
			}
		}
		return false
	}
	if len(comps) == 0 {
		return false
	}
	ok, err := path.Match(pattern[0], comps[0])
	return err == nil && ok && matchPrefix(pattern[1:], comps[1:])
}
