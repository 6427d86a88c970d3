package cdkblob

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// call is one request to GCS.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	header map[string]string
	body   io.Reader // nil: none
	length int64     // bytes of the body
}

// values makes the parameters of a call of names and values.
func values(nv ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(nv); i += 2 {
		v.Set(nv[i], nv[i+1])
	}
	return v
}

// encodeQuery writes parameters; one without a value stands for itself.
func encodeQuery(v url.Values) string {
	q := strings.ReplaceAll(v.Encode()+"&", "=&", "&")
	return strings.TrimSuffix(q, "&")
}

// objectPath is the path of an object in the JSON API.
func (g *GCS) objectPath(full string) string { return g.listPath() + "/" + url.PathEscape(full) }

func (g *GCS) listPath() string { return "/storage/v1/b/" + url.PathEscape(g.bucket) + "/o" }

// xmlPath is the path of an object in the XML API.
func (g *GCS) xmlPath(full string) string {
	return "/" + url.PathEscape(g.bucket) + "/" + strings.ReplaceAll(url.PathEscape(full), "%2F", "/")
}

// do sends a request and returns a good answer, whose body the caller closes.
// Every other is a *blob.Error; if the store gave it, its cause is a *refusal.
func (g *GCS) do(ctx context.Context, op, key string, c call) (*http.Response, error) {
	u := g.endpoint + c.path
	if q := encodeQuery(c.query); q != "" {
		u += "?" + q
	}
	req, err := http.NewRequestWithContext(ctx, c.method, u, c.body)
	if err != nil {
		return nil, blob.Errorf(blob.ErrUnsupported, op, key, "%s", errors.Unwrap(err))
	}
	if c.body != nil {
		req.ContentLength = c.length
	}
	if c.body == nil && c.method != http.MethodGet {
		req.Body = http.NoBody // with Content-Length: 0
	}
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", "ckptsync")
	epoch, err := g.tokens.authorize(ctx, req, op, key)
	if err != nil {
		return nil, err
	}
	if g.payer != "" {
		req.Header.Set("x-goog-user-project", g.payer)
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return nil, noAnswer(ctx, op, key, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	r := readRefusal(resp)
	kind := r.class()
	if r.status == http.StatusUnauthorized && g.tokens.renew(epoch) {
		kind = blob.ErrTemporary // the next request has a new token
	}
	return nil, &blob.Error{Op: op, Key: key, Kind: kind, Err: r}
}

// maxAnswer is the largest answer, in bytes, that is not an object.
const maxAnswer = 64 << 20

// json sends a request and decodes the answer, unless into is nil.
func (g *GCS) json(ctx context.Context, op, key string, c call, into any) error {
	return g.decode(ctx, op, key, c, into, func(data []byte) error { return json.Unmarshal(data, into) })
}

// xml is json for the XML API.
func (g *GCS) xml(ctx context.Context, op, key string, c call, into any) error {
	return g.decode(ctx, op, key, c, into, func(data []byte) error { return xml.Unmarshal(data, into) })
}

func (g *GCS) decode(ctx context.Context, op, key string, c call, into any, unmarshal func([]byte) error) error {
	resp, err := g.do(ctx, op, key, c)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return noAnswer(ctx, op, key, err)
	}
	if into == nil {
		return nil
	}
	if err := unmarshal(data); err != nil {
		return blob.Errorf(blob.ErrTemporary, op, key, "the store's answer is no answer of GCS (%s): check the endpoint", err)
	}
	return nil
}

// refusal is what GCS said to a request that failed.
type refusal struct {
	status  int
	code    string // of the JSON or the XML API
	message string
}

// readRefusal reads the body of an answer, which may be JSON, XML or text.
func readRefusal(resp *http.Response) *refusal {
	r := &refusal{status: resp.StatusCode}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return r
	}
	data = bytes.TrimSpace(data)
	var inJSON struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	var inXML struct{ Code, Message, Details string }
	switch {
	case json.Unmarshal(data, &inJSON) == nil:
		r.message = inJSON.Error.Message
		if len(inJSON.Error.Errors) > 0 {
			r.code = inJSON.Error.Errors[0].Reason
		}
	case xml.Unmarshal(data, &inXML) == nil && inXML.Code != "":
		r.code, r.message = inXML.Code, strings.TrimSpace(inXML.Message+" "+inXML.Details)
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/"), len(data) < 200:
		r.message = string(data[:min(len(data), 200)])
	}
	return r
}

