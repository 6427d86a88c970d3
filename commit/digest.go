package commit

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/blob"
)

// String is the digest in lower-case hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts exactly what
// MarshalText writes.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("digest of %d characters, want %d", len(text), 2*len(d))
	}
	if strings.ContainsAny(string(text), "ABCDEF") {
		return fmt.Errorf("digest %s: hexadecimal is lower-case here", text)
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return fmt.Errorf("digest %q: %w", text, err)
	}
	return nil
}

// Sum returns the BLAKE3-256 digest of b.
func Sum(b []byte) Digest { return blake3.Sum256(b) }

// The chunk sizes of ChunkSize, in bytes.
const (
	minChunk  = 16 << 20
	chunkStep = 1 << 20
)

// ChunkSize is how a file of that many bytes is cut: the bytes per chunk (of
// digests, and of parts on the wire): 16 MiB, grown in steps of 1 MiB until
// 10,000 chunks suffice. It depends on nothing but the size.
func ChunkSize(size int64) int64 {
	if size <= minChunk*blob.MaxParts {
		return minChunk
	}
	chunk := size / blob.MaxParts
	if size%blob.MaxParts > 0 {
		chunk++
	}
	if r := chunk % chunkStep; r > 0 {
		chunk += chunkStep - r
	}
	return chunk
}

const tokenAlphabet = "abcdefghijklmnopqrstuvwxyz234567" // 5 bits a character

// randomToken returns n random characters of tokenAlphabet.
func randomToken(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: the runtime ends the program instead
	for i := range b {
		b[i] = tokenAlphabet[b[i]&31]
	}
	return string(b)
}

// NewToken draws a token for data keys: ten characters, 50 bits. Two sendings
// of a file under one commit never share a key (protocol R2).
func NewToken() string { return randomToken(10) }

// NewOpToken draws a token that tells one writer's object from another's
// (protocol R8): 26 characters, 130 bits.
func NewOpToken() string { return randomToken(26) }
