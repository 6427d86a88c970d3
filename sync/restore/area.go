package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob/durable"
)

// The entries that a restore may make under a root: the first two where the
// state directory is on another file system, the third for selections of files.
// Nothing takes them for steps: they begin with a dot, hold no digits, and
// layouts pass over them.
const (
	StagingName    = ".ckptsync-staging"
	QuarantineName = ".ckptsync-quarantine"
	PartialName    = ".ckptsync-partial"
)

// The same two in the state directory.
const (
	stateStaging    = "staging"
	StateQuarantine = "quarantine"
)

// Reserved reports whether name, one component of a path, is an entry of ours
// under a root: whoever scans a root passes over it.
func Reserved(name string) bool {
	return name == StagingName || name == QuarantineName || name == PartialName
}

// Moved is an entry that was moved to the quarantine.
type Moved struct {
	Name string // its path below the root
	To   string // where it is now, absolute
}

// area is a root together with the place that a rename can lead from and to:
// the state directory or, failing that, the root itself.
type area struct {
	root       *os.Root
	home       *os.Root
	staging    string // below home
	quarantine string // below home
	noExchange bool
	madeRoot   bool
}

// openArea opens, and if need be creates, the root and the state directory,
// and chooses where to work so that a rename to the entry called name is
// possible.
func openArea(rootDir, stateDir, name string, hooks *testHooks) (*area, error) {
	root, made, err := durable.MakeRoot(rootDir)
	if err != nil {
		return nil, fmt.Errorf("open the root: %w", err)
	}
	a := &area{root: root, staging: StagingName, quarantine: QuarantineName, noExchange: hooks.noExchange, madeRoot: made}
	state, _, err := durable.MakeRoot(stateDir)
	if err != nil {
		a.close()
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	place := existing(rootDir, parentOf(name))
	same, err := sameMount(stateDir, place)
	if err == nil && same && !hooks.otherFS {
		a.home, a.staging, a.quarantine = state, stateStaging, StateQuarantine
		return a, nil
	}
	state.Close()
	if err == nil {
		if same, err = sameMount(rootDir, place); err == nil && !same {
			err = fmt.Errorf("%s is on another file system than its root %s, so that nothing can be renamed into it: make the mount point the root (--root)", place, rootDir)
		}
	}
	if err != nil {
		a.close()
		return nil, err
	}
	a.home = root
	return a, nil
}

// existing is the deepest directory on the way from root to rel that is there.
func existing(root, rel string) string {
	dir := root
	for _, c := range components(rel) {
		next := filepath.Join(dir, c)
		if fi, err := os.Stat(next); err != nil || !fi.IsDir() {
			break
		}
		dir = next
	}
	return dir
}

func (a *area) close() {
	if a.home != nil && a.home != a.root {
		a.home.Close()
	}
	a.root.Close()
}

// path is where a name below home is on this machine.
func (a *area) path(name string) string { return filepath.Join(a.home.Name(), name) }

// move takes the entry called name below from to the quarantine, durably,
// under a name that was free: as is its path below the root, with slashes
// replaced. It is a rename: nothing is copied and nothing is lost.
func (a *area) move(from *os.Root, name, as string) (Moved, error) {
	if _, err := durable.MkdirIn(a.home, a.quarantine); err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", as, err)
	}
	src, err := durable.OpenDirIn(from, dirOf(name))
	if err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", as, err)
	}
	defer src.Close()
	dst, err := durable.OpenDirIn(a.home, a.quarantine)
	if err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", as, err)
	}
	defer dst.Close()
	to, err := renameToFree(src, path.Base(name), dst, flatten(as))
	if errors.Is(err, fs.ErrPermission) {
		to, err = a.moveClosed(from, name, src, dst, flatten(as))
	}
	if err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", as, err)
	}
	if err := errors.Join(durable.SyncOpenDir(dst), durable.SyncOpenDir(src)); err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", as, err)
	}
	return Moved{Name: as, To: filepath.Join(a.home.Name(), a.quarantine, to)}, nil
}

// moveClosed moves a directory that its owner may not write to: a rename to
// another parent changes its "..", which takes that right.
func (a *area) moveClosed(from *os.Root, name string, src, dst *os.File, as string) (string, error) {
	fi, err := from.Lstat(name)
	if err != nil || !fi.IsDir() {
		return "", errors.Join(err, fmt.Errorf("no right to move %s out of %s", name, from.Name()))
	}
	if err := from.Chmod(name, fi.Mode()|0o700); err != nil {
		return "", err
	}
	to, err := renameToFree(src, path.Base(name), dst, as)
	if err != nil {
		return "", errors.Join(err, from.Chmod(name, fi.Mode()))
	}
	return to, a.home.Chmod(path.Join(a.quarantine, to), fi.Mode())
}

