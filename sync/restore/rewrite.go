package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Rewrite changes paths inside restored files: what begins with the directory
// Old begins with New instead. Only the files that are known to hold paths are
// changed: TensorFlow's checkpoint, SkillOpt's runtime_state.json, and pointer
// files. Their bytes were verified before; they are then no longer those that
// were committed, so that a later restore to the same place finds them changed
// and brings the step anew.
type Rewrite struct{ Old, New string }

// Validate says what is wrong with it, or nothing.
func (w *Rewrite) Validate() error {
	for _, p := range []string{w.Old, w.New} {
		switch {
		case !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/":
			return fmt.Errorf("%q is no clean absolute directory below /", p)
		case strings.ContainsAny(p, "\"'\\\n\r\t\x00"):
			return fmt.Errorf("%q holds a character that would have to be escaped in a file", p)
		}
	}
	return nil
}

// Rewritten is one file in which paths were changed.
type Rewritten struct {
	File  string // below the root
	Paths int    // how many
}

// apply returns text with its paths changed, and how many were.
func (w *Rewrite) apply(text string) (string, int) {
	if strings.Contains(text, "\x00") {
		return text, 0 // no text
	}
	var b strings.Builder
	n, done := 0, 0 // bytes of text that are written
	for {
		i := strings.Index(text[done:], w.Old)
		if i < 0 {
			b.WriteString(text[done:])
			return b.String(), n
		}
		begin := done + i
		end := begin + len(w.Old)
		b.WriteString(text[done:begin])
		begins := begin == 0 || strings.IndexByte(" \t\r\n\"'=:", text[begin-1]) >= 0
		ends := end == len(text) || strings.IndexByte("/ \t\r\n\"',", text[end]) >= 0
		if begins && ends {
			b.WriteString(w.New)
			n++
		} else {
			b.WriteString(w.Old)
		}
		done = end
	}
}

// stateFile reports whether a file says, by its layout and its name, which
// checkpoint its framework is to load: such files hold paths.
func stateFile(layout string, f *Entry) bool {
	return path.Base(f.Path) == "checkpoint" || layout == "skillopt" && f.Rel == "runtime_state.json"
}

// small reports whether a planned file is one that is looked at for paths.
func (r *runner) small(f *PlannedFile) bool {
	return stateFile(r.res.Layout, &f.Entry) && f.Size <= maxStateFile
}

// wouldRewrite reports whether a file of the step that is here already holds
// paths that have to be changed.
func (r *runner) wouldRewrite() bool {
	for i := range r.plan.Files {
		f := &r.plan.Files[i]
		if !r.small(f) {
			continue
		}
		if text, err := readSmall(r.area.root, path.Join(r.plan.Place, f.Rel)); err == nil {
			if _, n := r.o.Rewrite.apply(text); n > 0 {
				return true
			}
		}
	}
	return false
}

// rewrite changes the paths in the files of the staged step, which are whole
// and verified by now.
func (r *runner) rewrite() error {
	if r.o.Rewrite == nil {
		return nil
	}
	for i := range r.plan.Files {
		f := &r.plan.Files[i]
		if !r.small(f) {
			continue
		}
		n, err := r.rewriteFile(f)
		if err != nil {
			return fmt.Errorf("change the paths in %q: %w", f.Path, err)
		}
		r.rewrote(f.Path, n)
	}
	return nil
}

func (r *runner) rewrote(file string, n int) {
	if n > 0 {
		r.res.Rewritten = append(r.res.Rewritten, Rewritten{File: file, Paths: n})
	}
}

func (r *runner) rewriteFile(f *PlannedFile) (int, error) {
	name := staged(f.Rel)
	text, err := readSmall(r.sess.dir, name)
	if err != nil {
		return 0, err
	}
	changed, n := r.o.Rewrite.apply(text)
	if n == 0 {
		return 0, nil
	}
	r.o.at("rewrite")
	if err := r.sess.dir.Chmod(name, fs.FileMode(f.Mode&0o777)|0o200); err != nil {
		return 0, err
	}
	out, err := r.sess.dir.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return 0, err
	}
	_, err = out.WriteString(changed)
	s := r.stager()
	err = errors.Join(err, s.setMeta(out, &f.Entry, f.Mode), out.Sync(), out.Close())
	if err != nil {
		return 0, err
	}
	return n, setTime(r.sess.dir, name, f.MTime)
}
