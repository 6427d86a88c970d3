package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// DefaultMaxRuns is how many runs a pattern gives at most, if it does not say.
const DefaultMaxRuns = 64

// maxMatches bounds how many directories one look at a pattern goes through.
const maxMatches = 10_000

// Pattern is an entry of runs: that stands for as many runs as there are
// directories of its form.
type Pattern struct {
	Roots   string // absolute and clean; "*" is part of one name, and none that begins with a dot
	Name    string // of the runs; {1} is what the first star matched
	MaxRuns int    // at most so many

	stateDir string // as Roots, with {1}; empty for the default
	order    int    // among all
	like     Run    // what the runs have in common
}

// Skipped is a directory, or a pattern, that is not served as it could be.
type Skipped struct {
	Path   string
	Reason string
	run    string // that it would have been
}

// Found is what the patterns of a configuration stand for at the moment.
type Found struct {
	Runs    []Run
	Skipped []Skipped
	// Unsure are the directories that could not be listed: nobody knows what is
	// below them, and that is no word on what was there before.
	Unsure []string
}

// Listed returns the runs that the configuration names one by one.
func (c *Config) Listed() []Run { return slices.Clone(c.listed) }

// Discover looks for the directories that the patterns stand for, and returns a
// run for each. Those that are served already, as this or an earlier call
// returned them, keep their place before others of the same name, the same
// directory, or beyond the pattern's limit.
func (c *Config) Discover(serving []Run) Found {
	d := &discovery{cfg: c, serving: map[string]string{}}
	for _, r := range serving {
		d.serving[r.Root] = r.Name
	}
	for i := range c.Patterns {
		d.gather(&c.Patterns[i])
	}
	d.twins()
	d.names()
	d.accept()
	slices.SortStableFunc(d.found.Runs, func(a, b Run) int { return cmp.Compare(a.Name, b.Name) })
	return d.found
}

// discovery is one look at all patterns.
type discovery struct {
	cfg     *Config
	serving map[string]string // root to name
	all     []candidate
	found   Found
}

// candidate is a directory that may become a run.
type candidate struct {
	Run
	of      *Pattern
	serving bool // by this process
	known   bool // there is a state directory for it
	link    bool // there are symbolic links in its path
}

func (d *discovery) skip(path, run, format string, args ...any) {
	d.found.Skipped = append(d.found.Skipped, Skipped{Path: path, Reason: fmt.Sprintf(format, args...), run: run})
}

