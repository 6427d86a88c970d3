package ageblob

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"filippo.io/age"
	"github.com/zeebo/blake3"
)

// Key encrypts and decrypts segments. Its recipient is kept as secret as its
// identity: who does not know it cannot write a segment.
type Key struct {
	identity *age.X25519Identity
	id       string
}

// NewKey makes a random key.
func NewKey() (*Key, error) {
	i, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	return &Key{i, idOf(i)}, nil
}

// ParseKey reads what Secret returned.
func ParseKey(secret string) (*Key, error) {
	i, err := age.ParseX25519Identity(secret)
	if err != nil {
		return nil, errors.New("it is no native X25519 identity of age") // never the text, which is a secret
	}
	return &Key{i, idOf(i)}, nil
}

// Secret is the key as text. It is for being encrypted, and for nothing else.
func (k *Key) Secret() string { return k.identity.String() }

// ID names the key, in 32 hexadecimal digits, and tells nothing of it.
func (k *Key) ID() string { return k.id }

func idOf(i *age.X25519Identity) string {
	var id [16]byte
	blake3.DeriveKey("ckptsync run key, its name, v1", []byte(i.Recipient().String()), id[:])
	return hex.EncodeToString(id[:])
}

// Digest is a digest of text that only who has the key can compute.
func (k *Key) Digest(text string) [32]byte {
	var key, out [32]byte
	blake3.DeriveKey("ckptsync run key, names of objects, v1", []byte(k.identity.String()), key[:])
	h, err := blake3.NewKeyed(key[:])
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	_, _ = h.WriteString(text)
	h.Sum(out[:0])
	return out
}

// String keeps the key out of every print.
func (k *Key) String() string { return "key " + k.id }

// GoString keeps the key out of every print.
func (k *Key) GoString() string { return k.String() }

// The words of a binding.
const (
	more = "more"
	last = "last"
	open = "open"
)

func bind(key string, n int64, word string) [binding]byte {
	return blake3.Sum256([]byte("ckptsync segment v1\n" + key + "\n" + strconv.FormatInt(n, 10) + "\n" + word))
}

// seal writes segment n of the object under key to w.
func (k *Key) seal(w io.Writer, key string, n int64, word string, plain []byte) error {
	e, err := age.Encrypt(w, k.identity.Recipient())
	if err != nil {
		return err
	}
	b := bind(key, n, word)
	if _, err := e.Write(b[:]); err != nil {
		return err
	}
	if _, err := e.Write(plain); err != nil {
		return err
	}
	return e.Close()
}

// unseal decrypts segment n into plain, which has room for it, and returns its
// plain bytes and its word.
func (k *Key) unseal(stored []byte, key string, n int64, plain []byte) ([]byte, string, error) {
	size, ok := opened(int64(len(stored)))
	if !ok {
		return nil, "", fmt.Errorf("no segment has %d bytes: it was cut, or is not encrypted", len(stored))
	}
	r, err := age.Decrypt(bytes.NewReader(stored), k.identity)
	if err != nil {
		return nil, "", fmt.Errorf("it is not encrypted for the key of its run, or was changed: %w", err)
	}
	var b [binding]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, "", err
	}
	plain = plain[:size]
	if _, err := io.ReadFull(r, plain); err != nil {
		return nil, "", err
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // the last block is known as the last only now
		return nil, "", fmt.Errorf("it does not end where it should: %w", err)
	}
	for _, word := range []string{more, last, open} {
		if b == bind(key, n, word) {
			return plain, word, nil
		}
	}
	return nil, "", errors.New("it belongs to another place or to another object")
}
