package cdkblob

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// Whether a server that is not Google's has uploads in parts.
const (
	partsUnknown = iota
	partsThere
	partsMissing
)

// tokenKey is the metadata of an object that was sent in parts: a random word
// of the upload that made it.
const tokenKey = "ckptsync-upload"

// gcsUpload is a blob.Upload: a multipart upload of the XML API.
type gcsUpload struct {
	g     *GCS
	key   string
	full  string
	id    string
	token string // empty if another process began the upload
	opts  blob.UploadOptions
}

// Upload implements blob.Bucket.
func (g *GCS) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	full, err := g.object("upload", key)
	if err != nil {
		return nil, err
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	if err := g.checkParts(ctx, key); err != nil {
		return nil, err
	}
	u := &gcsUpload{g: g, key: key, full: full, id: id, opts: *opts}
	if id != "" {
		return u, blob.ContextError(ctx, "upload", key)
	}
	u.token = rand.Text()
	header := map[string]string{"Content-Type": contentType(""), "x-goog-meta-" + tokenKey: u.token}
	if g.class != "" {
		header["x-goog-storage-class"] = g.class
	}
	if g.kmsKey != "" {
		header["x-goog-encryption-kms-key-name"] = g.kmsKey
	}
	var answer struct{ UploadId string }
	err = g.xml(ctx, "upload", key, call{method: http.MethodPost, path: g.xmlPath(full), query: values("uploads", ""), header: header}, &answer)
	if err != nil {
		return nil, g.orNoBucket(ctx, err)
	}
	if u.id = answer.UploadId; u.id == "" {
		return nil, blob.Errorf(blob.ErrTemporary, "upload", key, "the store begins an upload without an id: check the endpoint")
	}
	return u, nil
}

// checkParts returns an ErrUnsupported error if the server is one without
// uploads in parts, which only servers other than Google's are. Such a server
// may take the requests of an upload for others, so one that changes nothing is
// sent first.
func (g *GCS) checkParts(ctx context.Context, key string) error {
	if g.trusted {
		return nil
	}
	if g.parts.Load() == partsUnknown {
		var answer struct{ XMLName xml.Name }
		err := g.xml(ctx, "upload", key, call{method: http.MethodGet, path: "/" + url.PathEscape(g.bucket), query: values("uploads", "", "max-uploads", "1")}, &answer)
		switch {
		case err == nil && answer.XMLName.Local == "ListMultipartUploadsResult":
			g.parts.Store(partsThere)
		case err == nil, errors.Is(err, blob.ErrUnsupported):
			g.parts.Store(partsMissing)
		default:
			return g.orNoBucket(ctx, err)
		}
	}
	if g.parts.Load() == partsMissing {
		return blob.Errorf(blob.ErrUnsupported, "upload", key, "the server at %s has no uploads in parts", g.endpoint)
	}
	return nil
}

// ID implements blob.Upload. It is the store's own, as Uploads lists it.
func (u *gcsUpload) ID() string { return u.id }

// call is a request about this upload.
func (u *gcsUpload) call(method string, nv ...string) call {
	return call{method: method, path: u.g.xmlPath(u.full), query: values(append([]string{"uploadId", u.id}, nv...)...)}
}

// PutPart implements blob.Upload.
func (u *gcsUpload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	if err := u.opts.CheckPart(u.key, n, src.Size()); err != nil {
		return blob.Part{}, err
	}
	body := u.g.send("put part", u.key, src, crc)
	c := u.call(http.MethodPut, "partNumber", strconv.Itoa(n))
	c.header = map[string]string{"x-goog-hash": "crc32c=" + encodeCRC(crc)}
	c.body, c.length = body, src.Size()
	resp, err := u.g.do(ctx, "put part", u.key, c)
	if serr := body.end(); serr != nil {
		if err == nil {
			resp.Body.Close()
		}
		return blob.Part{}, serr
	}
	if err != nil {
		return blob.Part{}, u.g.orNoBucket(ctx, err)
	}
	resp.Body.Close()
	etag := strings.Trim(resp.Header.Get("ETag"), `"`)
	if etag == "" {
		return blob.Part{}, blob.Errorf(blob.ErrTemporary, "put part", u.key, "the store answers without an ETag: check the endpoint")
	}
	if got := headerCRC(resp.Header); got != "" && got != encodeCRC(crc) {
		return blob.Part{}, blob.Errorf(blob.ErrCorrupt, "put part", u.key, "the store has got a part %d with crc32c %s, not %s", n, got, encodeCRC(crc))
	}
	return blob.Part{Number: n, Size: src.Size(), ETag: etag, CRC32C: crc}, nil
}

// Parts implements blob.Upload. The store does not tell checksums.
func (u *gcsUpload) Parts(ctx context.Context) ([]blob.Part, error) {
	var parts []blob.Part
	marker := 0
	for {
		var answer struct {
			IsTruncated          bool
			NextPartNumberMarker int
			Part                 []struct {
				PartNumber int
				Size       int64
				ETag       string
			}
		}
		err := u.g.xml(ctx, "parts", u.key, u.call(http.MethodGet, "max-parts", "1000", "part-number-marker", strconv.Itoa(marker)), &answer)
		if err != nil {
			return nil, u.g.orNoBucket(ctx, err)
		}
		for _, p := range answer.Part {
			parts = append(parts, blob.Part{Number: p.PartNumber, Size: p.Size, ETag: strings.Trim(p.ETag, `"`)})
		}
		if !answer.IsTruncated {
			break
		}
		if answer.NextPartNumberMarker <= marker {
			return nil, blob.Errorf(blob.ErrTemporary, "parts", u.key, "the store says that there is more, but not how to go on")
		}
		marker = answer.NextPartNumberMarker
	}
	slices.SortFunc(parts, func(x, y blob.Part) int { return cmp.Compare(x.Number, y.Number) })
	return parts, nil
}

