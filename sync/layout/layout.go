// Package layout knows how each training framework lays a step out on disk,
// what proves a step complete, and what exact resume needs.
//
// A [Layout] sees an fs.FS whose root is the watched root, so the same
// judgement runs on a local directory, on a hold, and on the union of several
// nodes' manifests in the bucket. It opens files for their headers and
// trailers only (package format), and never executes anything it reads.
package layout

import (
	"io/fs"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Step is a directory or file that by its name is a saved state of the run.
type Step struct {
	Name   string // path below the root, slash-separated, as spelled on disk
	Number int64  // training step number, >= 0
	Dir    bool   // a directory; else a single file
	Layout string // name of the layout that claims it
}

// Layout is one framework's way of saving.
type Layout interface {
	// Name is what --layout and `ckptsync layouts` call it.
	Name() string
	// Spec describes it as the YAML that a user would write.
	Spec() Spec
	// Match says whether the entry of that path below the root is a step, by
	// its name alone. Paths have at most Depth components.
	Match(name string, dir bool) (Step, bool)
	// Depth is how many path components below the root its step names have at
	// most, at least 1.
	Depth() int
	// Judge looks at one step. It returns an error only if the step could not
	// be looked at (permission, vanished, I/O), never for an incomplete one;
	// a file that cannot be read is a reason, not an error. It may use fsys from
	// several goroutines.
	Judge(fsys fs.FS, s Step) (Verdict, error)
}

// Strength grades what proves a step complete; it decides how long the step
// must have been quiet, counted from when its present files were first seen.
type Strength int

// The grades.
const (
	Weak   Strength = iota // presence and naming only
	Strong                 // written last by one process, without a barrier
	Proof                  // written after a barrier that follows all data, or a newer step exists
)

// Verdict is the judgement of one step at one moment.
type Verdict struct {
	Step Step

	// Reasons say exactly why the step is not complete: which file, what is
	// wrong with it. Sorted; none means that the files are all there and whole.
	Reasons []string
	// Absent are those of Reasons that only say that something is not there.
	// On one node of several they may be the other nodes' files: what such a
	// node may seal has no other reasons, and the union of all parts has none.
	Absent []string
	// Voided names the files that are newer than the evidence that vouches for
	// them (protocol R3). Such a step is complete only if a newer step appeared
	// after the last of those changes; [Verdict.Settle] does not help.
	Voided []string

	Evidence []string      // files that prove it, relative to the step ("." for a single file)
	Counted  bool          // the layout has no file that proves a step: what is there, and for how long, is all
	Late     []string      // files that the framework writes after the evidence; not vouched for
	Skip     []string      // entries that are no part of the step (temporary files), relative to the step; a directory stands for all in it
	Strength Strength      // of the evidence, without the successor's
	Settle   time.Duration // how long it must have been quiet at this strength

	Resume   commit.Resume
	Missing  []string // what exact resume lacks, if Resume is not exact
	Warnings []string // worth a line to a person; none stops a commit
	Pointers []commit.Pointer
	Copies   []commit.Copy  // files beside the step that are copies of files of it
	Metadata map[string]any // found in the step: epoch, loss, …; JSON values

	Files  int       // regular files that belong to the step
	Bytes  int64     // their sizes
	Oldest time.Time // earliest mtime among its files
	Newest time.Time // latest mtime among its files
}

// Complete reports whether the step may be committed once it has settled,
// given the newest step after it, if there is one.
func (v *Verdict) Complete(successor *Verdict) bool {
	if len(v.Reasons) > 0 {
		return false
	}
	return len(v.Voided) == 0 || v.Succeeded(successor)
}

// Succeeded reports whether successor is evidence for this step: a newer step
// whose files all appeared after this one's last change. In a synchronous
// trainer the save call of this step has then returned on every rank.
func (v *Verdict) Succeeded(successor *Verdict) bool {
	return successor != nil && successor.Files > 0 &&
		successor.Step.Number > v.Step.Number && successor.Oldest.After(v.Newest)
}

// Ignored is an entry of the root that looks like a step and is none.
type Ignored struct {
	Path   string
	Reason string
}

// Pointer file of a Spec; Content may hold {name} and {step}.
// Link makes it a symbolic link, with Content as its target.
type Pointer struct {
	Path    string `yaml:"path" json:"path"`
	Content string `yaml:"content" json:"content"`
	Link    bool   `yaml:"link,omitempty" json:"link,omitempty"`
}

// Spec is a layout as data: what a user writes under `layouts:` in the
// configuration, and what `ckptsync layouts` prints. Paths and globs are
// relative to the step; globs are those of path.Match, "**/" stands for any
// number of directories.
type Spec struct {
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	// Step is the pattern of a step's path below the root: literal text, globs
	// within a component, and {step} for the digits of its number, all of the
	// digits that stand there. Without {step} the number is 0 and each new save
	// is a revision.
	Step string `yaml:"step" json:"step"`
	// Kind is "dir" (default), "file" or "any"; of a step that is a file only
	// the format of that file is judged.
	Kind string `yaml:"kind,omitempty" json:"kind,omitempty"`
	// Required files must exist, be non-empty unless Empty matches them, and
	// pass the format check of their extension. A glob must match at least one.
	Required []string `yaml:"required,omitempty" json:"required,omitempty"`
	// AnyOf are groups: of each group at least one member must be there.
	AnyOf [][]string `yaml:"any_of,omitempty" json:"any_of,omitempty"`
	// Marker is a file written last; it is the evidence. Without one the
	// evidence is that the required files are there and quiet (weak).
	Marker string `yaml:"marker,omitempty" json:"marker,omitempty"`
	// Forbidden entries mean that a save is under way. They are relative to
	// the step, or to the root when they begin with "/"; {name} stands for the
	// step's path, {stem} for that without its extension, {step} for the digits
	// as spelled ("/{stem}-unfinished").
	Forbidden []string `yaml:"forbidden,omitempty" json:"forbidden,omitempty"`
	// Empty files are allowed to have no bytes. *.py, *.lock and the marker
	// always are.
	Empty []string `yaml:"empty,omitempty" json:"empty,omitempty"`
	// Late files are written after the marker and may be newer than it.
	Late []string `yaml:"late,omitempty" json:"late,omitempty"`
	// Ignore entries are no part of the step.
	Ignore []string `yaml:"ignore,omitempty" json:"ignore,omitempty"`
	// Exact files make a step resume exactly when all are there; if some are
	// missing it is weights-only. None: unknown.
	Exact []string `yaml:"exact,omitempty" json:"exact,omitempty"`
	// Shared files are the same on every node that saves a part of the step: where
	// they differ the step is not committed. Globs.
	Shared []string `yaml:"shared,omitempty" json:"shared,omitempty"`
	// Settle is how long a step must have been quiet; 0 means DefaultSettle
	// with a marker, DefaultWeakSettle without.
	Settle time.Duration `yaml:"settle,omitempty" json:"settle,omitempty"`
	// Pointers are files that name the newest step, written on restore.
	Pointers []Pointer `yaml:"pointers,omitempty" json:"pointers,omitempty"`
	// Cumulative says that each save adds to the same directory or file: the
	// step's number is found in it, and a commit is the run as of that number.
	Cumulative bool `yaml:"cumulative,omitempty" json:"cumulative,omitempty"`
	// Code says, in `ckptsync layouts`, what is judged beyond this data.
	Code string `yaml:"code,omitempty" json:"code,omitempty"`
}
