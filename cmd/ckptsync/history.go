package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// attemptJSON is one attempt in `list --all --json`, an attempt before those
// that began from its commits, and in `show --json`, with those that it
// descends from.
type attemptJSON struct {
	Attempt  int         `json:"attempt"`
	Declared bool        `json:"declared"` // by a restore
	Fresh    bool        `json:"fresh,omitempty"`
	Base     *headJSON   `json:"base"` // the commit that it began from
	Rank     int         `json:"rank"`
	Nodes    int         `json:"nodes"`
	Join     string      `json:"join,omitempty"`
	Start    string      `json:"start,omitempty"` // of several nodes: go, void, or open
	Claimed  []int       `json:"claimed,omitempty"`
	Host     string      `json:"host,omitempty"`
	Created  commit.Time `json:"created"`
	Leads    bool        `json:"leads"`
	Excluded bool        `json:"excluded,omitempty"` // as a whole
	Gone     bool        `json:"gone,omitempty"`     // its object is not there
	Commits  int         `json:"commits"`
	First    *int64      `json:"first_step,omitempty"` // of its commits
	Last     *int64      `json:"last_step,omitempty"`
	Head     *headJSON   `json:"head,omitempty"` // if it is its commit

	voidReason string
	depth      int
	youngest   bool // of its siblings
}

// startOpen is what Start says while nobody has decided.
const startOpen = "open"

// unfinishedJSON is a step in `list --all --json` that some node has sealed and
// that is not committed.
type unfinishedJSON struct {
	Step     int64       `json:"step"`
	Name     string      `json:"name"`
	Encoding string      `json:"encoding,omitempty"`
	Attempt  int         `json:"attempt"`
	Revision int         `json:"revision"`
	Nodes    int         `json:"nodes"`
	Sealed   []int       `json:"sealed"`
	Voted    []int       `json:"voted"`
	Awaited  []int       `json:"awaited"` // they have not sealed or, if all have, not voted
	Since    commit.Time `json:"since"`   // the first seal
}

// addHistory adds to a list what lies behind the commits.
func (r *openedRun) addHistory(ctx context.Context, v *commit.View, l *listJSON) error {
	var err error
	if l.Attempts, err = r.attempts(ctx, v, v.Family()); err != nil {
		return err
	}
	open, err := r.Store.Unfinished(ctx, v)
	if err != nil {
		return err
	}
	l.Unfinished = make([]unfinishedJSON, len(open))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(markersAtOnce)
	for i, u := range open {
		g.Go(func() (err error) {
			l.Unfinished[i], err = r.unfinished(gctx, u)
			return err
		})
	}
	return g.Wait()
}

// unfinished describes one step; its name is what a manifest says.
func (r *openedRun) unfinished(ctx context.Context, u commit.Unfinished) (unfinishedJSON, error) {
	out := unfinishedJSON{
		Step: u.Step, Attempt: u.Attempt, Revision: u.Revision, Nodes: u.Nodes,
		Sealed: []int{}, Voted: append([]int{}, u.Voted...), Awaited: append([]int{}, u.Awaited...), Since: commit.At(u.Since),
	}
	for _, p := range u.Sealed {
		out.Sealed = append(out.Sealed, p.Node)
	}
	m, _, err := r.GetManifest(ctx, u.ID, u.Sealed[0].Node, u.Sealed[0].Claim)
	switch {
	case err == nil:
		out.Name, out.Encoding = jsonName(m.Name)
	case blob.Ambiguous(err), errors.Is(err, blob.ErrDenied):
		return out, err
	}
	return out, nil
}

