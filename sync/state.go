package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

// The parts of a state directory.
const (
	lockName    = "lock"
	attemptName = "attempt.json"
	holdsName   = "holds"
)

const formatState = "ckptsync/state/v1"

// state is attempt.json: the attempt that this host's steps belong to. It is
// written durably, because losing it costs the attempt its declared rank.
type state struct {
	Format   string     `json:"format"`
	Run      string     `json:"run"`
	Store    string     `json:"store"`
	Attempt  int        `json:"attempt"`
	Token    string     `json:"token"` // of the attempt object; tells ours from another's
	Declared bool       `json:"declared"`
	Base     *commit.ID `json:"base,omitempty"`
	Node     int        `json:"node"`
	Claim    int        `json:"claim"`
	Nodes    int        `json:"nodes,omitempty"` // absent: one node, which makes no claim
	Join     string     `json:"join,omitempty"`  // several nodes only
	// Born are the steps that were on the disk when the attempt was declared,
	// by name, with their fingerprints: they are no steps of it (R7).
	Born map[string]string `json:"born,omitempty"`
}

// nodes is how many nodes the attempt has.
func (st *state) nodes() int { return max(st.Nodes, 1) }

// loadState reads the state. A missing one is nil. One that cannot be read is
// moved aside, and aside says where.
func loadState(dir string) (st *state, aside string, err error) {
	path := filepath.Join(dir, attemptName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read state: %w", err)
	}
	st = &state{}
	if err := json.Unmarshal(data, st); err == nil && st.Attempt > 0 && st.Run != "" && strings.HasPrefix(st.Format, "ckptsync/state/") {
		if st.Format != formatState {
			return nil, "", fmt.Errorf("%s is of format %s, written by a newer ckptsync: use that, or move the file away", path, st.Format)
		}
		return st, "", nil
	}
	aside, err = moveAside(path)
	return nil, aside, err
}

// peekState is loadState for whoever only looks: nothing is moved.
func peekState(dir string) (*state, error) {
	data, err := os.ReadFile(filepath.Join(dir, attemptName))
	if err != nil {
		return nil, err
	}
	st := &state{}
	if err := json.Unmarshal(data, st); err != nil || st.Format != formatState {
		return nil, errors.Join(err, errors.New("not a state of this version"))
	}
	return st, nil
}

// moveAside renames a file that is no good to a name that nothing reads.
func moveAside(path string) (string, error) {
	for i := 0; ; i++ {
		aside := path + ".corrupt-" + strconv.Itoa(i)
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		if err := os.Rename(path, aside); err != nil {
			return "", fmt.Errorf("move corrupt state aside: %w", err)
		}
		return aside, nil
	}
}

func (st *state) save(dir string) error {
	st.Format = formatState
	data, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return durable.WriteFile(filepath.Join(dir, attemptName), append(data, '\n'), 0o600)
}

// stateDirError says why there is no state directory, and what to do about it.
func stateDirError(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("state directory: %w: name one that this user can write to with --state-dir, on the root's file system", err)
	}
	return fmt.Errorf("state directory: %w", err)
}

// lock takes the state directory for this process, creating it if need be. It
// keeps a second daemon off the same root.
func lock(dir string) (*flock.Flock, error) {
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, stateDirError(err)
	}
	l := flock.New(filepath.Join(dir, lockName))
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if !ok {
		holder, _ := os.ReadFile(l.Path()) // for people only
		return nil, &BusyError{StateDir: dir, Holder: strings.TrimSpace(string(holder))}
	}
	who := fmt.Sprintf("pid %d, %s\n", os.Getpid(), filepath.Base(os.Args[0]))
	if err := os.WriteFile(l.Path(), []byte(who), 0o600); err != nil {
		l.Unlock()
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	return l, nil
}
