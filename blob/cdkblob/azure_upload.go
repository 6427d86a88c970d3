package cdkblob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

const (
	tokenBytes   = 16
	blockIDBytes = tokenBytes + 12
)

// Blocks of an upload that are none of its parts.
const (
	sessionBlock = 0              // there from the beginning; its sending is the time, in Unix seconds
	abortedBlock = math.MaxUint32 // the upload is over
)

// blockID names a block: the upload, the part, which sending of the part it is,
// and the CRC32C of its content. The greatest sending of a part counts.
type blockID struct {
	token   [tokenBytes]byte
	part    uint32
	sending uint32
	crc     uint32
}

// String is the id as the store knows it. All have the same length, as it asks.
func (id blockID) String() string {
	b := append(make([]byte, 0, blockIDBytes), id.token[:]...)
	b = binary.BigEndian.AppendUint32(b, id.part)
	b = binary.BigEndian.AppendUint32(b, id.sending)
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(b, id.crc))
}

// parseBlockID reads an id; false if it is none of ours.
func parseBlockID(s string) (id blockID, ok bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != blockIDBytes {
		return id, false
	}
	copy(id.token[:], b)
	b = b[tokenBytes:]
	id.part, id.sending, id.crc = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	return id, true
}

// partsKey is the metadata of a blob that was sent in parts: a digest of the
// list of its blocks.
const partsKey = "ckptsync_parts"

// azureUpload is a blob.Upload: uncommitted blocks of the blob.
type azureUpload struct {
	a       *Azure
	key     string
	full    string
	token   [tokenBytes]byte
	opts    blob.UploadOptions
	sending atomic.Uint32 // the last one
	aborted atomic.Bool
}

// Upload implements blob.Bucket.
func (a *Azure) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	full, err := a.object("upload", key)
	if err != nil {
		return nil, err
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	if opts.PartSize > maxBlockBytes {
		return nil, blob.Errorf(blob.ErrUnsupported, "upload", key, "parts of %d bytes: the most is %d", opts.PartSize, int64(maxBlockBytes))
	}
	u := &azureUpload{a: a, key: key, full: full, opts: *opts}
	if id == "" {
		return u, u.begin(ctx)
	}
	if b, err := hex.DecodeString(id); err != nil || len(b) != tokenBytes || id != strings.ToLower(id) {
		return nil, blob.Errorf(blob.ErrNotExist, "upload", key, "no upload has the id %q", id)
	} else {
		copy(u.token[:], b)
	}
	s, err := u.staged(ctx, "upload")
	if err != nil {
		return nil, err
	}
	u.sending.Store(s.sending)
	return u, nil
}

// begin stages the block that makes the upload known. The time in its id is the
// store's, which is asked first.
func (u *azureUpload) begin(ctx context.Context) error {
	rand.Read(u.token[:])
	now, _, err := u.a.uncommitted(ctx, "upload", u.key, u.full)
	if err != nil {
		return err
	}
	id := blockID{token: u.token, part: sessionBlock, sending: uint32(max(0, now.Unix()))}
	_, _, err = u.a.stage(ctx, "upload", u.key, u.full, id, blob.Bytes("ckptsync upload\n"), nil)
	return err
}

// ID implements blob.Upload.
func (u *azureUpload) ID() string { return hex.EncodeToString(u.token[:]) }

// PutPart implements blob.Upload.
func (u *azureUpload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	if err := u.opts.CheckPart(u.key, n, src.Size()); err != nil {
		return blob.Part{}, err
	}
	if u.aborted.Load() {
		return blob.Part{}, u.gone("put part")
	}
	id := blockID{token: u.token, part: uint32(n), sending: u.sending.Add(1)}
	id, _, err := u.a.stage(ctx, "put part", u.key, u.full, id, src, &crc)
	if err != nil {
		return blob.Part{}, err
	}
	return blob.Part{Number: n, Size: src.Size(), ETag: id.String(), CRC32C: crc}, nil
}