// attempts describes the branches of a family.
func (r *openedRun) attempts(ctx context.Context, v *commit.View, of []commit.Branch) ([]attemptJSON, error) {
	out := make([]attemptJSON, len(of))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(markersAtOnce)
	for i, b := range of {
		a := attemptJSON{
			Attempt: b.Attempt.Attempt, Declared: b.Declared, Fresh: b.Fresh, Rank: v.Rank(b.Attempt.Attempt), Nodes: b.Nodes, Join: b.Join,
			Host: b.Host, Created: b.Created, Leads: b.Leads, Excluded: b.Excluded, Gone: b.Gone, Commits: len(b.Commits), depth: b.Depth, youngest: b.Last,
		}
		if b.Base != nil {
			a.Base = &headJSON{b.Base.Step, b.Base.Attempt, b.Base.Revision}
		}
		if n := len(b.Commits); n > 0 {
			a.First, a.Last = &b.Commits[0].Step, &b.Commits[n-1].Step
		}
		if b.Head != nil {
			a.Head = &headJSON{b.Head.Step, b.Head.Attempt, b.Head.Revision}
		}
		out[i] = a
		if b.Nodes > 1 {
			g.Go(func() error { return r.joined(gctx, v, b.Attempt, &out[i]) })
		}
	}
	return out, g.Wait()
}

// joined fills in what only attempts of several nodes have.
func (r *openedRun) joined(ctx context.Context, v *commit.View, of commit.Attempt, a *attemptJSON) error {
	claims, err := r.NewestClaims(ctx, of.Attempt)
	if err != nil {
		return err
	}
	a.Claimed = slices.Sorted(maps.Keys(claims))
	if !of.Declared {
		return nil // its daemons wait for nobody
	}
	a.Start, a.voidReason, err = r.Decided(ctx, v, of)
	switch {
	case errors.Is(err, commit.ErrInvalid), errors.Is(err, commit.ErrFormat):
		a.Start, a.voidReason = startOpen, err.Error()
	case err != nil:
		return err
	case a.Start == "":
		a.Start = startOpen
	}
	return nil
}

// origin is one line on what an attempt is.
func (a *attemptJSON) origin() string {
	words := []string{"declared"}
	switch {
	case a.Gone:
		words = []string{"its object is gone"}
	case a.Fresh:
		words = []string{"declared fresh"}
	case !a.Declared:
		words = []string{fmt.Sprintf("undeclared, rank %d", a.Rank)}
	}
	if a.Nodes > 1 {
		words = append(words, fmt.Sprintf("%d nodes", a.Nodes))
	}
	if a.Join != "" {
		words = append(words, "join key "+a.Join)
	}
	switch a.Start {
	case commit.StartVoid:
		words = append(words, join(": ", "void", a.voidReason))
	case startOpen:
		words = append(words, fmt.Sprintf("not started: %d of %d nodes have claimed", len(a.Claimed), a.Nodes))
	}
	if a.Excluded {
		words = append(words, "excluded as a whole")
	}
	return strings.Join(words, ", ")
}

// line is an attempt in the graph, without the branches that lead to it.
func (a *attemptJSON) line() string {
	s := fmt.Sprintf("%d  %s", a.Attempt, a.origin())
	if a.Base != nil {
		s = fmt.Sprintf("from step %d: %s", a.Base.Step, s)
	}
	switch {
	case a.Commits == 0:
		s += "; no commit"
	case *a.First == *a.Last:
		s += fmt.Sprintf("; step %d", *a.First)
	default:
		s += fmt.Sprintf("; %s, steps %d to %d", term.Count(a.Commits, "commit"), *a.First, *a.Last)
	}
	if a.Head != nil {
		s += fmt.Sprintf("; head: step %d", a.Head.Step)
	} else if a.Leads {
		s += "; leads"
	}
	return s
}

// graph draws the attempts, each below the one whose commit it began from.
func graph(as []attemptJSON) []string {
	var out []string
	var done []bool // by depth: no sibling follows
	for i := range as {
		a := &as[i]
		done = append(done[:min(a.depth, len(done))], a.youngest)
		var b strings.Builder
		for d := 1; d <= a.depth; d++ {
			switch {
			case d < a.depth && done[d]:
				b.WriteString("   ")
			case d < a.depth:
				b.WriteString("│  ")
			case a.youngest:
				b.WriteString("└─ ")
			default:
				b.WriteString("├─ ")
			}
		}
		out = append(out, b.String()+a.line())
	}
	return out
}

