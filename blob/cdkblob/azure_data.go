package cdkblob

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	azb "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/minio/crc64nvme"

	"github.com/ckptsync/ckptsync/blob"
)

// maxAzurePut is the largest object, in bytes, that one request sends here.
// Larger ones are staged in blocks; the service would allow 5000 MiB.
const maxAzurePut = 256 << 20

// putBlock is the size of these blocks, in bytes, unless there would be too
// many of them.
const (
	putBlock      = 64 << 20
	maxBlocks     = 50_000
	maxBlockBytes = 4000 << 20
)

// The checksums that a request may carry.
const (
	sumCRC64 = iota
	sumMD5
	sumNone
)

// first is the checksum to begin with.
func (t *azureTarget) first() int {
	switch t.checksum {
	case "md5":
		return sumMD5
	case "none":
		return sumNone
	}
	return sumCRC64
}

// payload is a source whose checksums are known.
type payload struct {
	src    blob.Source
	crc32c uint32
	crc64  uint64
	md5    []byte
	kind   int // sumCRC64 …: which of them is there
}

// measure reads a source once, checks the CRC32C that the caller knows and
// computes the checksum that the store checks.
func measure(ctx context.Context, op, key string, src blob.Source, want *uint32, kind int) (*payload, error) {
	p := &payload{src: src, kind: kind}
	var h hash.Hash
	switch kind {
	case sumCRC64:
		h = crc64nvme.New()
	case sumMD5:
		h = md5.New()
	}
	w := io.Discard
	if h != nil {
		w = h
	}
	crc, err := blob.CopySource(ctx, w, op, key, src)
	if err != nil {
		return nil, err
	}
	p.crc32c = crc
	switch kind {
	case sumCRC64:
		p.crc64 = binary.BigEndian.Uint64(h.Sum(nil))
	case sumMD5:
		p.md5 = h.Sum(nil)
	}
	return p, blob.CheckCRC(op, key, want, crc)
}

// validation is what the SDK makes the header of.
func (p *payload) validation() azb.TransferValidationType {
	switch p.kind {
	case sumCRC64:
		return azb.TransferValidationTypeCRC64(p.crc64)
	case sumMD5:
		return azb.TransferValidationTypeMD5(p.md5)
	}
	return nil
}

// differs reports whether the store has answered with the checksum of something
// else.
func (p *payload) differs(crc64, sum []byte) bool {
	if p.kind == sumCRC64 && len(crc64) == 8 {
		return binary.LittleEndian.Uint64(crc64) != p.crc64
	}
	return p.kind == sumMD5 && len(sum) == md5.Size && !bytes.Equal(sum, p.md5)
}

// send measures a source and hands it to a request; once more with MD5 if it
// finds out that the server is Azurite, which answers 500 to a CRC64.
func (a *Azure) send(ctx context.Context, op, key string, src blob.Source, want *uint32, request func(*payload, *body) error) error {
	for {
		kind := int(a.sums.Load())
		p, err := measure(ctx, op, key, src, want, kind)
		if err != nil {
			return err
		}
		// Without a checksum in the request, what is sent is checked on the way.
		var check *uint32
		if kind == sumNone {
			check = &p.crc32c
		}
		b := newBody(op, key, src, check)
		err = request(p, b)
		if serr := b.end(); serr != nil {
			return serr
		}
		if err == nil {
			return nil
		}
		if answer, ok := answered(err); ok && kind == sumCRC64 && a.checksum == "auto" && answer.status == http.StatusInternalServerError &&
			strings.HasPrefix(answer.server, "Azurite") {
			a.sums.CompareAndSwap(sumCRC64, sumMD5)
			a.log.Debug("the server knows no crc64; sending md5", "server", answer.server)
			continue
		}
		return a.fail(ctx, op, key, err)
	}
}

// Put implements blob.Bucket. Objects of over 256 MiB are staged in blocks.
func (a *Azure) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	full, err := a.object("put", key)
	if err != nil {
		return blob.Info{}, err
	}
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	var conditions *azb.AccessConditions
	if opts.IfAbsent {
		conditions = absent()
	}
	var info blob.Info
	if src.Size() > maxAzurePut {
		info, err = a.putBlocks(ctx, key, full, src, opts, conditions)
	} else {
		info, err = a.put(ctx, key, full, src, opts, conditions)
	}
	if err != nil {
		return blob.Info{}, taken(err, opts)
	}
	return info, nil
}

// taken turns the refusal of a token that may create, but not overwrite, into
// what it means for a create-if-absent.
func taken(err error, opts *blob.PutOptions) error {
	e, ok := errors.AsType[*blob.Error](err)
	if answer, said := errors.AsType[azureAnswer](err); ok && said && opts.IfAbsent && answer.code == "UnauthorizedBlobOverwrite" {
		return &blob.Error{Op: e.Op, Key: e.Key, Kind: blob.ErrPrecondition, Err: answer}
	}
	return err
}

func (a *Azure) put(ctx context.Context, key, full string, src blob.Source, opts *blob.PutOptions, conditions *azb.AccessConditions) (blob.Info, error) {
	info := blob.Info{Key: key, Size: src.Size()}
	err := a.send(ctx, "put", key, src, opts.CRC32C, func(p *payload, b *body) error {
		resp, err := a.block(full).Upload(ctx, b, &blockblob.UploadOptions{
			HTTPHeaders: headers(opts.ContentType), Tier: a.tierOf(), TransactionalValidation: p.validation(), AccessConditions: conditions,
		})
		if err != nil {
			return err
		}
		if info.ETag = etagOf(resp.ETag); info.ETag == "" {
			return blob.Errorf(blob.ErrTemporary, "put", key, "the store answers without an ETag: check the endpoint")
		}
		if p.differs(resp.ContentCRC64, resp.ContentMD5) {
			a.remove(ctx, full, info.ETag)
			return blob.Errorf(blob.ErrCorrupt, "put", key, "the store has got something else than was sent")
		}
		if resp.LastModified != nil {
			info.ModTime = *resp.LastModified
		}
		return nil
	})
	return info, err
}

