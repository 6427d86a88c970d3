package syncer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// Local is which committed steps a daemon removes from the disk that the trainer
// writes to. Only what this attempt has committed is ever removed, and only
// while it is, entry for entry, what was committed.
type Local struct {
	KeepLast int  // so many committed steps stay, the newest; at least 1
	MinFree  Free // only while less is free on the root's file system; zero: always
}

// Free is an amount of free space: bytes, or a share of the file system.
type Free struct {
	Bytes   uint64
	Percent float64
}

// localQuiet is how long nothing under the root must have changed before a step
// is removed: a trainer that saves removes old steps too, and one that is gone
// already must not end it.
const localQuiet = 10 * time.Second

// local is a committed step on the disk.
type local struct {
	step layout.Step
	id   commit.ID
	done string // fingerprint under which id holds its content
}

// freeLoop removes committed steps from the disk until ctx is done.
func (e *Engine) freeLoop(ctx context.Context) error {
	if e.cfg.Local == nil {
		return nil
	}
	var p freeing
	for {
		if err := p.next(ctx, e); err != nil && ctx.Err() == nil {
			e.notice("local retention", "no step was removed from the disk: "+err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.cfg.after(e.cfg.ScanInterval):
		}
	}
}

// freeAgain is how long steps that all had a reason to stay are left alone: to
// find that out takes judging them, and four listings.
const freeAgain = time.Minute

// freeing remembers what the last pass looked at.
type freeing struct {
	steps []local
	at    time.Time
}

// next removes what is to be removed, unless it was looked at just now.
func (f *freeing) next(ctx context.Context, e *Engine) error {
	steps := e.spare()
	if len(steps) == 0 || e.enough() {
		return nil
	}
	if slices.Equal(steps, f.steps) && e.cfg.now().Sub(f.at) < freeAgain {
		return nil
	}
	f.steps, f.at = steps, e.cfg.now()
	return e.free(ctx, steps)
}

// free removes what is to be removed of these steps, oldest first.
func (e *Engine) free(ctx context.Context, steps []local) error {
	v, err := e.store.View(ctx)
	if err != nil {
		return storeError(err)
	}
	head, _ := v.Head()
	for _, l := range steps {
		if ctx.Err() != nil || e.enough() {
			return nil
		}
		why := "it is the head: what a restore would take"
		if l.id != head {
			why = unreliable(v, l.id)
		}
		if why == "" {
			why = e.named(l.step)
		}
		if why == "" {
			why, err = e.remove(l)
		}
		if why != "" {
			e.notice(l.step.Name, "stays on this disk: "+why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// spare are the committed steps beyond those that stay, the oldest first; none
// while something under the root is changing.
func (e *Engine) spare() []local {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []local
	if e.only != "" || !e.sawRoot {
		return nil
	}
	now := e.cfg.now()
	for _, l := range e.lives {
		if now.Sub(l.since) < localQuiet {
			return nil
		}
		if l.stage == Committed && l.hold == nil && l.done != "" && l.done == l.print && !e.cumulative(l.step.Layout) {
			out = append(out, local{l.step, l.id, l.done})
		}
	}
	slices.SortFunc(out, func(a, b local) int {
		return cmp.Or(cmp.Compare(a.step.Number, b.step.Number), cmp.Compare(a.step.Name, b.step.Name))
	})
	return out[:max(0, len(out)-max(1, e.cfg.Local.KeepLast))]
}

// enough reports whether nothing has to be removed because enough is free.
func (e *Engine) enough() bool {
	want := e.cfg.Local.MinFree
	if want == (Free{}) {
		return false
	}
	free, all, err := e.cfg.space(e.cfg.Root)
	if err != nil {
		e.notice("local retention", "free space cannot be told, and nothing is removed: "+plain(err))
		return true
	}
	return free >= want.Bytes && float64(free) >= want.Percent/100*float64(all)
}

// unreliable says why a commit is not to be relied on, as the store is now; empty:
// it may be.
func unreliable(v *commit.View, id commit.ID) string {
	there := slices.ContainsFunc(v.Commits, func(c commit.Commit) bool { return c.ID == id })
	switch {
	case !there:
		return "its commit is not in the store any more"
	case v.Marks[id][commit.Damaged]:
		return "its commit is marked damaged, and this copy may repair it"
	}
	return ""
}

// namedSize bounds a file that names a step.
const namedSize = 64 << 10

// named says what leads to a step from outside of it; empty: nothing does.
func (e *Engine) named(s layout.Step) string {
	v, err := e.layouts[s.Layout].Judge(e.fsys(), s)
	if err != nil || len(v.Reasons) > 0 {
		return "it is not whole any more"
	}
	for _, p := range v.Pointers {
		if p.Link {
			continue // linked finds it
		}
		if text := e.small(p.Path); text != nil && bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace([]byte(p.Content))) {
			return p.Path + " names it"
		}
	}
	for _, c := range v.Copies {
		if text := e.small(c.Path); text != nil && bytes.Equal(text, e.small(c.Of)) {
			return c.Path + " is a copy of a file of it"
		}
	}
	if why := e.linked(s); why != "" {
		return why
	}
	return e.wanted(s)
}

// small reads a small file under the root; nil if there is none.
func (e *Engine) small(name string) []byte {
	f, err := os.Open(filepath.Join(e.cfg.Root, filepath.FromSlash(name)))
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, namedSize))
	if err != nil {
		return nil
	}
	return data
}

// linked says which link leads into a step: of those beside it, at the top of
// the root, and in other steps.
func (e *Engine) linked(s layout.Step) string {
	var links []string
	for _, dir := range slices.Compact([]string{".", path.Dir(s.Name)}) {
		entries, err := os.ReadDir(filepath.Join(e.cfg.Root, filepath.FromSlash(dir)))
		if err != nil {
			return "what lies beside it cannot be listed: " + plain(err)
		}
		for _, d := range entries {
			if d.Type()&fs.ModeSymlink != 0 {
				links = append(links, path.Join(dir, d.Name()))
			}
		}
	}
	e.mu.Lock()
	for _, l := range e.lives {
		if l.tree == nil || l.step.Name == s.Name {
			continue
		}
		for _, t := range l.tree.Entries {
			if t.Type == commit.TypeLink {
				links = append(links, t.Path)
			}
		}
	}
	e.mu.Unlock()
	real := resolve(filepath.Join(e.cfg.Root, filepath.FromSlash(s.Name)))
	for _, link := range links {
		if within(real, resolve(filepath.Join(e.cfg.Root, filepath.FromSlash(link)))) {
			return "the link " + link + " leads to it"
		}
	}
	return ""
}

// wanted says which other step names a step in what its layout has found in it,
// as the best model so far.
func (e *Engine) wanted(s layout.Step) string {
	e.mu.Lock()
	var others []layout.Step
	for _, l := range e.lives {
		if l.step.Number > s.Number {
			others = append(others, l.step)
		}
	}
	e.mu.Unlock()
	for _, o := range others {
		v, err := e.layouts[o.Layout].Judge(e.fsys(), o)
		if err != nil {
			continue // it is going, or coming
		}
		for key, value := range v.Metadata {
			if text, ok := value.(string); ok && path.Base(strings.TrimRight(filepath.ToSlash(text), "/")) == path.Base(s.Name) {
				return fmt.Sprintf("%s names it as its %s", o.Name, key)
			}
		}
	}
	return ""
}

// asCommitted captures a step, if it is what was committed.
func (e *Engine) asCommitted(l local) (*tree.Tree, string) {
	t, err := e.cfg.capture(e.cfg.Root, l.step.Name, nil)
	switch {
	case err != nil:
		return nil, "it cannot be looked at: " + plain(err)
	case t.Fingerprint() != l.done:
		return nil, "it is not, or not only, what was committed"
	case t.Entries[0].Type == commit.TypeLink:
		return nil, "it is a link"
	}
	return t, ""
}
