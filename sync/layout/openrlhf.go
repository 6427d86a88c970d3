package layout

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of OpenRLHF.
const (
	openName  = "openrlhf"
	openActor = "_actor"
)

// openrlhf is the layout of OpenRLHF's PPO: a directory in which each role has
// a DeepSpeed save directory of its own. Other trainers of it have only one,
// which is DeepSpeed's own layout.
type openrlhf struct{}

// Name implements Layout.
func (openrlhf) Name() string { return openName }

// Depth implements Layout.
func (openrlhf) Depth() int { return 1 }

// Match implements Layout. The number is for Number to find.
func (openrlhf) Match(name string, dir bool) (Step, bool) {
	if !dir || strings.Contains(name, "/") {
		return Step{}, false
	}
	return Step{Name: name, Dir: true, Layout: openName}, true
}

// Doubts implements Doubter.
func (openrlhf) Doubts(string) bool { return true }

// Probe implements Prober.
func (openrlhf) Probe(fsys fs.FS, s Step) Likeness {
	actor := path.Join(s.Name, openActor)
	if exists(fsys, path.Join(actor, dsLatest)) || len(openTags(fsys, actor)) > 0 {
		return Surely
	}
	return Hardly
}

// openTags are the tags of a role that are numbered, ascending.
func openTags(fsys fs.FS, role string) []int64 {
	entries, _ := fs.ReadDir(fsys, role)
	var out []int64
	for _, d := range entries {
		if n, ok, err := dsPattern.match(d.Name()); ok && err == nil && d.IsDir() {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// Spec implements Layout.
func (openrlhf) Spec() Spec {
	return Spec{
		Name:        openName,
		Description: "OpenRLHF's PPO: _actor and _critic, each with DeepSpeed's tags; its other trainers save as layout deepspeed says",
		Step:        "*",
		Required:    []string{"_actor/latest"},
		AnyOf:       [][]string{{"_actor/*/*_model_states.pt"}},
		Exact:       []string{"_actor/*/*_optim_states.pt"},
		Ignore:      []string{"*/best*"},
		Settle:      DefaultSettle,
		Cumulative:  true,
		Code: "any directory with such an _actor is a step, also the root itself; its number is that of the newest tag global_step*, which every role's latest " +
			"names and whose DeepSpeed files are whole; older tags, and the best ones, are left out",
	}
}

// Number implements Numberer.
func (openrlhf) Number(fsys fs.FS, s Step) (int64, error) {
	tags := openTags(fsys, path.Join(s.Name, openActor))
	if len(tags) == 0 {
		return 0, fmt.Errorf("%s holds no global_step* yet", path.Join(s.Name, openActor))
	}
	return tags[len(tags)-1], nil
}

// Judge implements Layout.
func (o openrlhf) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	n, err := o.Number(fsys, s)
	tag := fmt.Sprintf("global_step%d", s.Number)
	t.leaveOut(func(rel string) bool { // other tags, and what is no role
		role, rest, _ := strings.Cut(rel, "/")
		first, _, deep := strings.Cut(rest, "/")
		return !strings.HasPrefix(role, "_") || deep && first != tag || !deep && t.dirs[rel] && rest != "" && rest != tag
	})
	j := newJudge(t, nil)
	j.checkFiles()
	switch {
	case err != nil:
		j.absentf("missing %s/global_step*", openActor)
	case n != s.Number:
		j.reasonf("%s holds global_step%d, where the step was found to be %d: it is being saved again", openActor, n, s.Number)
	}
	j.v.Resume = commit.ResumeExact
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	for _, role := range j.openRoles() {
		j.openRole(role, tag)
	}
	j.counted()
	return j.verdict(), nil
}

// openRoles are the roles that save.
func (j *judge) openRoles() []string {
	roles := []string{openActor}
	for d := range j.dirs {
		if strings.HasPrefix(d, "_") && !strings.Contains(d, "/") {
			roles = append(roles, d)
		}
	}
	return unique(roles)
}

// openRole judges the tag of one role.
func (j *judge) openRole(role, tag string) {
	latest := path.Join(role, dsLatest)
	if j.files[latest] == nil {
		j.missing(latest)
	} else if !j.broken[latest] {
		switch name, err := j.latest(latest); {
		case err != nil:
			j.spoil(latest, "%s: %v", latest, err)
		case name != tag:
			j.spoil(latest, "%s names %s, not %s: its save is under way, or was cut off", latest, name, tag)
		}
	}
	dir := path.Join(role, tag)
	if !j.hasDir(dir) {
		j.missing(dir)
		return
	}
	t := j.checkTag(dir)
	if !t.optimizer {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, dir+"/*_optim_states.pt")
	}
	if !t.counted {
		j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	}
}
