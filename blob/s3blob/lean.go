package s3blob

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// The SDK works out for each request where it goes and what it carries. For a
// small object that takes more processor time than to send it, and the result is
// the same for all objects of a bucket. So a request that the store took is kept
// as a sample, and small objects are sent with requests made after it. After any
// failure the SDK makes the next one: whatever changed is its to find out.

// sample is a request for an object that the store took. It is not changed.
type sample struct {
	base            url.URL     // without the path
	path            string      // escaped, up to the object's key
	header          http.Header // what every object carries
	region, service string      // that it was signed for
	ahead           time.Duration
}

// perObject are the headers that are not the same for all objects.
var perObject = []string{
	"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256", "Amz-Sdk-Invocation-Id", "Amz-Sdk-Request",
	"Content-Length", "Content-Type", "Content-Md5", checksumHeader, "If-None-Match", "Expect",
}

const (
	checksumHeader  = "X-Amz-Checksum-Crc32c"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	amzDate         = "20060102T150405Z"
	// skewed is how far from the store's a clock must be to be corrected.
	skewed = 4 * time.Minute
	// errorDocument bounds what is read of an answer, in bytes.
	errorDocument = 64 << 10
)

// sampleOf makes a sample of the request for the object full that was signed
// after began. It is nil if other requests cannot be made after that one, as it
// is signed in another way or not at all.
func sampleOf(meta middleware.Metadata, full string, began time.Time) *sample {
	raw, ok := awsmiddleware.GetRawResponse(meta).(*smithyhttp.Response)
	if !ok || raw.Response == nil || raw.Request == nil {
		return nil
	}
	req := raw.Request
	scope, signed := strings.CutPrefix(req.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=")
	scope, _, _ = strings.Cut(scope, ",")
	fields := strings.Split(scope, "/") // key id, date, region, service, aws4_request
	n := len(fields)
	path, named := strings.CutSuffix(req.URL.EscapedPath(), "/"+httpbinding.EscapePath(full, false))
	if !signed || !named || n < 5 || req.Header.Get("X-Amz-S3session-Token") != "" {
		return nil
	}
	s := &sample{base: *req.URL, path: path + "/", header: req.Header.Clone(), region: fields[n-3], service: fields[n-2]}
	s.base.Path, s.base.RawPath = "", ""
	for _, h := range perObject {
		s.header.Del(h)
	}
	if at, err := time.Parse(amzDate, req.Header.Get("X-Amz-Date")); err == nil {
		s.ahead = skewOf(at, began)
	}
	return s
}

// skewOf is what to add to this host's time to have the store's.
func skewOf(theirs, ours time.Time) time.Duration {
	if d := theirs.Sub(ours); d.Abs() > skewed {
		return d
	}
	return 0
}

// request is one for another object. What in says of the bucket is in s already.
func (s *sample) request(ctx context.Context, in *s3.PutObjectInput, body *body) (*http.Request, error) {
	u := s.base
	u.RawPath = s.path + httpbinding.EscapePath(*in.Key, false)
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, err
	}
	req := &http.Request{
		Method: http.MethodPut, URL: &u, Host: u.Host, Header: s.header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: http.NoBody, ContentLength: body.size,
	}
	if body.size > 0 {
		req.Body = io.NopCloser(body)
	}
	for h, v := range map[string]*string{"Content-Type": in.ContentType, "Content-Md5": in.ContentMD5, checksumHeader: in.ChecksumCRC32C, "If-None-Match": in.IfNoneMatch} {
		if v != nil {
			req.Header.Set(h, *v)
		}
	}
	req.Header.Set("X-Amz-Content-Sha256", unsignedPayload)
	return req.WithContext(context.WithValue(ctx, bodyKey{}, body)), nil
}

// lean reports whether a body may be sent in mode m with a request made after a
// sample: a small one whose hash is not signed.
func (b *Bucket) lean(p *payload, m mode) *sample {
	if p.size > smallBody || m == none && !b.secure {
		return nil
	}
	return b.sample.Load()
}

// putLike sends one object with a request made after s. Its errors are like the
// SDK's.
func (b *Bucket) putLike(ctx context.Context, s *sample, in *s3.PutObjectInput, body *body) (stored, error) {
	out, err := b.sendLike(ctx, s, in, body)
	if err != nil {
		b.sample.CompareAndSwap(s, s.after(err))
	}
	return out, err
}

func (b *Bucket) sendLike(ctx context.Context, s *sample, in *s3.PutObjectInput, body *body) (out stored, err error) {
	creds, err := b.creds.Retrieve(ctx)
	if err != nil {
		return out, err
	}
	req, err := s.request(ctx, in, body)
	if err != nil {
		return out, err
	}
	err = b.signer.SignHTTP(ctx, creds, req, unsignedPayload, s.service, s.region, time.Now().Add(s.ahead))
	if err != nil {
		return out, err
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return out, &smithyhttp.RequestSendError{Err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, errorDocument))
	if err != nil {
		return out, &smithyhttp.RequestSendError{Err: err}
	}
	return stored{etag: resp.Header.Get("Etag"), crc: optional(resp.Header.Get(checksumHeader))}, errorOf(resp, text)
}

// errorOf reads an answer as the SDK does: the error document, else the status.
// Some stores answer 200 before they know how it ends.
func errorOf(resp *http.Response, text []byte) error {
	var doc struct {
		XMLName xml.Name
		Code    string `xml:"Code"`
		Message string `xml:"Message"`
	}
	err := xml.Unmarshal(text, &doc)
	switch good := resp.StatusCode >= 200 && resp.StatusCode < 300; {
	case good && doc.XMLName.Local != "Error":
		return nil
	case good:
		resp.StatusCode = http.StatusInternalServerError
	case !good && doc.Code+doc.Message == "" && (err == nil || errors.Is(err, io.EOF)):
		doc.Message = http.StatusText(resp.StatusCode)
		doc.Code = strings.ReplaceAll(doc.Message, " ", "")
	}
	if doc.Code+doc.Message != "" || err == nil {
		err = &smithy.GenericAPIError{Code: doc.Code, Message: doc.Message}
	}
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: resp}, Err: err}
}

// after is the sample to go on with after err: none, unless it is only that a
// clock is wrong, and the store tells the time.
func (s *sample) after(err error) *sample {
	resp, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok || answerOf(err).code != "RequestTimeTooSkewed" {
		return nil
	}
	theirs, perr := http.ParseTime(resp.Response.Header.Get("Date"))
	ahead := skewOf(theirs, time.Now())
	if perr != nil || ahead == s.ahead {
		return nil
	}
	other := *s
	other.ahead = ahead
	return &other
}

// newSigner returns one that takes paths as they are.
func newSigner() *v4.Signer {
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

// stored is what a store says of an object that it took.
type stored struct {
	etag string
	crc  *string // base64; nil if it did not say
}
