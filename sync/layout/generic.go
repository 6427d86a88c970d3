package layout

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// generic is a layout that a Spec describes in full.
type generic struct {
	spec    Spec
	pattern *pattern
}

// Name implements Layout.
func (g *generic) Name() string { return g.spec.Name }

// Spec implements Layout.
func (g *generic) Spec() Spec { return g.spec }

// Depth implements Layout.
func (g *generic) Depth() int { return g.pattern.depth }

// Match implements Layout.
func (g *generic) Match(name string, dir bool) (Step, bool) {
	switch g.spec.Kind {
	case "file":
		if dir {
			return Step{}, false
		}
	case "any":
	default:
		if !dir {
			return Step{}, false
		}
	}
	return g.pattern.step(name, dir, g.spec.Name)
}

// step is the Step of a name that matches.
func (p *pattern) step(name string, dir bool, layout string) (Step, bool) {
	n, ok, err := p.match(name)
	if !ok || err != nil {
		return Step{}, false
	}
	return Step{Name: name, Number: n, Dir: dir, Layout: layout}, true
}

// expand puts a step's names into a template.
func expand(template string, s Step) string {
	return strings.NewReplacer(
		"{name}", s.Name,
		"{stem}", strings.TrimSuffix(s.Name, path.Ext(s.Name)),
		"{step}", strconv.FormatInt(s.Number, 10),
	).Replace(template)
}

// Judge implements Layout.
func (g *generic) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, g.spec.Ignore)
	if err != nil {
		return Verdict{Step: s}, err
	}
	empty := g.spec.Empty
	if g.spec.Marker != "" {
		empty = append([]string{g.spec.Marker}, empty...)
	}
	j := newJudge(t, empty)
	j.checkFiles()
	j.checkIndexes()
	j.checkDCPs()
	if s.Dir {
		g.judgeDir(j)
	} else {
		j.vouch(nil, nil)
		j.v.Evidence = []string{"."}
	}
	g.forbidden(j)
	j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	if s.Dir && g.spec.Marker != "" {
		j.v.Strength, j.v.Settle = Strong, DefaultSettle
	}
	if g.spec.Settle > 0 {
		j.v.Settle = g.spec.Settle
	}
	for _, p := range g.spec.Pointers {
		j.v.Pointers = append(j.v.Pointers, commit.Pointer{Path: p.Path, Content: expand(p.Content, s), Link: p.Link})
	}
	return j.verdict(), nil
}

func (g *generic) judgeDir(j *judge) {
	for _, r := range g.spec.Required {
		g.require(j, r)
	}
	for _, group := range g.spec.AnyOf {
		found := false
		for _, m := range group {
			found = found || len(j.glob(m)) > 0
		}
		if !found {
			j.absentf("missing one of %s", strings.Join(group, ", "))
		}
	}
	if len(j.files) == 0 && len(g.spec.Required)+len(g.spec.AnyOf) == 0 && g.spec.Marker == "" {
		j.absentf("holds no file")
	}
	var evidence []string
	switch m := g.spec.Marker; {
	case m == "":
		j.vouch(nil, g.spec.Late)
		for _, r := range g.spec.Required {
			evidence = append(evidence, j.glob(r)...)
		}
		j.v.Evidence = unique(evidence)
	case j.files[m] == nil:
		j.missing(m)
		j.vouch(nil, g.spec.Late)
	default:
		j.vouch([]string{m}, g.spec.Late)
	}
	g.exact(j)
}

func (g *generic) require(j *judge, r string) {
	if len(j.glob(r)) > 0 {
		return
	}
	if isGlob(r) {
		j.absentf("missing every file of %s", r)
		return
	}
	j.missing(r)
}

func (g *generic) exact(j *judge) {
	if len(g.spec.Exact) == 0 {
		return
	}
	j.v.Resume = commit.ResumeExact
	for _, r := range g.spec.Exact {
		if len(j.glob(r)) == 0 {
			j.v.Missing = append(j.v.Missing, r)
			j.v.Resume = commit.ResumeWeights
		}
	}
	j.v.Missing = unique(j.v.Missing)
}

// forbidden looks for entries that mean that a save is under way.
func (g *generic) forbidden(j *judge) {
	for _, f := range g.spec.Forbidden {
		inRoot := strings.HasPrefix(f, "/")
		glob := escapeNames(strings.TrimPrefix(f, "/"), j.step)
		if !inRoot {
			for _, rel := range j.entries() {
				if matchGlob(glob, rel) {
					j.reasonf("%s is there: a save is under way, or was cut off", rel)
				}
			}
			continue
		}
		dir, base := path.Split(glob)
		entries, err := fs.ReadDir(j.fsys, path.Join(".", unescape(dir)))
		if err != nil {
			j.reasonf("cannot look for %s: %s", f, cause(err))
			continue
		}
		for _, d := range entries {
			if ok, _ := path.Match(base, d.Name()); ok {
				marker := path.Join(unescape(dir), d.Name())
				if fi, err := d.Info(); err == nil {
					j.stays(marker, fi)
				}
				j.reasonf("%s is there: a save is under way, or was cut off", marker)
			}
		}
	}
}

// entries are the paths of all that lies in the step, what is skipped as well.
func (t *tree) entries() []string {
	all := append([]string(nil), t.sorted...)
	for d := range t.dirs {
		all = append(all, d)
	}
	for l := range t.astray {
		all = append(all, l)
	}
	return unique(append(all, t.skip...))
}

// escapeNames expands a template into a glob that matches the step's own names
// literally.
func escapeNames(template string, s Step) string {
	s.Name = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s.Name)
	return expand(template, s)
}

func unescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\*`, `*`, `\?`, `?`, `\[`, `[`).Replace(s)
}

// Probe implements Prober.
func (g *generic) Probe(fsys fs.FS, s Step) Likeness {
	if !s.Dir {
		return Maybe
	}
	there := func(glob string) bool {
		if !isGlob(glob) {
			_, err := lstat(fsys, path.Join(s.Name, glob))
			return err == nil
		}
		dir, base := path.Split(glob)
		if isGlob(dir) {
			return false
		}
		entries, _ := fs.ReadDir(fsys, path.Join(s.Name, dir))
		for _, d := range entries {
			if ok, _ := path.Match(base, d.Name()); ok {
				return true
			}
		}
		return false
	}
	if g.spec.Marker != "" && there(g.spec.Marker) {
		return Surely
	}
	wanted, found := 0, 0
	for _, group := range append(singles(g.spec.Required), g.spec.AnyOf...) {
		wanted++
		for _, m := range group {
			if there(m) {
				found++
				break
			}
		}
	}
	switch {
	case wanted > 0 && found == wanted && g.spec.Marker == "":
		return Surely
	case found > 0 || wanted == 0 && g.spec.Marker == "":
		return Maybe
	}
	return Hardly
}

func singles(list []string) [][]string {
	out := make([][]string, len(list))
	for i, s := range list {
		out[i] = []string{s}
	}
	return out
}

// String says what the layout is, for people.
func (g *generic) String() string { return fmt.Sprintf("%s (%s)", g.spec.Name, g.spec.Step) }
