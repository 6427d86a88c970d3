package s3blob

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"net/http"
	"sync"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/ckptsync/ckptsync/blob"
)

// mode is the checksum that goes with a body. The order is that of preference.
type mode int

const (
	crc32c mode = iota
	md5sum
	none
)

func (m mode) String() string { return [...]string{"crc32c", "md5", "none"}[m] }

// maxStrikes is how often a store may answer 500 to one mode and success to
// the next before that is taken for a habit and not for a hiccup.
const maxStrikes = 2

// ladder remembers which checksum a store takes. It begins with the best one
// and, while the store has not taken any, goes down when it is refused.
type ladder struct {
	mu      sync.Mutex
	mode    mode
	decided [kinds]bool // the store has taken this mode, or the user chose it
	strikes int
	echoes  bool // the store has confirmed a checksum: it looks at them
}

// kind of a request; some stores take checksums on one and not on the other.
type kind int

const (
	putObject kind = iota
	uploadPart
	createUpload // announces what its parts will carry
	kinds
)

func newLadder(m mode, fixed bool) *ladder {
	l := &ladder{mode: m}
	for k := range l.decided {
		l.decided[k] = fixed
	}
	return l
}

func (l *ladder) state(k kind) (m mode, decided bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.decided[k]
}

// taken notes that the store took m.
func (l *ladder) taken(k kind, m mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m == l.mode {
		l.decided[k] = true
		l.strikes = 0
	}
}

// lower notes that the store took m after it had refused all above it, and
// reports whether that settles it.
func (l *ladder) lower(m mode, plainly bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode >= m {
		return false // another request found it out as well
	}
	if l.strikes++; !plainly && l.strikes < maxStrikes {
		return false
	}
	l.mode = m
	return true
}

func (l *ladder) confirmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.echoes
}

// echo notes whether an answer repeated the checksum that it was sent.
func (l *ladder) echo(sent, got *string) {
	if sent == nil || got == nil || *sent != *got {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.echoes = true
}

// send calls do with the checksum that the store takes; while that is open it
// finds it out. do's errors are those of Bucket.fail.
func (b *Bucket) send(ctx context.Context, k kind, do func(mode) (answer, error)) error {
	m, decided := b.sum.state(k)
	a, err := do(m)
	if err == nil {
		b.sum.taken(k, m)
		return nil
	}
	if decided || !refusal(a, err) {
		return err
	}
	first, plainly := err, a.status != http.StatusInternalServerError
	if !plainly { // perhaps a hiccup: the same once more
		if a, err = do(m); err == nil {
			b.sum.taken(k, m)
			return nil
		} else if !refusal(a, err) {
			return b.mixed(first, err)
		}
	}
	for next := m + 1; next <= none; next++ {
		switch a, err = do(next); {
		case err == nil:
			if b.sum.lower(next, plainly) {
				b.log.WarnContext(ctx, "the store refuses a checksum", "refused", m.String(), "used", next.String(), "err", first.Error())
			}
			b.sum.taken(k, next)
			return nil
		case !refusal(a, err):
			return b.mixed(first, err)
		}
	}
	return first
}

// mixed is the error of a request that failed with first, which may have been
// carried out nevertheless, and then again with err.
func (b *Bucket) mixed(first, err error) error {
	if blob.Ambiguous(first) && errors.Is(err, blob.ErrPrecondition) {
		return first // what stands in the way may be our own
	}
	return err
}

// refusal reports whether a request may have failed for its checksum header.
func refusal(a answer, err error) bool {
	switch a.status {
	case http.StatusInternalServerError, http.StatusNotImplemented:
		return true
	case http.StatusBadRequest:
		return blob.Class(err) == blob.ErrUnsupported
	}
	return false
}

// payload is content on its way: a source with its checksums.
type payload struct {
	src  blob.Source
	size int64
	crc  *uint32 // of the whole; nil until known
	md5  *string // base64; nil until needed
}

// smallBody is the size up to which a body is checked before it is sent.
const smallBody = 1 << 20

// newPayload looks at a source. Small ones, and those that come without a
// checksum, are read once here.
func newPayload(ctx context.Context, op, key string, src blob.Source, crc *uint32) (*payload, error) {
	p := &payload{src: src, size: src.Size(), crc: crc}
	if crc != nil && p.size > smallBody {
		return p, nil
	}
	return p, p.read(ctx, op, key, io.Discard)
}

// read passes over the source, writing it to w, and compares its checksum.
func (p *payload) read(ctx context.Context, op, key string, w io.Writer) error {
	got, err := blob.CopySource(ctx, w, op, key, p.src)
	if err != nil {
		return err
	}
	if err := blob.CheckCRC(op, key, p.crc, got); err != nil {
		return err
	}
	p.crc = &got
	return nil
}

// headers returns the checksum headers of mode m.
func (p *payload) headers(ctx context.Context, op, key string, m mode) (crc, sum *string, err error) {
	switch m {
	case crc32c:
		s := encodeCRC(*p.crc)
		return &s, nil, nil
	case md5sum:
		if p.md5 == nil {
			h := md5.New()
			if err := p.read(ctx, op, key, h); err != nil {
				return nil, nil, err
			}
			p.md5 = encodeSum(h)
		}
		return nil, p.md5, nil
	}
	return nil, nil, nil
}

func encodeSum(h hash.Hash) *string {
	s := base64.StdEncoding.EncodeToString(h.Sum(nil))
	return &s
}

func encodeCRC(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// decodeCRC reads what encodeCRC wrote; 0 if it is something else.
func decodeCRC(s string) uint32 {
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(raw) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(raw)
}

// options of a request with a body in mode m. Without a checksum header, plain
// http has only the signed hash of the payload to tell what changed on the way.
func (b *Bucket) options(m mode) func(*s3.Options) {
	return func(o *s3.Options) {
		if m == none && !b.secure {
			return
		}
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
	}
}

// SendsFiles implements blob.FileSender.
func (b *Bucket) SendsFiles() bool {
	m, _ := b.sum.state(uploadPart)
	return systemSendsFiles && !b.secure && m == crc32c && b.sum.confirmed()
}

// body makes the reader that a request sends. verify compares the checksum
// while it is sent, where the store is not known to do that.
func (p *payload) body(ctx context.Context, op, key string, verify bool) *body {
	return &body{op: op, key: key, src: p.src, size: p.size, want: *p.crc, verify: verify && p.size > smallBody, sent: blob.Sent(ctx)}
}
