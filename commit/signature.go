package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"aead.dev/minisign"

	"github.com/ckptsync/ckptsync/blob"
)

// ErrUntrusted: a marker that none of the keys that its reader trusts has
// signed as it is. Who else can write to the bucket may have made it, or
// changed it; or it was written before markers were signed.
var ErrUntrusted = errors.New("not signed by a trusted key")

// maxSignature bounds a signature, in bytes. They have about 400.
const maxSignature = 4 << 10

// PublicKey is a minisign key that markers may be signed with.
type PublicKey struct{ key minisign.PublicKey }

// ParsePublicKey parses the content of a minisign public key file, or the
// line of base64 in it alone.
func ParsePublicKey(text string) (PublicKey, error) {
	var k PublicKey
	if err := k.key.UnmarshalText([]byte(strings.TrimSpace(text))); err != nil {
		return k, fmt.Errorf("no minisign public key: %w", err)
	}
	return k, nil
}

// ID is the key's number, as minisign prints it.
func (k PublicKey) ID() string { return keyID(k.key.ID()) }

// String is the key as ParsePublicKey takes it: one line of base64.
func (k PublicKey) String() string { return k.key.String() }

func keyID(id uint64) string { return fmt.Sprintf("%016X", id) }

// Signer signs markers with a minisign private key. It is deterministic: the
// signatures of one marker by one key are the same bytes.
type Signer struct{ key minisign.PrivateKey }

// NewSigner draws a key.
func NewSigner() (*Signer, error) {
	_, key, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("draw a signing key: %w", err)
	}
	return &Signer{key}, nil
}

// ErrEncryptedKey: a private key that needs a password, or another one.
var ErrEncryptedKey = errors.New("the signing key is encrypted")

// ParseSigner parses the content of a minisign private key file; password is
// used if that is encrypted, which takes a second and a GiB of memory.
func ParseSigner(text []byte, password string) (*Signer, error) {
	var s Signer
	if minisign.IsEncrypted(text) {
		if password == "" {
			return nil, fmt.Errorf("%w, and no password is given", ErrEncryptedKey)
		}
		var err error
		if s.key, err = minisign.DecryptKey(password, text); err != nil {
			return nil, fmt.Errorf("%w, and the password is not its own", ErrEncryptedKey)
		}
		return &s, nil
	}
	if err := s.key.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("no minisign private key: %w", err)
	}
	return &s, nil
}

// Marshal is the key as ParseSigner takes it, without a password. It is a secret.
func (s *Signer) Marshal() ([]byte, error) {
	b, err := s.key.MarshalText()
	return append(b, '\n'), err
}

// Public is the key that verifies what s signs.
func (s *Signer) Public() PublicKey {
	return PublicKey{s.key.Public().(minisign.PublicKey)} // by the library's own word
}

// sign returns the signature of a marker's bytes.
func (s *Signer) sign(run string, id ID, body []byte) []byte {
	return minisign.SignWithComments(s.key, body, fmt.Sprintf("ckptsync run:%s commit:%s", run, id), "signature from minisign secret key "+keyID(s.key.ID()))
}

// StoreOption changes what a store does.
type StoreOption func(*Store)

// SignWith has PutMarker sign. Before a marker is there, its signature is.
// A nil signer changes nothing.
func SignWith(s *Signer) StoreOption { return func(st *Store) { st.signer = s } }

// Trusting returns a store of the same run whose Marker, and what is built on
// it, takes only markers that one of keys has signed; any other is ErrUntrusted.
// Manifests and data are bound to their marker by digests. Without keys it is s.
func (s *Store) Trusting(keys ...PublicKey) *Store {
	if len(keys) == 0 {
		return s
	}
	return &Store{b: s.b, run: s.run, signer: s.signer, trusted: keys, attempts: map[int]Attempt{}}
}

// trust returns ErrUntrusted unless a trusted key has signed these bytes.
func (s *Store) trust(ctx context.Context, id ID, body []byte) error {
	if len(s.trusted) == 0 {
		return nil
	}
	digest := Sum(body)
	var ids []string
	for _, k := range s.trusted {
		ids = append(ids, k.ID())
		sig, err := s.read(ctx, keySignature(id, k.ID(), digest), maxSignature)
		switch {
		case errors.Is(err, blob.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("signature by key %s: %w", k.ID(), err)
		case minisign.Verify(k.key, body, sig):
			return nil
		}
	}
	for o, err := range s.list(ctx, "signatures/"+id.String()+".") {
		if err != nil {
			return err
		}
		if o.Kind == KindSignature && o.ID == id && o.Digest != digest {
			return fmt.Errorf("%w (%s): it was changed after it was signed", ErrUntrusted, strings.Join(ids, ", "))
		}
	}
	return fmt.Errorf("%w (%s)", ErrUntrusted, strings.Join(ids, ", "))
}

// Sign adds a signature to a marker that is there, whoever wrote it.
func (s *Store) Sign(ctx context.Context, id ID, signer *Signer) error {
	body, err := s.read(ctx, keyMarker(id), maxList)
	if err != nil {
		return fmt.Errorf("marker of commit %s: %w", id, err)
	}
	if _, err := s.decodeMarker(id, body); err != nil {
		return err
	}
	return s.putSignature(ctx, id, body, signer)
}

// putSignature creates a signature; one of these bytes by this key that is
// there already is success.
func (s *Store) putSignature(ctx context.Context, id ID, body []byte, signer *Signer) error {
	_, err := s.create(ctx, keySignature(id, signer.Public().ID(), Sum(body)), signer.sign(s.run, id, body))
	if err != nil {
		return fmt.Errorf("signature of commit %s: %w", id, err)
	}
	return nil
}

// Signatures lists which keys have signed a commit's marker, or another one
// under its name, by the names of the signatures alone.
func (s *Store) Signatures(ctx context.Context) ([]SignatureKey, error) {
	var out []SignatureKey
	for o, err := range s.list(ctx, "signatures/") {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindSignature {
			out = append(out, SignatureKey{ID: o.ID, Key: o.Token, Digest: o.Digest})
		}
	}
	return out, nil
}

// SignatureKey names a signature.
type SignatureKey struct {
	ID
	Key    string // as PublicKey.ID has it
	Digest Digest // of the marker's bytes
}

// DeleteSignature removes a signature. It is for the signatures of commits
// whose manifests are due to go as well.
func (s *Store) DeleteSignature(ctx context.Context, k SignatureKey) error {
	return s.b.Delete(ctx, s.Key(keySignature(k.ID, k.Key, k.Digest)))
}
