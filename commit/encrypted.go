package commit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
)

// An encrypted run is begun by an object with its wrapped key, and then run.json,
// which names the key: so whoever reads run.json finds the key. Of several writers
// that begin it at once run.json decides whose key counts; the others withdraw
// theirs, which nobody has used.

// keyring is that of the bucket, if it decrypts. s may be nil.
func (s *Store) keyring() *Keyring {
	if s == nil {
		return nil
	}
	b, ok := blob.As[*ageblob.Bucket](s.b)
	if !ok {
		return nil
	}
	k, _ := b.Keys().(*Keyring)
	return k
}

// encrypted is the error for a run that is encrypted when no identity is set.
func encrypted(key string) error {
	return blob.Errorf(blob.ErrDenied, "read", key, "%w: give an identity that opens its key (--age-identity)", ErrEncrypted)
}

func (s *Store) inTheClear() error {
	return fmt.Errorf("%w: run %s is in the clear, and encryption is on; a run is encrypted from its first object or not at all: "+
		"give the run another name and go on with 'restore --from %s', or turn encryption off for it", ErrConflict, s.run, s.run)
}

// beginEncrypted makes the run's key and creates run.json.
func (s *Store) beginEncrypted(ctx context.Context, keys *Keyring) error {
	if err := s.untouched(ctx); err != nil {
		return err
	}
	key, err := ageblob.NewKey()
	if err != nil {
		return err
	}
	w, err := keys.wrap(key, s.run)
	if err != nil {
		return err
	}
	object := keyKey(w.Key, 1)
	if _, err := save(ctx, s, object, w, maxSmall); err != nil {
		return fmt.Errorf("key of run %s: %w", s.run, err)
	}
	r, err := s.begin(ctx, &Run{Format: FormatSealed, Run: s.run, Encryption: &Encryption{SchemeAge, w.Key}})
	switch {
	case err != nil:
		return err
	case r.Encryption == nil:
		err = s.inTheClear()
	}
	if r.Encryption == nil || r.Encryption.Key != w.Key { // another was quicker
		_ = s.b.Delete(ctx, s.Key(object)) // no harm if it stays
	}
	return err
}

// untouched is an error if the run has objects, though it has no run.json: they are
// in the clear, or their key is lost with it.
func (s *Store) untouched(ctx context.Context) error {
	for o, err := range s.list(ctx, "") {
		if err != nil {
			return err
		}
		if o.Kind != KindKey && o.Kind != KindRun {
			return fmt.Errorf("%w: %s is there, and %s is not: it cannot be told whether run %s is encrypted; give the run another name", ErrConflict, o.Info.Key, keyRun, s.run)
		}
	}
	return nil
}

// KeyState is what is known of the key of a run.
type KeyState struct {
	Key        string   // its ID; empty: the run is not encrypted
	Recipients []string // whom the newest wrapped key is for, as it says itself
	Wrapped    int      // how many wrapped keys there are; 1, if no rekey was cut off
}

// KeyState says whether the run is encrypted, and for whom; blob.ErrNotExist if
// it was never begun. It needs no identity.
func (s *Store) KeyState(ctx context.Context) (KeyState, error) {
	body, err := blob.ReadAll(ctx, s.b, s.Key(keyRun), maxSmall)
	if err != nil {
		return KeyState{}, err
	}
	r, err := decodeRun(body)
	if err != nil {
		return KeyState{}, fmt.Errorf("%s: %w", s.Key(keyRun), err)
	}
	if r.Encryption == nil {
		return KeyState{}, nil
	}
	st := KeyState{Key: r.Encryption.Key}
	var newest string
	for o, err := range s.list(ctx, "keys/"+st.Key+"/") {
		if err != nil {
			return st, err
		}
		st.Wrapped++
		newest = strings.TrimPrefix(o.Info.Key, s.run+"/")
	}
	if newest == "" {
		return st, nil
	}
	w, err := load[WrappedKey](ctx, s, newest, FormatKey, maxSmall)
	if err != nil {
		return st, err
	}
	st.Recipients = w.Recipients
	return st, nil
}

// Rekey encrypts the run's key for the recipients that the bucket has, instead of
// for those it was encrypted for. The data is not touched: who knew the key knows
// it still. Cut off at any moment it leaves a key that can be opened, and is done
// again. It returns for whom the key is now.
func (s *Store) Rekey(ctx context.Context) (KeyState, error) {
	keys := s.keyring()
	if !keys.encrypts() {
		return KeyState{}, fmt.Errorf("no recipients to encrypt the key of run %s for", s.run)
	}
	r, err := s.readRun(ctx)
	if err != nil {
		return KeyState{}, err
	}
	if r.Encryption == nil {
		return KeyState{}, s.inTheClear()
	}
	key, err := keys.Key(ctx, s.Key(""))
	if err != nil {
		return KeyState{}, err
	}
	w, err := keys.wrap(key, s.run)
	if err != nil {
		return KeyState{}, err
	}
	old, err := keys.numbers(ctx, s.run, w.Key)
	if err != nil {
		return KeyState{}, err
	}
	last := 0
	if len(old) > 0 {
		last = old[len(old)-1]
	}
	if _, err := save(ctx, s, keyKey(w.Key, last+1), w, maxSmall); err != nil {
		return KeyState{}, fmt.Errorf("key of run %s: %w", s.run, err)
	}
	for _, n := range old {
		if err := s.b.Delete(ctx, s.Key(keyKey(w.Key, n))); err != nil {
			return KeyState{}, fmt.Errorf("the new key is there, and an old one cannot be removed; do it again: %w", err)
		}
	}
	return KeyState{Key: w.Key, Recipients: w.Recipients, Wrapped: 1}, nil
}

func now() Time { return At(time.Now()) }
