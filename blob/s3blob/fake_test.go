package s3blob

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// fake is an S3 server in this process that does what real ones don't do on
// demand. It keeps the protocol as far as this driver uses it, checks
// checksums, and lets a hook answer, or lose the answer of, any request.
type fake struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	objects  map[string]*object
	uploads  map[string]*multipart
	calls    []call
	ids      int
	hook     func(*call) bool // true: it has answered
	early    func(*call) bool // the same, before the body was read
	pageSize int
	// What it tells of objects made of parts.
	noChecksums bool // neither echoes nor tells checksums
	noMetadata  bool
	etag        func(n int) string // of the n-th thing stored; nil: MD5s
}

type object struct {
	body     []byte
	etag     string
	crc      string // as told; empty if not
	metadata string
	class    string
	parts    int
}

type multipart struct {
	key, metadata string
	sums          bool
	parts         map[int]*object
}

// call is one request.
type call struct {
	Op, Key string
	R       *http.Request
	Body    []byte
	W       http.ResponseWriter
	f       *fake
}

const fakeBucket = "bucket"

// newFake starts a fake that ends with the test.
func newFake(t testing.TB) *fake {
	f := &fake{t: t, objects: map[string]*object{}, uploads: map[string]*multipart{}, pageSize: 1000}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

// open returns a handle of the fake; query is added to the URL.
func (f *fake) open(query string, opts Options) *Bucket {
	f.t.Helper()
	return mustOpen(f.t, "s3://"+fakeBucket+"/p?region=us-east-1&endpoint="+url.QueryEscape(f.URL)+query, opts)
}

func mustOpen(t testing.TB, u string, opts Options) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), u, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// on installs a hook.
func (f *fake) on(hook func(*call) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// ops are the operations so far, in order.
func (f *fake) ops() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ops []string
	for _, c := range f.calls {
		ops = append(ops, c.Op)
	}
	return ops
}

// count is the number of calls that match.
func (f *fake) count(match func(*call) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.calls {
		if match(&f.calls[i]) {
			n++
		}
	}
	return n
}

func (f *fake) object(key string) *object {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[key]
}

func (f *fake) put(key string, o *object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = o
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	bucket, key, _ := strings.Cut(path, "/")
	c := &call{Op: opOf(r, key), Key: key, R: r, W: w, f: f}
	f.mu.Lock()
	hook, early := f.hook, f.early
	f.mu.Unlock()
	if early != nil && early(c) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || int64(len(body)) < r.ContentLength {
		return // cut off: no object
	}
	c.Body = body
	f.mu.Lock()
	f.calls = append(f.calls, *c)
	f.mu.Unlock()
	if bad := forbidden(r); bad != "" {
		f.t.Errorf("%s carries %s", c.Op, bad)
	}
	if bucket != fakeBucket {
		c.fail(404, "NoSuchBucket")
		return
	}
	if hook != nil && hook(c) {
		return
	}
	c.copy(c.do())
}

// forbidden names what this driver must never send.
func forbidden(r *http.Request) string {
	for _, h := range []string{"X-Amz-Sdk-Checksum-Algorithm", "X-Amz-Trailer", "X-Amz-Decoded-Content-Length", "X-Amz-Copy-Source"} {
		if r.Header.Get(h) != "" {
			return h
		}
	}
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return "a payload in chunks"
	}
	if r.ContentLength < 0 {
		return "a body of unknown length"
	}
	if strings.Contains(r.Header.Get("Authorization"), "accept-encoding") {
		return "a signed Accept-Encoding"
	}
	return ""
}