// gcsClass has the classes of the codes whose status does not say it.
var gcsClass = map[string]error{
	"NoSuchUpload": blob.ErrNotExist, "NoSuchKey": blob.ErrNotExist, "NoSuchBucket": blob.ErrDenied,
	"BadDigest": blob.ErrCorrupt, "InvalidPart": blob.ErrCorrupt, "InvalidPartOrder": blob.ErrCorrupt, "EntityTooSmall": blob.ErrCorrupt,
	"SlowDown": blob.ErrThrottled, "rateLimitExceeded": blob.ErrThrottled, "userRateLimitExceeded": blob.ErrThrottled,
	"quotaExceeded": blob.ErrThrottled, "dailyLimitExceeded": blob.ErrThrottled,
	"UserProjectInvalid": blob.ErrDenied, "InvalidBucketName": blob.ErrDenied,
}

// class says to which class of package blob the answer belongs.
func (r *refusal) class() error {
	if c, ok := gcsClass[r.code]; ok {
		return c
	}
	switch {
	case r.requesterPays():
		return blob.ErrDenied
	case r.status == http.StatusBadRequest && strings.Contains(r.message, "doesn't match calculated"):
		return blob.ErrCorrupt // the checksum that was sent
	case r.status == http.StatusNotFound:
		if r.noBucket() {
			return blob.ErrDenied
		}
		return blob.ErrNotExist // see orNoBucket
	}
	return blob.HTTPClass(r.status)
}

// requesterPays reports whether the bucket wants to know who pays.
func (r *refusal) requesterPays() bool {
	return r.status == http.StatusBadRequest && (r.code == "UserProjectMissing" || strings.Contains(r.message, "requester pays"))
}

// noBucket reports whether it was the bucket that was not found.
func (r *refusal) noBucket() bool {
	return r.status == http.StatusNotFound && (r.code == "NoSuchBucket" || strings.Contains(r.message, "bucket does not exist"))
}

// noObject reports whether it was surely an object or an upload that was not.
func (r *refusal) noObject() bool {
	return r.code == "NoSuchKey" || r.code == "NoSuchUpload" || strings.Contains(r.message, "No such object")
}

// Error implements error.
func (r *refusal) Error() string {
	s := fmt.Sprintf("the store answered %d", r.status)
	if r.code != "" {
		s += " " + r.code
	}
	if r.message != "" && r.message != r.code {
		s += ": " + r.message
	}
	switch {
	case r.noBucket():
		s += "; the bucket does not exist: check its name"
	case r.status == http.StatusUnauthorized:
		s += "; check the credentials (GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`)"
	case r.requesterPays():
		s += "; the requester pays: set user_project="
	}
	return s
}

// statusOf is the status of the answer that an error came from, or 0.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status
	}
	return 0
}

// orNoBucket looks closer at an "absent" of a server that does not say what is:
// whatever is asked for in a bucket that does not exist would look absent, and
// so like a run without commits.
func (g *GCS) orNoBucket(ctx context.Context, err error) error {
	r, ok := errors.AsType[*refusal](err)
	if !ok || !errors.Is(err, blob.ErrNotExist) || r.noObject() {
		return err
	}
	own, _ := errors.AsType[*blob.Error](err)
	lerr := g.json(ctx, own.Op, own.Key, call{method: http.MethodGet, path: g.listPath(), query: values("maxResults", "1", "prefix", g.prefix)}, new(struct{}))
	if errors.Is(lerr, blob.ErrNotExist) {
		return blob.Errorf(blob.ErrDenied, own.Op, own.Key, "%s; nor is the bucket there: check its name and the endpoint", r)
	}
	if lerr != nil {
		return lerr
	}
	return err
}

// resource is what the JSON API tells of an object.
type resource struct {
	Name       string
	Size       string
	Generation string
	Updated    time.Time
	CRC32C     string            `json:"crc32c"`
	Metadata   map[string]string `json:"metadata"`
}

const resourceFields = "name,size,generation,updated,crc32c,metadata"

// check returns an error unless the resource is one.
func (r *resource) check(op, key string) error {
	if _, err := strconv.ParseUint(r.Size, 10, 63); err != nil || r.Generation == "" {
		return blob.Errorf(blob.ErrTemporary, op, key, "the store does not say the size and the generation: check the endpoint")
	}
	return nil
}

func (r *resource) size() int64 {
	n, _ := strconv.ParseInt(r.Size, 10, 64) // checked
	return n
}

func (r *resource) info(key string) blob.Info {
	return blob.Info{Key: key, Size: r.size(), ModTime: r.Updated, ETag: r.Generation}
}

// encodeCRC writes a checksum as GCS does.
func encodeCRC(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// headerCRC takes the CRC32C out of the headers x-goog-hash of an answer; empty
// if there is none.
func headerCRC(h http.Header) string {
	for _, line := range h.Values("X-Goog-Hash") {
		for field := range strings.SplitSeq(line, ",") {
			if sum, ok := strings.CutPrefix(strings.TrimSpace(field), "crc32c="); ok {
				return sum
			}
		}
	}
	return ""
}
