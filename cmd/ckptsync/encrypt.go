package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
)

// owners reads the identities that encrypted runs are opened with; nil if none are
// set.
func owners(cfg *config.Config) (*commit.Owners, error) {
	if !cfg.Encrypts() {
		return nil, nil
	}
	text, err := readKey(cfg.AgeIdentity)
	if err != nil {
		return nil, &usageError{fmt.Errorf("identity: %w", err)}
	}
	ids, recipients, err := commit.ParseIdentities(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w; 'ckptsync keygen --encryption' makes one, and so does age-keygen", cfg.AgeIdentity, err)}
	}
	o := &commit.Owners{Identities: ids, Recipients: cfg.AgeRecipients}
	if len(o.Recipients) == 0 {
		o.Recipients = recipients
	}
	return o, nil
}

// keyName is a file in a state directory that says which key its run has.
const keyName = "encryption.json"

// rememberedKey is that file. Who can write to the store could put another run,
// with a key of its own, in the place of one; a node that knows the key notices.
type rememberedKey struct {
	Run   string `json:"run"`
	Store string `json:"store"`
	Key   string `json:"key"`
}

// memoryOfKeys remembers, in their state directories, which keys runs have.
type memoryOfKeys struct {
	store string
	mu    sync.Mutex
	dirs  map[string]string // state directories by run
}

func (m *memoryOfKeys) add(r config.Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirs[r.Name] = r.StateDir
}

// learnt is a commit.Keyring's Learnt.
func (m *memoryOfKeys) learnt(run, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := m.dirs[run]
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, keyName)
	var was rememberedKey
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	known := err == nil && json.Unmarshal(text, &was) == nil && was.Run == run && was.Store == m.store
	switch {
	case known && was.Key == key:
		return nil
	case known:
		return fmt.Errorf("run %s had key %s when this node saw it last, and has %s now: somebody put another run in its place; if you did, remove %s",
			run, was.Key, cmp.Or(key, "none"), path)
	case key == "":
		return nil
	}
	text, err = json.MarshalIndent(rememberedKey{run, m.store, key}, "", "  ")
	if err == nil {
		err = durable.WriteFile(path, append(text, '\n'), 0o600)
	}
	if errors.Is(err, fs.ErrNotExist) { // no engine has this directory
		return nil
	}
	return err
}

// rekeyJSON is what `rekey --json` prints.
type rekeyJSON struct {
	Run        string   `json:"run"`
	Key        string   `json:"key"`
	Recipients []string `json:"recipients"`
}

func (a *app) rekeyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rekey",
		Short: "Change who can open an encrypted run",
		Long: `Encrypt the key of a run for the recipients of the configuration
(--age-recipient), or for the identities' own, instead of for those it was encrypted
for. One of them has to belong to an identity that is given. The data stays as it
is, and so does the key: who has opened the run before may have kept it, and only a
new run, with 'restore --from', keeps new steps from them.

Cut off at any moment it leaves a run that can be opened; do it again then.`,
		GroupID: "other",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		if !st.cfg.Encrypts() {
			return &usageError{errors.New("no identity is set; give it with --age-identity, $CKPTSYNC_AGE_IDENTITY or age_identity: in the configuration")}
		}
		ok, err := st.plain.Exists(cmd.Context())
		if err != nil {
			return err
		}
		if !ok {
			return &exitError{statusNothing, fmt.Errorf("nothing has ever been committed for run %s in this store", st.Run())}
		}
		k, err := st.plain.Rekey(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return a.term.JSON(rekeyJSON{st.Run(), k.Key, k.Recipients})
		}
		a.term.Hint("key %s of run %s can be opened by", k.Key, st.Run())
		for _, r := range k.Recipients {
			if err := a.term.Line(r); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// newIdentity writes a new identity of age into a file that must not be there yet,
// and prints its recipient.
func (a *app) newIdentity(path string) error {
	text, recipient, err := commit.NewIdentity()
	if err != nil {
		return err
	}
	if err := writeNew(path, text, 0o600); err != nil {
		return err
	}
	a.term.Hint("identity in %s: keep a copy where a fire cannot reach both; without it the runs that it opens are lost", path)
	return a.term.Line(recipient)
}
