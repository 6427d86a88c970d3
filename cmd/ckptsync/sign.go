package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// passwordVariable holds the password of an encrypted signing key. It is no
// setting: secrets stand in no configuration.
const passwordVariable = "CKPTSYNC_SIGN_PASSWORD"

// maxKeyFile bounds a key file, in bytes.
const maxKeyFile = 64 << 10

// signer reads the configured signing key; nil if there is none.
func (a *app) signer(cfg *config.Config) (*commit.Signer, error) {
	if cfg.SignKey == "" {
		return nil, nil
	}
	text, err := readKey(cfg.SignKey)
	if err != nil {
		return nil, &usageError{fmt.Errorf("signing key: %w", err)}
	}
	s, err := commit.ParseSigner(text, a.getenv(passwordVariable))
	switch {
	case errors.Is(err, commit.ErrEncryptedKey):
		return nil, &usageError{fmt.Errorf("%s: %w: it is read from $%s", cfg.SignKey, err, passwordVariable)}
	case err != nil:
		return nil, &usageError{fmt.Errorf("%s: %w: 'ckptsync keygen' makes one, and so does 'minisign -G'", cfg.SignKey, err)}
	}
	return s, nil
}

// trusted reads the keys that restores trust; none: signatures do not count.
func trusted(cfg *config.Config) ([]commit.PublicKey, error) {
	var out []commit.PublicKey
	for _, v := range cfg.VerifyKeys {
		if v.Key != nil {
			out = append(out, *v.Key)
			continue
		}
		text, err := readKey(v.File)
		if err != nil {
			return nil, &usageError{fmt.Errorf("key to verify with: %w", err)}
		}
		k, err := commit.ParsePublicKey(string(text))
		if err != nil {
			return nil, &usageError{fmt.Errorf("%s: %w", v.File, err)}
		}
		out = append(out, k)
	}
	return out, nil
}

func readKey(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s: %d bytes are no key", path, info.Size())
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// keyring is the store of a run as the configuration wants it: signing, and
// trusting certain keys. plain takes every marker.
func (a *app) keyring(cfg *config.Config) (sign commit.StoreOption, trust []commit.PublicKey, err error) {
	s, err := a.signer(cfg)
	if err != nil {
		return nil, nil, err
	}
	trust, err = trusted(cfg)
	return commit.SignWith(s), trust, err
}

func (a *app) keygenCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a key to sign commits with, or to encrypt runs with",
		Long: `Make a minisign key: the secret one in FILE, for --sign-key, and the public one in
FILE.pub, for --verify-key. The secret key has no password, so keep it where only
who commits can read it; 'minisign -C' gives it one, which is then read from
$` + passwordVariable + `.

With --encryption make an identity of age in FILE instead, for --age-identity, and
print its recipient, for --age-recipient.`,
		GroupID: "other",
		Args:    cobra.ExactArgs(1),
	}
	encryption := cmd.Flags().Bool("encryption", false, "make an identity of age, to encrypt runs with")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		path := args[0]
		if !filepath.IsAbs(path) {
			path = filepath.Join(a.dir, path)
		}
		if *encryption {
			return a.newIdentity(path)
		}
		s, err := commit.NewSigner()
		if err != nil {
			return err
		}
		text, err := s.Marshal()
		if err != nil {
			return err
		}
		pub := s.Public()
		if err := writeNew(path, text, 0o600); err != nil {
			return err
		}
		if err := writeNew(path+".pub", fmt.Appendf(nil, "untrusted comment: minisign public key %s\n%s\n", pub.ID(), pub), 0o644); err != nil {
			return errors.Join(err, os.Remove(path))
		}
		a.term.Hint("secret key in %s, public key in %s.pub", path, path)
		return a.term.Line(pub.String())
	}
	return cmd
}

// writeNew writes a file that must not be there yet.
func writeNew(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// signedJSON is what `sign --json` prints.
type signedJSON struct {
	Run    string     `json:"run"`
	Key    string     `json:"key"`
	Signed []headJSON `json:"signed"`
}

func (a *app) signCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sign [STEP]",
		Short: "Sign a commit that was made without a signature",
		Long: `Sign a commit with --sign-key: the head, unless STEP (as for show) or --all is
given. All of its data is read and compared first, unless --unread says that its
bytes are vouched for by other means. Daemons that have a key sign what they commit
themselves; this is for what was committed before.`,
		GroupID: "look",
		Args:    cobra.MaximumNArgs(1),
	}
	asJSON := addJSON(cmd)
	var f verifyFlags
	cmd.Flags().IntVar(&f.attempt, "attempt", 0, "the commit of this `ATTEMPT`, where several committed the step")
	cmd.Flags().BoolVar(&f.all, "all", false, "every commit that a restore may take")
	unread := cmd.Flags().Bool("unread", false, "do not read the data first")
	withSettings(cmd, "sign-key", "concurrency", "memory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.all && len(args) > 0 {
			return &usageError{errors.New("--all and a step are two different things")}
		}
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		s, err := a.signer(st.cfg)
		if err != nil {
			return err
		}
		if s == nil {
			return &usageError{errors.New("no key is set; give it with --sign-key, $CKPTSYNC_SIGN_KEY or sign_key: in the configuration")}
		}
		ids, err := st.toVerify(cmd.Context(), args, &f)
		if err != nil {
			return err
		}
		out := &signedJSON{Run: st.Run(), Key: s.Public().ID(), Signed: []headJSON{}}
		for _, id := range ids {
			if !*unread {
				if err := a.whole(cmd.Context(), st, id); err != nil {
					return err
				}
			}
			if err := st.plain.Sign(cmd.Context(), id, s); err != nil {
				return err
			}
			out.Signed = append(out.Signed, headJSON{id.Step, id.Attempt, id.Revision})
			a.term.Hint("signed commit %s with key %s", id, out.Key)
		}
		if *asJSON {
			return a.term.JSON(out)
		}
		return nil
	}
	return cmd
}

// whole reads all of a commit, and is an error unless every byte is right.
func (a *app) whole(ctx context.Context, st *openedRun, id commit.ID) error {
	bars := a.term.Bars(st.log)
	defer bars.Close()
	v, err := restore.Verify(ctx, restore.VerifyOptions{
		Store: st.plain, ID: id, Concurrency: 2 * st.cfg.Concurrency, MemoryBudget: st.cfg.Content(), Logger: st.log, Progress: restoreProgress(bars),
	})
	if err == nil && len(v.Damaged) > 0 {
		err = &exitError{statusDamaged, fmt.Errorf("commit %s is not signed: %s of it damaged; 'ckptsync verify' says more", id, term.Count(len(v.Damaged), "file"))}
	}
	return err
}