func opOf(r *http.Request, key string) string {
	q := r.URL.Query()
	switch {
	case key == "" && q.Has("uploads"):
		return "ListMultipartUploads"
	case key == "" && q.Has("delete"):
		return "DeleteObjects"
	case key == "":
		return "ListObjectsV2"
	case r.Method == "POST" && q.Has("uploads"):
		return "CreateMultipartUpload"
	case r.Method == "PUT" && q.Has("partNumber"):
		return "UploadPart"
	case r.Method == "POST":
		return "CompleteMultipartUpload"
	case r.Method == "GET" && q.Has("uploadId"):
		return "ListParts"
	case r.Method == "DELETE" && q.Has("uploadId"):
		return "AbortMultipartUpload"
	}
	return map[string]string{"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[r.Method]
}

// fail answers with an error document (none to HEAD).
func (c *call) fail(status int, code string) bool {
	c.W.Header().Set("Content-Type", "application/xml")
	c.W.WriteHeader(status)
	if c.R.Method != "HEAD" {
		fmt.Fprintf(c.W, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>the fake says %s</Message></Error>", code, code)
	}
	return true
}

// do carries the request out and returns the answer, unsent.
func (c *call) do() *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	inner := *c
	inner.W = rec
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	inner.carryOut()
	return rec
}

// lose carries the request out and drops the connection.
func (c *call) lose() bool {
	c.do()
	return c.drop()
}

func (c *call) drop() bool {
	panic(http.ErrAbortHandler)
}

func (c *call) copy(rec *httptest.ResponseRecorder) bool {
	maps.Copy(c.W.Header(), rec.Header())
	c.W.WriteHeader(rec.Code)
	c.W.Write(rec.Body.Bytes())
	return true
}

func (c *call) carryOut() {
	f, q := c.f, c.R.URL.Query()
	id := q.Get("uploadId")
	up := f.uploads[id]
	if id != "" && (up == nil || up.key != c.Key) {
		c.fail(404, "NoSuchUpload")
		return
	}
	switch c.Op {
	case "PutObject":
		if o := c.store(); o != nil {
			f.objects[c.Key] = o
		}
	case "GetObject", "HeadObject":
		c.get(f.objects[c.Key])
	case "DeleteObject":
		delete(f.objects, c.Key)
		c.W.WriteHeader(204)
	case "DeleteObjects":
		c.deleteObjects()
	case "ListObjectsV2":
		c.list(q.Get("prefix"), max(q.Get("continuation-token"), q.Get("start-after")), q.Get("encoding-type") == "url")
	case "CreateMultipartUpload":
		f.ids++
		id := fmt.Sprintf("upload-%d", f.ids)
		f.uploads[id] = &multipart{
			key: c.Key, metadata: c.R.Header.Get("X-Amz-Meta-Ckptsync-Upload"), parts: map[int]*object{},
			sums: c.R.Header.Get("X-Amz-Checksum-Algorithm") == "CRC32C",
		}
		c.xml("InitiateMultipartUploadResult", "<UploadId>"+id+"</UploadId>")
	case "UploadPart":
		n, _ := strconv.Atoi(q.Get("partNumber"))
		if o := c.store(); o != nil {
			up.parts[n] = o
		}
	case "ListParts":
		c.listParts(up, q.Get("part-number-marker"))
	case "CompleteMultipartUpload":
		c.complete(id, up)
	case "AbortMultipartUpload":
		delete(f.uploads, id)
		c.W.WriteHeader(204)
	case "ListMultipartUploads":
		var b strings.Builder
		for _, id := range slices.Sorted(maps.Keys(f.uploads)) {
			if strings.HasPrefix(f.uploads[id].key, q.Get("prefix")) {
				fmt.Fprintf(&b, "<Upload><Key>%s</Key><UploadId>%s</UploadId></Upload>", f.uploads[id].key, id)
			}
		}
		c.xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>"+b.String())
	}
}

func (c *call) xml(root, inner string) {
	c.W.Header().Set("Content-Type", "application/xml")
	fmt.Fprintf(c.W, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><%s>%s</%s>", root, inner, root)
}

// store checks the body of a PUT and answers it.
func (c *call) store() *object {
	in, h := c.R.Header, c.W.Header()
	if c.R.Header.Get("If-None-Match") == "*" && c.f.objects[c.Key] != nil {
		c.fail(412, "PreconditionFailed")
		return nil
	}
	if sum := in.Get("Content-Md5"); sum != "" && sum != md5Of(c.Body) {
		c.fail(400, "BadDigest")
		return nil
	}
	crc := in.Get("X-Amz-Checksum-Crc32c")
	if !c.f.noChecksums && crc != "" {
		if crc != encodeCRC(blob.CRC32C(c.Body)) {
			c.fail(400, "XAmzContentChecksumMismatch")
			return nil
		}
		h.Set("X-Amz-Checksum-Crc32c", crc)
	}
	if c.f.noChecksums {
		crc = ""
	}
	o := &object{body: c.Body, crc: crc, etag: c.f.newETag(fmt.Sprintf("%x", md5.Sum(c.Body)))}
	h.Set("ETag", o.etag)
	return o
}

func (f *fake) newETag(sum string) string {
	f.ids++
	if f.etag != nil {
		return `"` + f.etag(f.ids) + `"`
	}
	return `"` + sum + `"`
}

func md5Of(p []byte) string {
	sum := md5.Sum(p)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (c *call) get(o *object) {
	if o == nil {
		c.fail(404, "NoSuchKey")
		return
	}
	if o.class != "" && c.Op == "GetObject" {
		c.fail(403, "InvalidObjectState")
		return
	}
	h := c.W.Header()
	h.Set("ETag", o.etag)
	h.Set("Last-Modified", time.Unix(1_700_000_000, 0).UTC().Format(http.TimeFormat))
	if o.metadata != "" && !c.f.noMetadata {
		h.Set("X-Amz-Meta-Ckptsync-Upload", o.metadata)
	}
	if c.R.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" && o.crc != "" {
		h.Set("X-Amz-Checksum-Crc32c", o.crc)
	}
	body, status := o.body, 200
	if r := strings.TrimPrefix(c.R.Header.Get("Range"), "bytes="); r != "" {
		first, last, _ := strings.Cut(r, "-")
		from, _ := strconv.ParseInt(first, 10, 64)
		to := int64(len(body)) - 1
		if last != "" {
			n, _ := strconv.ParseInt(last, 10, 64)
			to = min(n, to)
		}
		if from >= int64(len(body)) {
			c.fail(416, "InvalidRange")
			return
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(body)))
		body, status = body[from:to+1], 206
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.W.WriteHeader(status)
	if c.Op == "GetObject" {
		c.W.Write(body)
	}
}

func (c *call) list(prefix, token string, encode bool) {
	var keys []string
	for k := range c.f.objects {
		if strings.HasPrefix(k, prefix) && k > token {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	if len(keys) > c.f.pageSize {
		keys = keys[:c.f.pageSize]
		fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", escape(keys[len(keys)-1]))
	} else {
		b.WriteString("<IsTruncated>false</IsTruncated>")
	}
	if encode {
		b.WriteString("<EncodingType>url</EncodingType>")
	}
	for _, k := range keys {
		name := escape(k)
		if encode {
			name = strings.ReplaceAll(url.QueryEscape(k), "%2F", "/")
		} else if strings.ContainsFunc(k, func(r rune) bool { return r < 0x20 }) {
			name = k // as stores do: no valid XML
		}
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>%d</Size><ETag>%s</ETag></Contents>", name, len(c.f.objects[k].body), escape(c.f.objects[k].etag))
	}
	c.xml("ListBucketResult", b.String())
}

func escape(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s))
	return b.String()
}

func (c *call) listParts(up *multipart, marker string) {
	after, _ := strconv.Atoi(marker)
	var b strings.Builder
	numbers := slices.Sorted(maps.Keys(up.parts))
	numbers = slices.DeleteFunc(numbers, func(n int) bool { return n <= after })
	if len(numbers) > c.f.pageSize {
		numbers = numbers[:c.f.pageSize]
		fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextPartNumberMarker>%d</NextPartNumberMarker>", numbers[len(numbers)-1])
	}
	for _, n := range numbers {
		p := up.parts[n]
		fmt.Fprintf(&b, "<Part><PartNumber>%d</PartNumber><Size>%d</Size><ETag>%s</ETag>", n, len(p.body), escape(p.etag))
		if p.crc != "" {
			fmt.Fprintf(&b, "<ChecksumCRC32C>%s</ChecksumCRC32C>", p.crc)
		}
		b.WriteString("</Part>")
	}
	c.xml("ListPartsResult", b.String())
}

// completion is the body of CompleteMultipartUpload.
type completion struct {
	Parts []struct {
		PartNumber     int
		ETag           string
		ChecksumCRC32C string
	} `xml:"Part"`
}

func (c *call) complete(id string, up *multipart) {
	var in completion
	if err := xml.Unmarshal(c.Body, &in); err != nil || len(in.Parts) == 0 {
		c.fail(400, "MalformedXML")
		return
	}
	var body, sums []byte
	hash := md5.New()
	for _, p := range in.Parts {
		got := up.parts[p.PartNumber]
		if got == nil || got.etag != p.ETag || (p.ChecksumCRC32C != "" && got.crc != "" && got.crc != p.ChecksumCRC32C) {
			c.fail(400, "InvalidPart")
			return
		}
		if up.sums && !c.f.noChecksums && p.ChecksumCRC32C == "" {
			c.fail(400, "InvalidRequest")
			return
		}
		body = append(body, got.body...)
		sum := md5.Sum(got.body)
		hash.Write(sum[:])
		sums = append(sums, decodeBase64(encodeCRC(blob.CRC32C(got.body)))...)
	}
	o := &object{body: body, metadata: up.metadata, parts: len(in.Parts), etag: c.f.newETag(fmt.Sprintf("%x-%d", hash.Sum(nil), len(in.Parts)))}
	extra := ""
	if up.sums && !c.f.noChecksums {
		o.crc = fmt.Sprintf("%s-%d", encodeCRC(blob.CRC32C(sums)), len(in.Parts))
		extra = "<ChecksumCRC32C>" + o.crc + "</ChecksumCRC32C>"
	}
	c.f.objects[up.key] = o
	delete(c.f.uploads, id)
	c.xml("CompleteMultipartUploadResult", "<ETag>"+escape(o.etag)+"</ETag>"+extra)
}

// deletion is the body of DeleteObjects.
type deletion struct {
	Object []struct{ Key string }
	Quiet  bool
}

func (c *call) deleteObjects() {
	crc := c.R.Header.Get("X-Amz-Checksum-Crc32c")
	if c.R.Header.Get("Content-Md5") != md5Of(c.Body) && crc != encodeCRC(blob.CRC32C(c.Body)) {
		c.fail(400, "InvalidRequest")
		return
	}
	var in deletion
	if err := xml.Unmarshal(c.Body, &in); err != nil || len(in.Object) == 0 || len(in.Object) > 1000 {
		c.fail(400, "MalformedXML")
		return
	}
	var b strings.Builder
	for _, o := range in.Object {
		delete(c.f.objects, o.Key)
		if !in.Quiet {
			fmt.Fprintf(&b, "<Deleted><Key>%s</Key></Deleted>", escape(o.Key))
		}
	}
	c.xml("DeleteResult", b.String())
}

func decodeBase64(s string) []byte {
	b, _ := base64.StdEncoding.DecodeString(s)
	return b
}

// counting is a source that counts the bytes read of it.
type counting struct {
	blob.Bytes
	mu   sync.Mutex
	read int64
}

func (s *counting) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Bytes.ReadAt(p, off)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read += int64(n)
	return n, err
}

// content is n bytes that differ from place to place.
func content(n int) blob.Bytes {
	b := make([]byte, n)
	x := uint32(n)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func wantClass(t testing.TB, err, class error) {
	t.Helper()
	if got := blob.Class(err); got != class {
		t.Fatalf("error %v is of the class %v, want %v", err, got, class)
	}
}

// sendParts sends body as an upload in parts, without completing it.
func sendParts(t testing.TB, b blob.Bucket, key string, body blob.Bytes) (blob.Upload, []blob.Part) {
	t.Helper()
	opts := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), key, "", opts)
	if err != nil {
		t.Fatal(err)
	}
	var parts []blob.Part
	for n := 1; n <= opts.Parts(); n++ {
		p := body[int64(n-1)*opts.PartSize:][:opts.PartLen(n)]
		part, err := u.PutPart(t.Context(), n, p, blob.CRC32C(p))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	return u, parts
}

// wantStored fails unless the fake holds body under the key of the handle.
func (f *fake) wantStored(key string, body []byte) {
	f.t.Helper()
	o := f.object("p/" + key)
	if o == nil || !bytes.Equal(o.body, body) {
		f.t.Fatalf("the store does not hold the %d bytes of %s", len(body), key)
	}
}

// newTLS serves the fake over https, HTTP/2 offered.
func newTLS(f *fake) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	return s
}

// certificate writes that of the fake to a file.
func certificate(t testing.TB, f *fake) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
