package cdkblob

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// fake is a Google Cloud Storage that refuses whatever the documentation does
// not allow, and that breaks what fault tells it to.
type fake struct {
	*httptest.Server

	mu      sync.Mutex
	buckets map[string]map[string]*fakeObject
	uploads map[string]*fakeUpload
	last    int64 // generation
	page    int
	reqs    []string // METHOD path?query

	fault func(r *http.Request) fault
	// gap is how long an object may not be written again: 429.
	gap time.Duration
	// lax: it does not check checksums.
	lax bool
}

type fakeObject struct {
	data       []byte
	generation int64
	written    time.Time
	meta       map[string]string
}

type fakeUpload struct {
	bucket, name string
	meta         map[string]string
	parts        map[int][]byte
	began        time.Time
}

// fault is what happens to a request. The zero value is none.
type fault struct {
	status int    // answer this, and do nothing
	body   string // with this
	lose   bool   // do it, and answer nothing
	cut    int    // do it, and hang up after so many bytes of the answer; 0: all
	edit   func(http.Header, []byte) []byte
}

func newFake(t *testing.T) *fake {
	f := &fake{buckets: map[string]map[string]*fakeObject{}, uploads: map[string]*fakeUpload{}, last: 1_700_000_000_000_000, page: 1000}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// open makes a bucket and opens it.
func (f *fake) open(t *testing.T, name string) *GCS {
	t.Helper()
	f.mu.Lock()
	if f.buckets[name] == nil {
		f.buckets[name] = map[string]*fakeObject{}
	}
	f.mu.Unlock()
	return f.openAny(t, name)
}

func (f *fake) openAny(t *testing.T, name string) *GCS {
	t.Helper()
	u := url.URL{Scheme: "gs", Host: name, Path: "/" + prefix, RawQuery: url.Values{"endpoint": {f.URL}}.Encode()}
	g, err := OpenGCS(t.Context(), u.String(), Options{Stall: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// breakWith sets what happens to requests from now on.
func (f *fake) breakWith(fn func(r *http.Request) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.reqs = fn, nil
}

// requests are those since breakWith that begin so.
func (f *fake) requests(method, path string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.reqs {
		if strings.HasPrefix(r, method+" ") && strings.Contains(r, path) {
			n++
		}
	}
	return n
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.reqs = append(f.reqs, r.Method+" "+r.URL.RequestURI())
	fn := f.fault
	f.mu.Unlock()
	var broken fault
	if fn != nil {
		broken = fn(r)
	}
	if broken.status != 0 {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(broken.status)
		io.WriteString(w, broken.body)
		return
	}
	rec := httptest.NewRecorder()
	f.serve(rec, r)
	if broken.lose {
		panic(http.ErrAbortHandler)
	}
	body := rec.Body.Bytes()
	if broken.edit != nil {
		body = broken.edit(rec.Header(), body)
	}
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	if rec.Code != http.StatusNoContent {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(rec.Code)
	if broken.cut > 0 {
		w.Write(body[:min(len(body), broken.cut)])
		panic(http.ErrAbortHandler)
	}
	w.Write(body)
}

func refuse(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%d,"message":%q,"errors":[{"reason":%q}]}}`, status, message, reason)
}

func refuseXML(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

// serve does what a request asks for. Parameters that are not known are refused.
func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.ContentLength < 0 || int64(len(body)) != r.ContentLength {
		refuse(w, http.StatusBadRequest, "badRequest", "the body is cut off")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := r.URL.EscapedPath()
	switch {
	case strings.HasPrefix(p, "/storage/v1/b/"):
		f.serveJSON(w, r, strings.TrimPrefix(p, "/storage/v1/b/"))
	case strings.HasPrefix(p, "/upload/storage/v1/b/"):
		f.insert(w, r, strings.TrimSuffix(strings.TrimPrefix(p, "/upload/storage/v1/b/"), "/o"), body)
	default:
		f.serveXML(w, r, strings.TrimPrefix(p, "/"), body)
	}
}

// known refuses parameters that are not in the list.
func known(w http.ResponseWriter, r *http.Request, names ...string) bool {
	for name := range r.URL.Query() {
		if !slices.Contains(names, name) {
			refuse(w, http.StatusBadRequest, "invalidParameter", "unknown parameter "+name)
			return false
		}
	}
	return true
}

func (f *fake) serveJSON(w http.ResponseWriter, r *http.Request, path string) {
	bucket, rest, _ := strings.Cut(path, "/o")
	objects := f.buckets[bucket]
	if objects == nil {
		refuse(w, http.StatusNotFound, "notFound", "The specified bucket does not exist.")
		return
	}
	if rest == "" {
		f.list(w, r, objects)
		return
	}
	name, err := url.PathUnescape(strings.TrimPrefix(rest, "/"))
	if err != nil || !known(w, r, "alt", "fields", "generation", "ifGenerationMatch") {
		return
	}
	o := objects[name]
	q := r.URL.Query()
	if o == nil || q.Get("generation") != "" && q.Get("generation") != strconv.FormatInt(o.generation, 10) {
		refuse(w, http.StatusNotFound, "notFound", "No such object: "+bucket+"/"+name)
		return
	}
	switch {
	case r.Method == http.MethodDelete:
		delete(objects, name)
		w.WriteHeader(http.StatusNoContent)
	case q.Get("alt") == "media":
		w.Header().Set("X-Goog-Generation", strconv.FormatInt(o.generation, 10))
		w.Header().Set("X-Goog-Hash", "crc32c="+encodeCRC(blob.CRC32C(o.data)))
		http.ServeContent(w, r, "", o.written, bytes.NewReader(o.data))
	default:
		json.NewEncoder(w).Encode(o.resource(name))
	}
}

func (o *fakeObject) resource(name string) map[string]any {
	return map[string]any{
		"name": name, "size": strconv.Itoa(len(o.data)), "generation": strconv.FormatInt(o.generation, 10),
		"updated": o.written.UTC().Format(time.RFC3339Nano), "crc32c": encodeCRC(blob.CRC32C(o.data)), "metadata": o.meta,
	}
}

func (f *fake) list(w http.ResponseWriter, r *http.Request, objects map[string]*fakeObject) {
	if !known(w, r, "maxResults", "fields", "prefix", "pageToken", "startOffset") {
		return
	}
	q := r.URL.Query()
	var names []string
	for name := range objects {
		if strings.HasPrefix(name, q.Get("prefix")) && name >= q.Get("startOffset") && name > q.Get("pageToken") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	answer := map[string]any{}
	if len(names) > f.page {
		names = names[:f.page]
		answer["nextPageToken"] = names[len(names)-1]
	}
	var items []any
	for _, name := range names {
		items = append(items, objects[name].resource(name))
	}
	answer["items"] = items
	json.NewEncoder(w).Encode(answer)
}

// insert is an upload of one request.
func (f *fake) insert(w http.ResponseWriter, r *http.Request, bucket string, body []byte) {
	if !known(w, r, "uploadType", "fields", "ifGenerationMatch", "kmsKeyName") {
		return
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || r.URL.Query().Get("uploadType") != "multipart" {
		refuse(w, http.StatusBadRequest, "badRequest", "not multipart")
		return
	}
	mr := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	var meta struct{ Name, CRC32C string }
	var data []byte
	for i := range 2 {
		part, err := mr.NextPart()
		if err != nil {
			refuse(w, http.StatusBadRequest, "badRequest", "malformed body")
			return
		}
		content, _ := io.ReadAll(part)
		if i == 0 {
			err = json.Unmarshal(content, &meta)
		} else {
			data = content
		}
		if err != nil || meta.Name == "" {
			refuse(w, http.StatusBadRequest, "badRequest", "malformed metadata")
			return
		}
	}
	objects := f.buckets[bucket]
	switch old := objects[meta.Name]; {
	case objects == nil:
		refuse(w, http.StatusNotFound, "notFound", "The specified bucket does not exist.")
	case !f.lax && meta.CRC32C != encodeCRC(blob.CRC32C(data)):
		refuse(w, http.StatusBadRequest, "invalid", `Provided CRC32C "`+meta.CRC32C+`" doesn't match calculated CRC32C.`)
	case old != nil && time.Since(old.written) < f.gap:
		refuse(w, http.StatusTooManyRequests, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations.")
	case old != nil && r.URL.Query().Get("ifGenerationMatch") == "0":
		refuse(w, http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	default:
		o := f.store(objects, meta.Name, data, nil)
		json.NewEncoder(w).Encode(o.resource(meta.Name))
	}
}

func (f *fake) store(objects map[string]*fakeObject, name string, data []byte, meta map[string]string) *fakeObject {
	f.last++
	o := &fakeObject{data: data, generation: f.last, written: time.Now(), meta: meta}
	objects[name] = o
	return o
}

func (f *fake) serveXML(w http.ResponseWriter, r *http.Request, path string, body []byte) {
	bucket, escaped, _ := strings.Cut(path, "/")
	name, err := url.PathUnescape(escaped)
	q := r.URL.Query()
	switch {
	case err != nil || !known(w, r, "uploads", "uploadId", "partNumber", "max-parts", "part-number-marker", "max-uploads", "prefix", "key-marker", "upload-id-marker"):
	case f.buckets[bucket] == nil:
		refuseXML(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
	case q.Has("uploads") && name == "" && r.Method == http.MethodGet:
		f.listUploads(w, q, bucket)
	case q.Has("uploads") && r.Method == http.MethodPost:
		f.last++
		up := &fakeUpload{bucket: bucket, name: name, parts: map[int][]byte{}, began: time.Now(), meta: map[string]string{}}
		for k := range r.Header {
			if m, ok := strings.CutPrefix(k, "X-Goog-Meta-"); ok {
				up.meta[strings.ToLower(m)] = r.Header.Get(k)
			}
		}
		id := fmt.Sprintf("ABPnzm%d", f.last)
		f.uploads[id] = up
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>%s</Bucket><UploadId>%s</UploadId></InitiateMultipartUploadResult>", bucket, id)
	default:
		up := f.uploads[q.Get("uploadId")]
		if up == nil || up.bucket != bucket || up.name != name {
			refuseXML(w, http.StatusNotFound, "NoSuchUpload", "The requested upload was not found.")
			return
		}
		f.serveUpload(w, r, q, up, body)
	}
}

func partETag(data []byte) string {
	return fmt.Sprintf("%x", blob.CRC32C(append([]byte("etag"), data...)))
}

func (f *fake) serveUpload(w http.ResponseWriter, r *http.Request, q url.Values, up *fakeUpload, body []byte) {
	switch r.Method {
	case http.MethodPut:
		n, err := strconv.Atoi(q.Get("partNumber"))
		sum := encodeCRC(blob.CRC32C(body))
		switch {
		case err != nil || n < 1 || n > 10_000:
			refuseXML(w, http.StatusBadRequest, "InvalidArgument", "part number")
		case !f.lax && r.Header.Get("X-Goog-Hash") != "crc32c="+sum:
			refuseXML(w, http.StatusBadRequest, "BadDigest", "The CRC32C you specified did not match what was received.")
		default:
			up.parts[n] = body
			w.Header().Set("ETag", `"`+partETag(body)+`"`)
			w.Header().Set("X-Goog-Hash", "crc32c="+sum)
		}
	case http.MethodGet:
		f.listParts(w, q, up)
	case http.MethodPost:
		f.complete(w, q.Get("uploadId"), up, body)
	case http.MethodDelete:
		delete(f.uploads, q.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fake) listParts(w http.ResponseWriter, q url.Values, up *fakeUpload) {
	marker, _ := strconv.Atoi(q.Get("part-number-marker"))
	limit, _ := strconv.Atoi(q.Get("max-parts"))
	var numbers []int
	for n := range up.parts {
		if n > marker {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	io.WriteString(w, "<ListPartsResult>")
	if limit = min(limit, 2); len(numbers) > limit { // small pages
		numbers = numbers[:limit]
		fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextPartNumberMarker>%d</NextPartNumberMarker>", numbers[limit-1])
	}
	for _, n := range numbers {
		fmt.Fprintf(w, `<Part><PartNumber>%d</PartNumber><ETag>"%s"</ETag><Size>%d</Size></Part>`, n, partETag(up.parts[n]), len(up.parts[n]))
	}
	io.WriteString(w, "</ListPartsResult>")
}

func (f *fake) complete(w http.ResponseWriter, id string, up *fakeUpload, body []byte) {
	var list struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.Unmarshal(body, &list); err != nil || len(list.Part) == 0 {
		refuseXML(w, http.StatusBadRequest, "MalformedCompleteMultipartUploadRequest", "")
		return
	}
	var data []byte
	for i, p := range list.Part {
		part, ok := up.parts[p.PartNumber]
		switch {
		case !ok || strings.Trim(p.ETag, `"`) != partETag(part):
			refuseXML(w, http.StatusBadRequest, "InvalidPart", "One or more of the specified parts could not be found.")
			return
		case i > 0 && p.PartNumber <= list.Part[i-1].PartNumber:
			refuseXML(w, http.StatusBadRequest, "InvalidPartOrder", "")
			return
		case i < len(list.Part)-1 && len(part) < blob.MinPart:
			refuseXML(w, http.StatusBadRequest, "EntityTooSmall", "")
			return
		}
		data = append(data, part...)
	}
	delete(f.uploads, id)
	f.store(f.buckets[up.bucket], up.name, data, up.meta)
	io.WriteString(w, "<CompleteMultipartUploadResult><ETag>\"x\"</ETag></CompleteMultipartUploadResult>")
}

func (f *fake) listUploads(w http.ResponseWriter, q url.Values, bucket string) {
	type row struct{ key, id, began string }
	var rows []row
	for id, up := range f.uploads {
		if up.bucket == bucket && strings.HasPrefix(up.name, q.Get("prefix")) &&
			(up.name > q.Get("key-marker") || up.name == q.Get("key-marker") && id > q.Get("upload-id-marker")) {
			rows = append(rows, row{up.name, id, up.began.UTC().Format(time.RFC3339)})
		}
	}
	slices.SortFunc(rows, func(x, y row) int { return cmp.Or(cmp.Compare(x.key, y.key), cmp.Compare(x.id, y.id)) })
	io.WriteString(w, "<ListMultipartUploadsResult>")
	if len(rows) > 2 { // small pages
		rows = rows[:2]
		io.WriteString(w, "<IsTruncated>true</IsTruncated><NextKeyMarker>")
		xml.EscapeText(w, []byte(rows[1].key))
		fmt.Fprintf(w, "</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>", rows[1].id)
	}
	for _, u := range rows {
		io.WriteString(w, "<Upload><Key>")
		xml.EscapeText(w, []byte(u.key))
		fmt.Fprintf(w, "</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>", u.id, u.began)
	}
	io.WriteString(w, "</ListMultipartUploadsResult>")
}