// renameToFree renames an entry to the first of as.1, as.2 … that is free.
func renameToFree(src *os.File, name string, dst *os.File, as string) (string, error) {
	for n := 1; ; n++ {
		suffix := "." + strconv.Itoa(n)
		to := as[:min(len(as), maxName-len(suffix))] + suffix
		ok, err := renameNew(src, name, dst, to)
		if !ok {
			if err = unix.Faccessat(int(dst.Fd()), to, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
				err = rename(src, name, dst, to)
			} else if err == nil {
				continue
			}
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return to, err
	}
}

// rename is renameat(2).
func rename(src *os.File, name string, dst *os.File, to string) error {
	err := retryEINTR(func() error { return unix.Renameat(int(src.Fd()), name, int(dst.Fd()), to) })
	if err != nil {
		return &os.LinkError{Op: "rename", Old: name, New: to, Err: err}
	}
	return nil
}

// flatten makes one component of a step's path.
func flatten(name string) string { return strings.ReplaceAll(name, "/", "~") }

// dirOf is the directory of a clean relative path; "." at the top.
func dirOf(name string) string { return path.Dir(name) }

// Quarantine moves the named entries (paths below root) out of a root and into
// the quarantine, each under a name that was free, durably, by rename: nothing
// is copied or deleted. Entries that are not there are passed over. It is for
// torn local steps that are newer than the restored one. Where the state
// directory is on another file system they go to [QuarantineName] under the
// root; package documentation says why.
func Quarantine(root, stateDir string, steps ...string) ([]Moved, error) {
	o := Options{To: root, StateDir: stateDir}
	if err := o.complete(); err != nil {
		return nil, err
	}
	var moved []Moved
	for _, name := range steps {
		if err := checkName(name); err != nil {
			return moved, fmt.Errorf("quarantine: %w", err)
		}
		m, err := quarantineOne(&o, name)
		if err != nil {
			return moved, err
		}
		if m.To != "" {
			moved = append(moved, m)
		}
	}
	return moved, nil
}

func quarantineOne(o *Options, name string) (Moved, error) {
	if _, err := os.Lstat(filepath.Join(o.To, name)); errors.Is(err, fs.ErrNotExist) {
		return Moved{}, nil
	}
	a, err := openArea(o.To, o.StateDir, name, o.test)
	if err != nil {
		return Moved{}, fmt.Errorf("quarantine %q: %w", name, err)
	}
	defer a.close()
	return a.move(a.root, name, name)
}

// CleanLeftovers removes what restores that failed or were killed left in the
// state directory and under the root. Nothing that ckptsync did not write is
// removed: if one was killed just as it had exchanged an old entry for the
// restored one, the old entry goes to the quarantine. A daemon does this when
// it starts, since training goes on without that restore. The caller holds the
// lock.
func CleanLeftovers(root, stateDir string) error {
	return cleanOld(root, stateDir, -1)
}

// CleanStale is CleanLeftovers for what is older than [KeepLeftovers]: the rest
// waits for the next restore, which goes on from there.
func CleanStale(root, stateDir string) error {
	return cleanOld(root, stateDir, KeepLeftovers)
}

func cleanOld(root, stateDir string, age time.Duration) error {
	if stateDir == "" {
		stateDir = DefaultStateDir(root)
	}
	old := func(_ string, fi fs.FileInfo) bool { return age < 0 || time.Since(fi.ModTime()) > age }
	return errors.Join(
		cleanHome(stateDir, stateStaging, StateQuarantine, old),
		cleanHome(root, StagingName, QuarantineName, old))
}

// cleanHome removes the sessions for which which returns true.
func cleanHome(dir, staging, quarantine string, which func(name string, fi fs.FileInfo) bool) error {
	home, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove leftovers: %w", err)
	}
	defer home.Close()
	sessions, err := readDir(home, staging)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove leftovers: %w", err)
	}
	a := &area{root: home, home: home, staging: staging, quarantine: quarantine}
	kept := false
	for _, s := range sessions {
		name := path.Join(staging, s)
		fi, err := home.Lstat(name)
		if err == nil && !which(s, fi) {
			kept = true
			continue
		}
		if err == nil {
			err = a.cleanSession(name)
		}
		if err != nil {
			return fmt.Errorf("remove leftovers in %s: %w", a.path(name), err)
		}
	}
	if kept {
		return nil
	}
	if err := home.Remove(staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftovers: %w", err)
	}
	return durable.SyncIn(home, ".")
}

// cleanSession removes one session, once it has saved what is not ours in it.
func (a *area) cleanSession(session string) error {
	if _, err := a.saveExchanged(session); err != nil {
		return err
	}
	return durable.RemoveAllIn(a.home, session)
}

// cleanElsewhere removes what restores left in the staging directory that is
// not the one used now.
func (a *area) cleanElsewhere(root, stateDir string) error {
	all := func(string, fs.FileInfo) bool { return true }
	if a.home == a.root {
		return cleanHome(stateDir, stateStaging, StateQuarantine, all)
	}
	return cleanHome(root, StagingName, QuarantineName, all)
}

// cleanHere removes all that is in the staging directory used now.
func (a *area) cleanHere() error {
	all := func(string, fs.FileInfo) bool { return true }
	return cleanHome(a.home.Name(), a.staging, a.quarantine, all)
}