// explained says what words of a list mean, each only if it is there.
func (l *listJSON) explained() []string {
	var out []string
	for _, e := range []struct {
		word, means string
		is          bool
	}{
		{"regressed", "committed at or below a step that training had reached already; it is kept, and leads once its training passes that step, or its owner says restore --fresh",
			slices.ContainsFunc(l.Commits, func(c commitJSON) bool { return c.State == string(commit.StateRegressed) })},
		{"abandoned", "training went on from elsewhere, in an attempt that leads; it is kept for a time, and restored only if it is asked for with --step or --attempt",
			slices.ContainsFunc(l.Commits, func(c commitJSON) bool { return c.State == string(commit.StateAbandoned) })},
		{"undeclared", "begun by a daemon that no restore came before; it ranks with the commit that it found on its own disk, else below all that were declared",
			slices.ContainsFunc(l.Attempts, func(a attemptJSON) bool { return !a.Declared && !a.Gone })},
		{"void", "its base was found damaged before its nodes had started; none trains under it, and the next attempt takes another base",
			slices.ContainsFunc(l.Attempts, func(a attemptJSON) bool { return a.Start == commit.StartVoid })},
	} {
		if e.is {
			out = append(out, e.word+": "+e.means+".")
		}
	}
	return out
}

// line is an unfinished step in words.
func (u *unfinishedJSON) line() string {
	s := fmt.Sprintf("step %d of attempt %d, revision %d", u.Step, u.Attempt, u.Revision)
	if u.Name != "" {
		s = fmt.Sprintf("%s, step %d of attempt %d, revision %d", u.Name, u.Step, u.Attempt, u.Revision)
	}
	switch {
	case u.Nodes < 2:
		return s + fmt.Sprintf(": sealed %s, and its marker is not written", term.When(u.Since.Time))
	case len(u.Sealed) == u.Nodes && len(u.Awaited) > 0 && len(u.Voted)+len(u.Awaited) == u.Nodes:
		return s + fmt.Sprintf(": sealed by all %d nodes, awaits the vote of %s, since %s", u.Nodes, nodes(u.Awaited), term.When(u.Since.Time))
	case len(u.Awaited) == 0:
		return s + fmt.Sprintf(": sealed and voted for by all %d nodes, and its marker is not written", u.Nodes)
	}
	return s + fmt.Sprintf(": sealed by %s of %d, awaits %s, since %s", nodes(u.Sealed), u.Nodes, nodes(u.Awaited), term.When(u.Since.Time))
}

// nodes names nodes, with ranges: node 3, nodes 0, 2-5 and 7.
func nodes(of []int) string {
	var parts []string
	for i := 0; i < len(of); {
		j := i
		for j+1 < len(of) && of[j+1] == of[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			parts = append(parts, fmt.Sprintf("%d-%d", of[i], of[j]))
		case j == i+1:
			parts = append(parts, fmt.Sprint(of[i]), fmt.Sprint(of[j]))
		default:
			parts = append(parts, fmt.Sprint(of[i]))
		}
		i = j + 1
	}
	word := "nodes "
	if len(of) == 1 {
		word = "node "
	}
	if n := len(parts); n > 1 {
		return word + strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return word + strings.Join(parts, "")
}

// printHistory prints what lies behind the commits of a list.
func (a *app) printHistory(l *listJSON) error {
	section := func(style term.Style, title string, lines []string) error {
		if len(lines) == 0 {
			return nil
		}
		var err error
		if title != "" {
			err = errors.Join(a.term.Printf(term.Plain, ""), a.term.Printf(term.Bold, "%s", title))
		}
		for _, s := range lines {
			err = errors.Join(err, a.term.Printf(style, "  %s", s))
		}
		return err
	}
	var open []string
	for i := range l.Unfinished {
		open = append(open, l.Unfinished[i].line())
	}
	return errors.Join(section(term.Plain, "ATTEMPTS", graph(l.Attempts)), section(term.Dim, "", l.explained()), section(term.Plain, "UNFINISHED", open))
}
