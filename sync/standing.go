package syncer

import (
	"os"
	"path/filepath"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// Standing is what a state directory says to whoever only looks: it takes no lock
// and changes nothing.
type Standing struct {
	Attempt int        // the present attempt of this host; 0: none yet
	Base    *commit.ID // that it began from, if any
	dir     string
	born    map[string]string
}

// ReadStanding reads a state directory. One that is not there, or not readable, is
// one that says nothing.
func ReadStanding(stateDir string) Standing {
	l := Standing{dir: stateDir}
	if st, err := peekState(stateDir); err == nil && st != nil {
		l.Attempt, l.Base, l.born = st.Attempt, st.Base, st.Born
	}
	return l
}

// Born reports whether the step of that name under the root was there before the
// attempt began, and is what it was then.
func (l Standing) Born(root, step string) bool {
	print, ok := l.born[step]
	if !ok || print == anyPrint {
		return ok
	}
	t, err := tree.Capture(root, step, nil)
	return err == nil && t.Fingerprint() == print
}

// Held reports whether a step of that name is held for its upload.
func (l Standing) Held(step string) bool {
	found, err := filepath.Glob(filepath.Join(l.dir, holdsName, "*"))
	if err != nil {
		return false
	}
	for _, h := range found {
		if _, err := os.Lstat(filepath.Join(h, filepath.FromSlash(step))); err == nil {
			return true
		}
	}
	return false
}