// Parts implements blob.Upload.
func (u *azureUpload) Parts(ctx context.Context) ([]blob.Part, error) {
	s, err := u.staged(ctx, "parts")
	if err != nil {
		return nil, err
	}
	var parts []blob.Part
	for n := range blob.MaxParts {
		if p, ok := s.parts[n+1]; ok {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// session is what the store has of one upload.
type session struct {
	started time.Time
	known   bool
	aborted bool
	parts   map[int]blob.Part // by number; the last sending of each
	last    map[int]uint32    // sending by number
	sending uint32            // the last of all
	blocks  []string          // ids of all that holds bytes
}

// sessions sorts blocks by upload.
func sessions(blocks []*blockblob.Block) map[[tokenBytes]byte]*session {
	all := map[[tokenBytes]byte]*session{}
	for _, b := range blocks {
		if b.Name == nil || b.Size == nil {
			continue
		}
		id, ok := parseBlockID(*b.Name)
		if !ok {
			continue
		}
		s := all[id.token]
		if s == nil {
			s = &session{parts: map[int]blob.Part{}, last: map[int]uint32{}}
			all[id.token] = s
		}
		switch {
		case id.part == sessionBlock:
			s.known, s.started = true, time.Unix(int64(id.sending), 0)
		case id.part == abortedBlock:
			s.aborted = true
		case id.part <= blob.MaxParts:
			n := int(id.part)
			s.blocks = append(s.blocks, *b.Name)
			s.sending = max(s.sending, id.sending)
			if last, ok := s.last[n]; !ok || id.sending > last {
				s.last[n] = id.sending
				s.parts[n] = blob.Part{Number: n, Size: *b.Size, ETag: *b.Name, CRC32C: id.crc}
			}
		}
	}
	return all
}

// uncommitted asks for the uncommitted blocks of a blob, none if there is no
// blob, and for the store's time.
func (a *Azure) uncommitted(ctx context.Context, op, key, full string) (now time.Time, blocks []*blockblob.Block, err error) {
	var raw *http.Response
	resp, err := a.block(full).GetBlockList(policy.WithCaptureResponse(ctx, &raw), blockblob.BlockListTypeUncommitted, nil)
	if raw != nil {
		if t, err := http.ParseTime(raw.Header.Get("Date")); err == nil {
			now = t
		}
	}
	if err != nil {
		if err := a.fail(ctx, op, key, err); !errors.Is(err, blob.ErrNotExist) {
			return now, nil, err
		}
		return now, nil, nil
	}
	return now, resp.UncommittedBlocks, nil
}

// staged asks for what the store has of this upload; ErrNotExist if nothing.
func (u *azureUpload) staged(ctx context.Context, op string) (*session, error) {
	_, blocks, err := u.a.uncommitted(ctx, op, u.key, u.full)
	if err != nil {
		return nil, err
	}
	s := sessions(blocks)[u.token]
	if s == nil || !s.known || s.aborted {
		return nil, u.gone(op)
	}
	return s, nil
}

func (u *azureUpload) gone(op string) error {
	return blob.Errorf(blob.ErrNotExist, op, u.key, "the store has no upload %s: it was ended, or its blocks were dropped", u.ID())
}

// Complete implements blob.Upload. Whatever the store answers is settled by
// the metadata of the blob (protocol rule R8).
func (u *azureUpload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := u.opts.CheckParts(u.key, parts); err != nil {
		return blob.Info{}, err
	}
	ids := make([]string, len(parts))
	for i, p := range parts {
		ids[i] = p.ETag
	}
	digest := sha256.Sum256([]byte(strings.Join(ids, "\n")))
	list := hex.EncodeToString(digest[:])
	s, err := u.staged(ctx, "complete")
	if err == nil {
		if err := u.checkStaged(s, parts); err != nil {
			return blob.Info{}, err
		}
		err = u.commit(ctx, ids, list)
	}
	if err != nil && !blob.Ambiguous(err) && !errors.Is(err, blob.ErrNotExist) && !errors.Is(err, blob.ErrCorrupt) || ctx.Err() != nil {
		return blob.Info{}, err
	}
	info, metadata, serr := u.a.stat(ctx, "complete", u.key, u.full)
	if serr != nil && !errors.Is(serr, blob.ErrNotExist) {
		return blob.Info{}, serr
	}
	if serr == nil && metadataValue(metadata, partsKey) == list {
		if want := blob.PartsSize(parts); info.Size != want {
			u.a.remove(ctx, u.full, info.ETag)
			return blob.Info{}, blob.Errorf(blob.ErrCorrupt, "complete", u.key, "the store made a blob of %d bytes of parts of %d", info.Size, want)
		}
		return info, nil
	}
	if err == nil {
		err = u.gone("complete") // the key was written since
	}
	return blob.Info{}, err
}

// checkStaged returns an ErrCorrupt error unless these parts are what the store
// has.
func (u *azureUpload) checkStaged(s *session, parts []blob.Part) error {
	for _, p := range parts {
		if there, ok := s.parts[p.Number]; !ok || there.ETag != p.ETag || there.Size != p.Size {
			return blob.Errorf(blob.ErrCorrupt, "complete", u.key, "part %d is not the one that the store has", p.Number)
		}
	}
	return nil
}

// commit makes a blob of the blocks.
func (u *azureUpload) commit(ctx context.Context, ids []string, list string) error {
	_, err := u.a.block(u.full).CommitBlockList(stall.WithPatience(ctx, completePatience), ids, &blockblob.CommitBlockListOptions{
		HTTPHeaders: headers(""), Tier: u.a.tierOf(), Metadata: map[string]*string{partsKey: to.Ptr(list)},
	})
	if err == nil {
		return nil
	}
	failed := u.a.fail(ctx, "complete", u.key, err)
	if failed.Kind != blob.ErrCorrupt {
		return failed
	}
	// Blocks were dropped since they were listed: a commit of another, or our
	// own, whose answer was lost.
	if _, err := u.staged(ctx, "complete"); err != nil {
		return err
	}
	return failed
}

func metadataValue(metadata map[string]*string, name string) string {
	for k, v := range metadata {
		if strings.EqualFold(k, name) && v != nil {
			return *v
		}
	}
	return ""
}

const (
	abortsAtOnce   = 8                     // blocks that Abort empties at a time
	abortBlockTime = 50 * time.Millisecond // what it has for each of them, beside abortTime
)

// Abort implements blob.Upload. It is carried out also when ctx is done, in a
// time of its own. There is no request that drops blocks without writing the
// blob, so the upload is marked as over, and its blocks are sent again with one
// byte each, which frees the rest; Azure drops them after a week.
func (u *azureUpload) Abort(ctx context.Context) error {
	u.aborted.Store(true)
	ctx = context.WithoutCancel(ctx)
	asking, cancel := context.WithTimeout(ctx, abortTime)
	_, blocks, err := u.a.uncommitted(asking, "abort", u.key, u.full)
	cancel()
	if err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, abortTime+time.Duration(len(blocks))*abortBlockTime)
	defer cancel()
	s := sessions(blocks)[u.token]
	if s == nil {
		return nil
	}
	if !s.aborted {
		id := blockID{token: u.token, part: abortedBlock}
		if _, _, err := u.a.stage(ctx, "abort", u.key, u.full, id, blob.Bytes("x"), nil); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(abortsAtOnce)
	for _, b := range blocks {
		id, ours := parseBlockID(*b.Name)
		if !ours || id.token != u.token || *b.Size <= 1 || id.part == sessionBlock {
			continue
		}
		g.Go(func() error { return u.a.empty(gctx, u.key, u.full, *b.Name) })
	}
	return g.Wait()
}

// empty replaces the content of a block by one byte.
func (a *Azure) empty(ctx context.Context, key, full, id string) error {
	return a.send(ctx, "abort", key, blob.Bytes("x"), nil, func(p *payload, b *body) error {
		_, err := a.block(full).StageBlock(ctx, id, b, &blockblob.StageBlockOptions{TransactionalValidation: p.validation()})
		return err
	})
}