// Complete implements blob.Upload. Whatever the store answers is settled by the
// checksum of the object (protocol rule R8).
func (u *gcsUpload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := u.opts.CheckParts(u.key, parts); err != nil {
		return blob.Info{}, err
	}
	failed := u.complete(ctx, parts)
	if failed != nil && !blob.Ambiguous(failed) && !errors.Is(failed, blob.ErrNotExist) || ctx.Err() != nil {
		return blob.Info{}, failed
	}
	res, err := u.g.stat(ctx, "complete", u.key, u.full)
	switch {
	case err == nil && u.same(&res, parts, failed == nil):
		return res.info(u.key), nil
	case err != nil && !errors.Is(err, blob.ErrNotExist):
		return blob.Info{}, err
	case failed != nil:
		return blob.Info{}, failed
	}
	if _, err := u.Parts(ctx); err != nil {
		return blob.Info{}, err // usually ErrNotExist: the key was written since
	}
	return blob.Info{}, blob.Errorf(blob.ErrTemporary, "complete", u.key, "the store says that it is done, but the key does not hold the object")
}

// complete asks the store to put the parts together.
func (u *gcsUpload) complete(ctx context.Context, parts []blob.Part) error {
	type part struct {
		PartNumber int
		ETag       string
	}
	list := struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []part
	}{}
	for _, p := range parts {
		list.Part = append(list.Part, part{p.Number, `"` + p.ETag + `"`})
	}
	data, err := xml.Marshal(list)
	if err != nil {
		return blob.Errorf(blob.ErrUnsupported, "complete", u.key, "%w", err)
	}
	c := u.call(http.MethodPost)
	c.header = map[string]string{"Content-Type": "application/xml"}
	c.body, c.length = strings.NewReader(string(data)), int64(len(data))
	var answer struct {
		XMLName xml.Name
		Code    string
		Message string
	}
	if err := u.g.xml(stall.WithPatience(ctx, completePatience), "complete", u.key, c, &answer); err != nil {
		return u.g.orNoBucket(ctx, err)
	}
	if answer.XMLName.Local == "Error" { // after headers of success
		r := &refusal{status: http.StatusInternalServerError, code: answer.Code, message: answer.Message}
		return &blob.Error{Op: "complete", Key: u.key, Kind: r.class(), Err: r}
	}
	return nil
}

// same reports whether an object is the one that the parts make. acknowledged
// says that the store has just put it together.
func (u *gcsUpload) same(res *resource, parts []blob.Part, acknowledged bool) bool {
	if res.size() != blob.PartsSize(parts) {
		return false
	}
	if sum, ok := blob.PartsCRC32C(parts); ok && res.CRC32C != "" {
		return res.CRC32C == encodeCRC(sum)
	}
	return acknowledged || u.token != "" && res.Metadata[tokenKey] == u.token
}

// Abort implements blob.Upload. It is carried out also when ctx is done, in a
// time of its own.
func (u *gcsUpload) Abort(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	resp, err := u.g.do(ctx, "abort", u.key, u.call(http.MethodDelete))
	if err == nil {
		io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) //nolint:errcheck // so that the connection is used again
		resp.Body.Close()
		return nil
	}
	if err = u.g.orNoBucket(ctx, err); errors.Is(err, blob.ErrNotExist) {
		return nil
	}
	return err
}

// Uploads implements blob.UploadLister.
func (g *GCS) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		if err := g.checkParts(ctx, prefix); err != nil {
			yield(blob.UnfinishedUpload{}, err)
			return
		}
		query := values("uploads", "", "max-uploads", "1000", "prefix", g.prefix+prefix)
		for {
			answer, err := g.uploads(ctx, prefix, query)
			if err != nil {
				yield(blob.UnfinishedUpload{}, err)
				return
			}
			for _, up := range answer.found {
				if !yield(up, nil) {
					return
				}
			}
			if !answer.more {
				return
			}
			was := query.Get("key-marker") + "\n" + query.Get("upload-id-marker")
			query.Set("key-marker", answer.nextKey)
			query.Set("upload-id-marker", answer.nextID)
			if is := answer.nextKey + "\n" + answer.nextID; is == was || is == "\n" {
				yield(blob.UnfinishedUpload{}, blob.Errorf(blob.ErrTemporary, "uploads", prefix, "the store says that there is more, but not how to go on"))
				return
			}
		}
	}
}

// uploadPage is a page of a listing of uploads.
type uploadPage struct {
	found           []blob.UnfinishedUpload
	more            bool
	nextKey, nextID string
}

func (g *GCS) uploads(ctx context.Context, prefix string, query url.Values) (p uploadPage, err error) {
	var answer struct {
		XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
		IsTruncated        bool
		NextKeyMarker      string
		NextUploadIdMarker string
		Upload             []struct {
			Key       string
			UploadId  string
			Initiated string
		}
	}
	if err := g.xml(ctx, "uploads", prefix, call{method: http.MethodGet, path: "/" + url.PathEscape(g.bucket), query: query}, &answer); err != nil {
		return p, g.orNoBucket(ctx, err)
	}
	for _, up := range answer.Upload {
		key, ours := strings.CutPrefix(up.Key, g.prefix)
		if ours && key != "" && strings.HasPrefix(key, prefix) {
			p.found = append(p.found, blob.UnfinishedUpload{Key: key, ID: up.UploadId, Started: unixTime(up.Initiated)})
		}
	}
	p.more, p.nextKey, p.nextID = answer.IsTruncated, answer.NextKeyMarker, answer.NextUploadIdMarker
	return p, nil
}
