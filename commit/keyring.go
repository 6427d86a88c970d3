package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
	"filippo.io/age/armor"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
)

// Owners are those who can open the keys of encrypted runs.
type Owners struct {
	// Identities open the keys of runs that are there.
	Identities []age.Identity
	// Recipients are whom the keys of new runs are encrypted for; none: new runs
	// are not encrypted. One of them belongs to one of the Identities.
	Recipients []Recipient
}

// Recipient is one whom keys are encrypted for.
type Recipient struct {
	age.Recipient
	Text string // as age writes it; no secret
}

// NewIdentity makes an identity: text is the content of a file of one, and
// recipient whom to encrypt for.
func NewIdentity() (text []byte, recipient string, err error) {
	i, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, "", err
	}
	recipient = i.Recipient().String()
	return fmt.Appendf(nil, "# public key: %s\n%s\n", recipient, i), recipient, nil
}

// ParseIdentities reads native identities of age, one a line, as age-keygen writes
// them. Its error never repeats the text.
func ParseIdentities(text []byte) ([]age.Identity, []Recipient, error) {
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return nil, nil, errors.New("it holds no identities of age: each line is empty, a comment, or begins with AGE-SECRET-KEY-")
	}
	var rs []Recipient
	for _, id := range ids {
		switch id := id.(type) {
		case *age.X25519Identity:
			rs = append(rs, Recipient{id.Recipient(), id.Recipient().String()})
		case *age.HybridIdentity:
			rs = append(rs, Recipient{id.Recipient(), id.Recipient().String()})
		}
	}
	return ids, rs, nil
}

// ParseRecipient reads a native recipient of age.
func ParseRecipient(text string) (Recipient, error) {
	rs, err := age.ParseRecipients(strings.NewReader(text))
	if err != nil || len(rs) != 1 {
		return Recipient{}, fmt.Errorf("%.80q is no recipient of age; one begins with age1, and 'age-keygen -y' prints it", text)
	}
	return Recipient{rs[0], strings.TrimSpace(text)}, nil
}

// Keyring finds the keys of encrypted runs, for the bucket that decrypts them. Its
// methods may be called concurrently.
type Keyring struct {
	b      blob.Bucket
	owners Owners
	// Learnt, if not nil, is called when it is known how a run is stored, before
	// anything of it is read: key is the ID of its key, empty if it is not
	// encrypted. Its error is that of every call on the run. It is set before the
	// first call.
	Learnt func(run, key string) error

	mu   sync.Mutex
	runs map[string]*ring
}

var _ ageblob.Keys = (*Keyring)(nil)

// ring is what is known of one run.
type ring struct {
	turn  chan struct{} // holds whoever finds something out
	known bool
	enc   *Encryption  // nil: not encrypted
	key   *ageblob.Key // nil: not opened yet
}

// NewKeyring returns the keys of the runs in b, which is the bucket below the one
// that decrypts.
func NewKeyring(b blob.Bucket, o Owners) *Keyring {
	return &Keyring{b: b, owners: o, runs: map[string]*ring{}}
}

// Mode implements ageblob.Keys. A run is encrypted from its first object on,
// except what has to be read before its key is known.
func (k *Keyring) Mode(ctx context.Context, key string) (ageblob.Mode, error) {
	run, rest, ok := strings.Cut(key, "/")
	if !ok || CheckRun(run) != nil || plainAlways(rest) {
		return ageblob.Clear, nil
	}
	r, done, err := k.ring(ctx, run)
	if err != nil {
		return 0, err
	}
	defer done()
	switch err := k.learn(ctx, run, r); {
	case errors.Is(err, blob.ErrNotExist):
		return ageblob.Unknown, nil
	case err != nil:
		return 0, err
	case r.enc == nil:
		return ageblob.Clear, nil
	}
	return ageblob.Sealed, nil
}

// plainAlways reports whether an object of a run is in the clear even if the run is
// encrypted: it says how to read the others, or holds nothing.
func plainAlways(object string) bool {
	return object == keyRun || strings.HasPrefix(object, "keys/") || strings.HasPrefix(object, "probe/") || strings.HasPrefix(object, "probe-")
}

// ring returns what is known of a run, for this caller alone until it calls done.
func (k *Keyring) ring(ctx context.Context, run string) (r *ring, done func(), err error) {
	k.mu.Lock()
	r = k.runs[run]
	if r == nil {
		r = &ring{turn: make(chan struct{}, 1)}
		k.runs[run] = r
	}
	k.mu.Unlock()
	select {
	case r.turn <- struct{}{}:
		return r, func() { <-r.turn }, nil
	case <-ctx.Done():
		return nil, nil, blob.ContextError(ctx, "open", run+"/"+keyRun)
	}
}

// learn reads whether a run is encrypted; blob.ErrNotExist if it was never begun.
func (k *Keyring) learn(ctx context.Context, run string, r *ring) error {
	if r.known {
		return nil
	}
	key := run + "/" + keyRun
	body, err := blob.ReadAll(ctx, k.b, key, maxSmall)
	if err != nil {
		return err
	}
	o, err := decodeRun(body)
	if err != nil {
		return blob.Errorf(blob.ErrDenied, "read", key, "whether the run is encrypted cannot be told: %w", err)
	}
	if k.Learnt != nil {
		id := ""
		if o.Encryption != nil {
			id = o.Encryption.Key
		}
		if err := k.Learnt(run, id); err != nil {
			return blob.Errorf(blob.ErrDenied, "read", key, "%w: %w", ErrEncrypted, err)
		}
	}
	r.known, r.enc = true, o.Encryption
	return nil
}

