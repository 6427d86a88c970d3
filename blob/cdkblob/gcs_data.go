package cdkblob

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Open implements blob.Bucket. The stream is a blob.Versioned.
func (g *GCS) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	full, err := g.object("open", key)
	if err != nil {
		return nil, err
	}
	if off < 0 {
		_, err := blob.CheckRange(key, off, n, 0)
		return nil, err
	}
	if n == 0 {
		return nothing(ctx, g, key, off, n)
	}
	// What is compressed is wanted as it is stored.
	header := map[string]string{"Accept-Encoding": "gzip"}
	if r := rangeHeader(off, n); r != "" {
		header["Range"] = r
	}
	resp, err := g.do(ctx, "open", key, call{method: http.MethodGet, path: g.objectPath(full), query: values("alt", "media"), header: header})
	if err != nil {
		if statusOf(err) == http.StatusRequestedRangeNotSatisfiable {
			return nothing(ctx, g, key, off, n)
		}
		return nil, g.orNoBucket(ctx, err)
	}
	want, err := expect(key, off, n, resp.Header)
	generation := resp.Header.Get("X-Goog-Generation")
	if err == nil && generation == "" {
		err = blob.Errorf(blob.ErrTemporary, "open", key, "the store does not say the generation: check the endpoint")
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return &stream{ctx: ctx, key: key, body: resp.Body, left: want, etag: generation}, nil
}

// Put implements blob.Bucket. It is one request, of any size.
func (g *GCS) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	full, err := g.object("put", key)
	if err != nil {
		return blob.Info{}, err
	}
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	crc, err := g.sum(ctx, "put", key, src, opts.CRC32C)
	if err != nil {
		return blob.Info{}, err
	}
	res, err := g.put(ctx, key, full, src, crc, opts)
	if err != nil {
		return blob.Info{}, g.orNoBucket(ctx, err)
	}
	if err := res.check("put", key); err != nil {
		return blob.Info{}, err
	}
	if res.size() != src.Size() || res.CRC32C != "" && res.CRC32C != encodeCRC(crc) {
		g.remove(ctx, full, res.Generation)
		return blob.Info{}, blob.Errorf(blob.ErrCorrupt, "put", key, "the store has got %s bytes with crc32c %s, not %d with %s",
			res.Size, res.CRC32C, src.Size(), encodeCRC(crc))
	}
	return res.info(key), nil
}

// sum is the CRC32C that was given, or that of the source.
func (g *GCS) sum(ctx context.Context, op, key string, src blob.Source, given *uint32) (uint32, error) {
	if given == nil {
		return blob.CopySource(ctx, io.Discard, op, key, src)
	}
	return *given, blob.ContextError(ctx, op, key)
}

// send makes a body that is checked on the way if the server may not check it.
func (g *GCS) send(op, key string, src blob.Source, crc uint32) *body {
	if g.trusted && src.Size() > 0 {
		return newBody(op, key, src, nil)
	}
	return newBody(op, key, src, &crc)
}

// put sends an object with its description, in one request.
func (g *GCS) put(ctx context.Context, key, full string, src blob.Source, crc uint32, opts *blob.PutOptions) (resource, error) {
	if src.Size() == 0 {
		if err := blob.CheckCRC("put", key, &crc, 0); err != nil {
			return resource{}, err
		}
	}
	head, err := json.Marshal(struct {
		Name         string `json:"name"`
		ContentType  string `json:"contentType"`
		CRC32C       string `json:"crc32c"`
		StorageClass string `json:"storageClass,omitempty"`
	}{full, contentType(opts.ContentType), encodeCRC(crc), g.class})
	if err != nil {
		return resource{}, blob.Errorf(blob.ErrUnsupported, "put", key, "%w", err)
	}
	boundary := rand.Text()
	before := "--" + boundary + "\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n" + string(head) +
		"\r\n--" + boundary + "\r\nContent-Type: " + contentType(opts.ContentType) + "\r\n\r\n"
	after := "\r\n--" + boundary + "--\r\n"
	query := values("uploadType", "multipart", "fields", resourceFields)
	if opts.IfAbsent {
		query.Set("ifGenerationMatch", "0")
	}
	if g.kmsKey != "" {
		query.Set("kmsKeyName", g.kmsKey)
	}
	body := g.send("put", key, src, crc)
	var res resource
	err = g.json(ctx, "put", key, call{
		method: http.MethodPost, path: "/upload" + g.listPath(), query: query,
		header: map[string]string{"Content-Type": "multipart/related; boundary=" + boundary},
		body:   io.MultiReader(strings.NewReader(before), body, strings.NewReader(after)),
		length: int64(len(before)) + src.Size() + int64(len(after)),
	}, &res)
	if serr := body.end(); serr != nil {
		return resource{}, serr
	}
	return res, err
}

// remove deletes one generation of an object that must not stay, also when ctx
// is done.
func (g *GCS) remove(ctx context.Context, full, generation string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	err := g.json(ctx, "put", full, call{
		method: http.MethodDelete, path: g.objectPath(full), query: values("generation", generation, "ifGenerationMatch", generation),
	}, nil)
	if err != nil {
		g.log.Warn("a damaged object could not be deleted", "key", full, "generation", generation, "err", err)
	}
}

func contentType(s string) string {
	if s == "" {
		return "application/octet-stream"
	}
	return s
}

// List implements blob.Bucket.
func (g *GCS) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return inOrder(prefix, &g.unordered, g.pages(ctx, prefix, ""))
}

// ListAfter implements blob.AfterLister.
func (g *GCS) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return inOrder(prefix, &g.unordered, g.pages(ctx, prefix, after))
}

// pages yields the pages of a listing, without keys up to and including after.
func (g *GCS) pages(ctx context.Context, prefix, after string) iter.Seq2[[]blob.Info, error] {
	return func(yield func([]blob.Info, error) bool) {
		query := values("maxResults", strconv.Itoa(int(g.pageSize)), "fields", "nextPageToken,items(name,size,generation,updated)", "prefix", g.prefix+prefix)
		if after != "" && !g.unordered.Load() {
			query.Set("startOffset", g.prefix+after)
		}
		for {
			page, next, err := g.page(ctx, prefix, after, query)
			if err == nil && next != "" && next == query.Get("pageToken") {
				err = blob.Errorf(blob.ErrTemporary, "list", prefix, "the store says that there is more, but not how to go on")
			}
			if !yield(page, err) || err != nil || next == "" {
				return
			}
			query.Set("pageToken", next)
		}
	}
}

func (g *GCS) page(ctx context.Context, prefix, after string, query url.Values) ([]blob.Info, string, error) {
	var answer struct {
		NextPageToken string
		Items         []resource
	}
	if err := g.json(ctx, "list", prefix, call{method: http.MethodGet, path: g.listPath(), query: query}, &answer); err != nil {
		if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusNotFound {
			// Nothing but the bucket can be missing.
			return nil, "", blob.Errorf(blob.ErrDenied, "list", prefix, "%s; check the name and the endpoint", r)
		}
		return nil, "", err
	}
	infos := make([]blob.Info, 0, len(answer.Items))
	for _, item := range answer.Items {
		key, ours := strings.CutPrefix(item.Name, g.prefix)
		if !ours || !strings.HasPrefix(key, prefix) {
			return nil, "", blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q, which is not below the prefix", item.Name)
		}
		if err := item.check("list", prefix); err != nil {
			return nil, "", err
		}
		if after == "" || key > after {
			infos = append(infos, item.info(key))
		}
	}
	return infos, answer.NextPageToken, nil
}

// unixTime reads a time of the XML API; zero if it is none.
func unixTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
