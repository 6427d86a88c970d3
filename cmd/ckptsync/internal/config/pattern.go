package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// pattern reads entry i of runs:, which stands for several runs that are like r.
func (l *loader) pattern(i int, like Run) {
	fr := l.raw.Runs[i]
	key := fmt.Sprintf("runs[%d]", i)
	at := l.at(key+".roots", key)
	p := Pattern{Name: fr.Name, MaxRuns: DefaultMaxRuns, order: i, like: like}
	var err error
	if p.Roots, err = absolute(l.base(key), fr.Roots); err != nil {
		l.ps.add(at, "roots: %v", err)
		return
	}
	stars := strings.Count(p.Roots, "*")
	switch {
	case fr.Root != "":
		l.ps.add(at, "roots: it cannot stand beside root: in one entry; make two entries")
	case strings.Contains(p.Roots, "**"):
		l.ps.add(at, "roots: %q: a star is part of one name; write as many levels as there are, as /scratch/*/*/out", fr.Roots)
	case strings.ContainsAny(p.Roots, "?[]{}\\"):
		l.ps.add(at, "roots: %q: of wildcards only * is known", fr.Roots)
	case stars == 0:
		l.ps.add(at, "roots: %q has no star; for a single directory write root:", fr.Roots)
	}
	l.template(p.Name, "name", stars, l.at(key+".name", key))
	if p.Name != "" {
		if err := commit.CheckRun(placeholder.ReplaceAllString(p.Name, "x")); err != nil && !strings.ContainsAny(placeholder.ReplaceAllString(p.Name, "x"), "{}") {
			l.ps.add(l.at(key+".name", key), "name: %v", err)
		}
	}
	if fr.StateDir != "" {
		atState := l.at(key + ".state_dir")
		if p.stateDir, err = absolute(l.base(key), fr.StateDir); err != nil {
			l.ps.add(atState, "state_dir: %v", err)
		}
		l.template(p.stateDir, "state_dir", stars, atState)
	}
	if fr.MaxRuns != nil {
		if p.MaxRuns = *fr.MaxRuns; p.MaxRuns < 1 || p.MaxRuns > 1024 {
			l.ps.add(l.at(key+".max_runs"), "max_runs: %d is not between 1 and 1024", p.MaxRuns)
		}
	}
	l.patterns = append(l.patterns, p)
}

var placeholder = regexp.MustCompile(`\{[1-9]\}`)

// template checks the {1} of a template, of which each must be one of stars.
func (l *loader) template(text, what string, stars int, at place) {
	all := placeholder.FindAllString(text, -1)
	for _, m := range all {
		if n, _ := strconv.Atoi(strings.Trim(m, "{}")); n > stars {
			l.ps.add(at, "%s: %s stands for star number %d, and roots has only %d", what, m, n, stars)
		}
	}
	switch rest := placeholder.ReplaceAllString(text, ""); {
	case strings.ContainsAny(rest, "{}"):
		l.ps.add(at, "%s: in %q only {1}, {2} … stand for something: what the stars of roots matched", what, text)
	case len(all) == 0:
		l.ps.add(at, "%s: of a pattern it needs {1}, which stands for what its first star matched; else all directories had the same", what)
	}
}

// named returns the run of that name that a pattern may give, whether or not
// its directory is there: a restore makes it. Its root is empty where the name
// does not tell it.
func (p *Pattern) named(name string) (Run, bool) {
	var re strings.Builder
	rest, holes := p.Name, placeholder.FindAllStringIndex(p.Name, -1)
	last := 0
	for _, h := range holes {
		re.WriteString(regexp.QuoteMeta(rest[last:h[0]]) + "(.+)")
		last = h[1]
	}
	m := regexp.MustCompile("^" + re.String() + regexp.QuoteMeta(rest[last:]) + "$").FindStringSubmatch(name)
	if m == nil {
		return Run{}, false
	}
	r := p.like
	r.Name = name
	if len(holes) == 1 && strings.Count(p.Roots, "*") == 1 {
		r.Root = strings.Replace(p.Roots, "*", m[1], 1)
		r.StateDir = expand(p.stateDir, m[1:])
	}
	return r, true
}

// choose makes the one run of that name of what the patterns stand for.
func (l *loader) choose(cfg *Config, chosen string) bool {
	r, ok := Run{}, false
	found := cfg.Discover(nil)
	for _, f := range found.Runs {
		if f.Name == chosen {
			r, ok = f, true
		}
	}
	for i := range cfg.Patterns {
		if !ok {
			r, ok = cfg.Patterns[i].named(chosen)
		}
	}
	if !ok {
		return false
	}
	_, elsewhere := l.from["root"]
	for _, s := range found.Skipped {
		if s.run == chosen && !elsewhere && s.Path != "" && r.realRoot == "" {
			l.ps.add(l.at("run"), "run %s: %s: %s", chosen, s.Path, s.Reason)
			return true
		}
	}
	f := &l.raw
	if elsewhere {
		r.Root, r.StateDir = f.Root, ""
	}
	if _, ok := l.from["state_dir"]; ok {
		r.StateDir = f.StateDir
	}
	settlePaths(&r, l.in.Dir, l.in.Dir, l.at("root"), l.at("state_dir", "root"), &l.ps)
	cfg.Runs = append(cfg.Runs, r)
	return true
}

// settleOf is how long a listed run's steps must have been quiet.
func (l *loader) settleOf(fr fileRun) *time.Duration {
	if _, given := l.from["settle"]; fr.Settle != nil && !given {
		return (*time.Duration)(fr.Settle)
	}
	return (*time.Duration)(l.raw.Settle)
}