// Key implements ageblob.Keys. Its errors match ErrEncrypted, if it is not the
// store that failed.
func (k *Keyring) Key(ctx context.Context, key string) (*ageblob.Key, error) {
	run, _, _ := strings.Cut(key, "/")
	r, done, err := k.ring(ctx, run)
	if err != nil {
		return nil, err
	}
	defer done()
	if r.key != nil {
		return r.key, nil
	}
	if err := k.learn(ctx, run, r); err != nil {
		return nil, err
	}
	if r.enc == nil {
		return nil, blob.Errorf(blob.ErrUnsupported, "open", key, "the run is not encrypted")
	}
	r.key, err = k.open(ctx, run, r.enc.Key)
	return r.key, err
}

// open opens the newest wrapped key that the identities can open.
func (k *Keyring) open(ctx context.Context, run, id string) (*ageblob.Key, error) {
	where := run + "/keys/" + id
	numbers, err := k.numbers(ctx, run, id)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, blob.Errorf(blob.ErrDenied, "open", where, "%w, and its key is not there any more: nobody can read it without a copy of that object", ErrEncrypted)
	}
	var bad error
	for _, n := range slices.Backward(numbers) {
		key := run + "/" + keyKey(id, n)
		body, err := blob.ReadAll(ctx, k.b, key, maxSmall)
		if errors.Is(err, blob.ErrNotExist) {
			continue // replaced since it was listed
		}
		if err != nil {
			return nil, err
		}
		found, err := k.unwrap(body, run, id)
		if err == nil {
			return found, nil
		}
		if none := (*age.NoIdentityMatchError)(nil); !errors.As(err, &none) {
			bad = fmt.Errorf("%s: %w", key, err)
		}
	}
	if bad != nil {
		return nil, blob.Errorf(blob.ErrDenied, "open", where, "%w, and its key cannot be opened: %w", ErrEncrypted, bad)
	}
	return nil, blob.Errorf(blob.ErrDenied, "open", where, "%w, and none of the identities given opens its key: give one of its owners' (--age-identity), or let an owner add yours with 'ckptsync rekey'", ErrEncrypted)
}

// numbers are those of the wrapped keys of a run, ascending.
func (k *Keyring) numbers(ctx context.Context, run, id string) ([]int, error) {
	var out []int
	for info, err := range k.b.List(ctx, run+"/keys/"+id+"/") {
		if err != nil {
			return nil, err
		}
		if o, ok := ParseKey(strings.TrimPrefix(info.Key, run+"/")); ok {
			out = append(out, o.Claim)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (k *Keyring) unwrap(body []byte, run, id string) (*ageblob.Key, error) {
	w, err := parse[WrappedKey](body, FormatKey, maxSmall)
	if err != nil {
		return nil, err
	}
	if w.Run != run || w.Key != id {
		return nil, invalid("by its content it is key %s of run %s", w.Key, w.Run)
	}
	if len(k.owners.Identities) == 0 {
		return nil, &age.NoIdentityMatchError{}
	}
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(w.Wrapped)), k.owners.Identities...)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxSmall))
	if err != nil {
		return nil, err
	}
	key, err := ageblob.ParseKey(string(text))
	if err != nil {
		return nil, err
	}
	if key.ID() != id {
		return nil, invalid("it holds key %s", key.ID())
	}
	return key, nil
}

// wrap encrypts a run's key for the recipients.
func (k *Keyring) wrap(key *ageblob.Key, run string) (*WrappedKey, error) {
	w := &WrappedKey{Format: FormatKey, Run: run, Key: key.ID(), Token: NewOpToken(), Created: now()}
	var to []age.Recipient
	for _, r := range k.owners.Recipients {
		to = append(to, r.Recipient)
		w.Recipients = append(w.Recipients, r.Text)
	}
	var text strings.Builder
	a := armor.NewWriter(&text)
	e, err := age.Encrypt(a, to...)
	if err == nil {
		_, err = io.WriteString(e, key.Secret())
	}
	if err != nil {
		return nil, fmt.Errorf("encrypt the key of run %s: %w", run, err)
	}
	if err := errors.Join(e.Close(), a.Close()); err != nil {
		return nil, fmt.Errorf("encrypt the key of run %s: %w", run, err)
	}
	w.Wrapped = text.String()
	body, err := encode(w, maxSmall)
	if err != nil {
		return nil, err
	}
	if _, err := k.unwrap(body, run, key.ID()); err != nil {
		return nil, fmt.Errorf("none of the recipients is that of an identity given here, so this node could not read what it writes: %w", err)
	}
	return w, nil
}

// encrypts reports whether new runs are encrypted. k may be nil.
func (k *Keyring) encrypts() bool { return k != nil && len(k.owners.Recipients) > 0 }

// hidden is a digest of a path in an encrypted run; false if the run is not
// encrypted. It asks the store for nothing: who writes has called Ensure. k may be
// nil.
func (k *Keyring) hidden(run, path string) (Digest, bool) {
	if k == nil {
		return Digest{}, false
	}
	r, done, err := k.ring(context.Background(), run)
	if err != nil {
		return Digest{}, false
	}
	defer done()
	switch {
	case r.key != nil:
		return r.key.Digest(path), true
	case r.known && r.enc == nil:
		return Digest{}, false
	}
	return Sum([]byte(path)), true
}