// putBlocks stages what is too large for one request, and commits it.
func (a *Azure) putBlocks(ctx context.Context, key, full string, src blob.Source, opts *blob.PutOptions, conditions *azb.AccessConditions) (blob.Info, error) {
	size := src.Size()
	step := max(int64(putBlock), (size+maxBlocks-1)/maxBlocks)
	if step > maxBlockBytes {
		return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "%d bytes are more than a blob can have", size)
	}
	var token [tokenBytes]byte
	rand.Read(token[:])
	var ids []string
	var crc uint32
	for off := int64(0); off < size; off += step {
		section := window{src: src, off: off, size: min(step, size-off)}
		id, sum, err := a.stage(ctx, "put", key, full, blockID{token: token, part: uint32(len(ids) + 1)}, section, nil)
		if err != nil {
			return blob.Info{}, err
		}
		ids = append(ids, id.String())
		crc = blob.CombineCRC32C(crc, sum, section.size)
	}
	if err := blob.CheckCRC("put", key, opts.CRC32C, crc); err != nil {
		return blob.Info{}, err
	}
	resp, err := a.block(full).CommitBlockList(ctx, ids, &blockblob.CommitBlockListOptions{
		HTTPHeaders: headers(opts.ContentType), Tier: a.tierOf(), AccessConditions: conditions,
	})
	if err != nil {
		return blob.Info{}, a.fail(ctx, "put", key, err)
	}
	info := blob.Info{Key: key, Size: size, ETag: etagOf(resp.ETag)}
	if info.ETag == "" {
		return blob.Info{}, blob.Errorf(blob.ErrTemporary, "put", key, "the store answers without an ETag: check the endpoint")
	}
	return info, nil
}

// stage sends one block and returns its id, with the checksum of its content in
// it, and that checksum.
func (a *Azure) stage(ctx context.Context, op, key, full string, id blockID, src blob.Source, want *uint32) (blockID, uint32, error) {
	err := a.send(ctx, op, key, src, want, func(p *payload, b *body) error {
		id.crc = p.crc32c
		resp, err := a.block(full).StageBlock(ctx, id.String(), b, &blockblob.StageBlockOptions{TransactionalValidation: p.validation()})
		if err == nil && p.differs(resp.ContentCRC64, resp.ContentMD5) {
			err = blob.Errorf(blob.ErrCorrupt, op, key, "the store has got something else than was sent")
		}
		return err
	})
	return id, id.crc, err
}

// remove deletes one version of a blob that must not stay, also when ctx is
// done.
func (a *Azure) remove(ctx context.Context, full, etag string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	if _, err := a.client.NewBlobClient(full).Delete(ctx, &azb.DeleteOptions{AccessConditions: unchanged(etag)}); err != nil {
		a.log.Warn("a damaged object could not be deleted", "key", full, "etag", etag, "err", a.fail(ctx, "put", full, err))
	}
}

// Open implements blob.Bucket. The stream is a blob.Versioned.
func (a *Azure) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	full, err := a.object("open", key)
	if err != nil {
		return nil, err
	}
	if off < 0 {
		_, err := blob.CheckRange(key, off, n, 0)
		return nil, err
	}
	if n == 0 {
		return nothing(ctx, a, key, off, n)
	}
	opts := &azb.DownloadStreamOptions{}
	if r := rangeHeader(off, n); r != "" {
		opts.Range = azb.HTTPRange{Offset: off}
		if strings.Count(r, "-") == 1 && !strings.HasSuffix(r, "-") {
			opts.Range.Count = n
		}
	}
	resp, err := a.client.NewBlobClient(full).DownloadStream(ctx, opts)
	if err != nil {
		if answer, ok := answered(err); ok && answer.status == http.StatusRequestedRangeNotSatisfiable {
			return nothing(ctx, a, key, off, n)
		}
		return nil, a.fail(ctx, "open", key, err)
	}
	if isFolder(resp.Metadata) {
		resp.Body.Close()
		return nil, blob.Errorf(blob.ErrNotExist, "open", key, "it is a directory of a hierarchical namespace")
	}
	if off > 0 && resp.ContentLength != nil && *resp.ContentLength == 0 { // Azurite's answer at the end of a blob
		resp.Body.Close()
		return nothing(ctx, a, key, off, n)
	}
	want, err := expect(key, off, n, downloadHeader(resp))
	if err == nil && resp.ETag == nil {
		err = blob.Errorf(blob.ErrTemporary, "open", key, "the store does not say the ETag: check the endpoint")
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return &stream{ctx: ctx, key: key, body: resp.Body, left: want, etag: etagOf(resp.ETag)}, nil
}

// downloadHeader is what the SDK has parsed of an answer, as headers.
func downloadHeader(resp azb.DownloadStreamResponse) http.Header {
	h := http.Header{}
	if resp.ContentLength != nil {
		h.Set("Content-Length", strconv.FormatInt(*resp.ContentLength, 10))
	}
	if resp.ContentRange != nil {
		h.Set("Content-Range", *resp.ContentRange)
	}
	return h
}