// gather adds a pattern's directories whose names and places are good ones.
func (d *discovery) gather(p *Pattern) {
	for _, m := range d.match(p) {
		name := expand(p.Name, m.stars)
		if err := commit.CheckRun(name); err != nil {
			d.skip(m.path, name, "it gives no run name: %v", err)
			continue
		}
		c := candidate{Run: p.like, of: p}
		c.Name, c.Root, c.StateDir = name, m.path, expand(p.stateDir, m.stars)
		var ps problems
		settlePaths(&c.Run, "/", "/", place{}, place{}, &ps)
		if len(ps.list) > 0 {
			d.skip(m.path, name, "%s", ps.list[0].Text)
			continue
		}
		if dir := d.cfg.Store.dirOrEmpty(); dir != "" {
			if real, err := resolve(dir); err == nil && (within(real, c.realRoot) || within(c.realRoot, real)) {
				if real != c.realRoot {
					d.skip(m.path, name, "the store %s and it lie one inside the other", dir)
				}
				continue
			}
		}
		c.serving = d.serving[c.Root] == name
		c.known = isThere(c.StateDir)
		c.link = c.realRoot != c.Root
		d.all = append(d.all, c)
	}
	slices.SortStableFunc(d.all, func(a, b candidate) int {
		return cmp.Or(first(a.serving, b.serving), first(a.known, b.known), first(!a.link, !b.link), cmp.Compare(a.of.order, b.of.order), cmp.Compare(a.Root, b.Root))
	})
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// twins leaves of several paths to one directory the first. A directory that a
// listed run has is that run's, without a word.
func (d *discovery) twins() {
	seen := map[string]Run{}
	for _, r := range d.cfg.everyListed {
		seen[r.realRoot] = r
	}
	d.all = slices.DeleteFunc(d.all, func(c candidate) bool {
		o, twice := seen[c.realRoot]
		switch {
		case !twice:
			seen[c.realRoot] = c.Run
		case o.Root != c.Root:
			d.skip(c.Root, c.Name, "it is the same directory as %s, which run %s has", o.Root, o.Name)
		}
		return twice
	})
}

// names leaves of several directories that give one name the one that has it
// already; if none has, or several do, none: nobody can say whose commits those
// of that run are.
func (d *discovery) names() {
	by := map[string][]candidate{}
	for _, c := range d.all {
		by[c.Name] = append(by[c.Name], c)
	}
	d.all = slices.DeleteFunc(d.all, func(c candidate) bool {
		for _, r := range d.cfg.everyListed {
			if r.Name == c.Name {
				d.skip(c.Root, c.Name, "it gives the name of run %s, which is listed with the root %s", r.Name, r.Root)
				return true
			}
		}
		same := by[c.Name]
		if len(same) == 1 {
			return false
		}
		owned := same[0].serving || same[0].known && !same[1].known
		switch {
		case owned && same[0].Root == c.Root:
			return false
		case owned:
			d.skip(c.Root, c.Name, "it gives the run name %s, which %s has already; give one of them another name, or list it with a name of its own", c.Name, same[0].Root)
		default:
			d.skip(c.Root, c.Name, "it gives the run name %s, and so does %s: neither is served; give one of them another name, or list it with a name of its own", c.Name, other(same, c).Root)
		}
		return true
	})
}

func other(same []candidate, than candidate) candidate {
	for _, c := range same {
		if c.Root != than.Root {
			return c
		}
	}
	return than
}

// accept takes what fits beside each other and into the patterns' limits.
func (d *discovery) accept() {
	taken := slices.Clone(d.cfg.everyListed)
	count, left := map[*Pattern]int{}, map[*Pattern][]string{}
	for _, c := range d.all {
		if reason := beside(c.Run, taken); reason != "" {
			d.skip(c.Root, c.Name, "%s", reason)
			continue
		}
		if count[c.of]++; count[c.of] > c.of.MaxRuns {
			left[c.of] = append(left[c.of], filepath.Base(c.Root)+" ("+c.Name+")")
			d.found.Skipped = append(d.found.Skipped, Skipped{run: c.Name})
			continue
		}
		taken = append(taken, c.Run)
		d.found.Runs = append(d.found.Runs, c.Run)
	}
	d.found.Skipped = slices.DeleteFunc(d.found.Skipped, func(s Skipped) bool { return s.Path == "" })
	for i := range d.cfg.Patterns {
		p := &d.cfg.Patterns[i]
		if n := len(left[p]); n > 0 {
			d.skip(p.Roots, "", "%d directories have this form, and max_runs is %d; not served: %s", count[p], p.MaxRuns, some(left[p]))
		}
	}
}

// beside says why a run cannot be served beside others; empty if it can.
func beside(r Run, others []Run) string {
	for _, o := range others {
		switch {
		case o.realRoot == "":
		case r.realState == o.realState:
			return fmt.Sprintf("it has the same state directory as run %s, %s", o.Name, o.StateDir)
		case within(r.realRoot, o.realRoot):
			return fmt.Sprintf("it is inside %s, the root of run %s", o.Root, o.Name)
		case within(o.realRoot, r.realRoot):
			return fmt.Sprintf("%s, the root of run %s, is inside it", o.Root, o.Name)
		case within(r.realState, o.realRoot), within(o.realState, r.realRoot):
			return fmt.Sprintf("the state directory of one would be inside the root of the other, run %s", o.Name)
		}
	}
	return ""
}

// some names the first of many.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// match is a path of a pattern's form.
type match struct {
	path  string
	stars []string // what they matched
}

// match lists the directories of a pattern's form.
func (d *discovery) match(p *Pattern) []match {
	now := []match{{path: "/"}}
	for _, element := range strings.Split(strings.TrimPrefix(p.Roots, "/"), "/") {
		var next []match
		for _, m := range now {
			if !strings.Contains(element, "*") {
				m.path = filepath.Join(m.path, element)
				next = append(next, m)
				continue
			}
			next = append(next, d.list(m, element)...)
			if len(next) > maxMatches {
				d.skip(p.Roots, "", "more than %d directories have this form: none is looked at; make it narrower", maxMatches)
				d.found.Unsure = append(d.found.Unsure, m.path)
				return nil
			}
		}
		now = next
	}
	return slices.DeleteFunc(now, func(m match) bool {
		fi, err := os.Stat(m.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.unsure(m.path, err)
		}
		return err != nil || !fi.IsDir()
	})
}

// list matches the entries of a directory with one element of a pattern.
func (d *discovery) list(m match, element string) []match {
	entries, err := os.ReadDir(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if fi, serr := os.Stat(m.path); serr == nil && !fi.IsDir() {
			return nil // a file has nothing below it
		}
		d.unsure(m.path, err)
	}
	var out []match
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, stateSuffix) || !e.IsDir() && e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if stars, ok := matchElement(element, name); ok {
			out = append(out, match{filepath.Join(m.path, name), append(slices.Clone(m.stars), stars...)})
		}
	}
	return out
}

func (d *discovery) unsure(path string, err error) {
	d.found.Unsure = append(d.found.Unsure, path)
	d.skip(path, "", "it cannot be looked at: %v", err)
}

// matchElement matches one name with one element of a pattern; what is before
// a star is as short as can be.
func matchElement(element, name string) (stars []string, ok bool) {
	head, tail, star := strings.Cut(element, "*")
	rest, ok := strings.CutPrefix(name, head)
	if !ok || !star {
		return nil, ok && rest == ""
	}
	for i := 0; i <= len(rest); i++ {
		if more, ok := matchElement(tail, rest[i:]); ok {
			return append([]string{rest[:i]}, more...), true
		}
	}
	return nil, false
}

// expand puts what the stars matched into a template.
func expand(template string, stars []string) string {
	pairs := make([]string, 0, 2*len(stars))
	for i, s := range stars {
		pairs = append(pairs, fmt.Sprintf("{%d}", i+1), s)
	}
	return strings.NewReplacer(pairs...).Replace(template)
}
