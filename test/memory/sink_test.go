package memory

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// keep is how large a body the sink remembers; of larger ones it knows the size.
const keep = 256 << 10

// period is after how many bytes the content of a large file repeats, and so
// that of a large object.
const period = 1 << 20

// pattern is one period of that content.
var pattern = func() []byte {
	p := make([]byte, period)
	rng := rand.NewChaCha8([32]byte{7})
	rng.Read(p)
	return p
}()

// repeated is a large file's content, from any offset.
type repeated struct{}

func (repeated) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], pattern[(off+int64(n))%period:])
	}
	return n, nil
}

// sink is as much of an S3 server as the program needs, in next to no memory: what
// is large is thrown away, and what is read of it is the pattern.
type sink struct {
	mu      sync.Mutex
	objects map[string]stored
	uploads map[string]map[int]stored // parts, by id
	tokens  map[string]string         // of uploads, by id
	large   int64                     // bytes of large bodies that came
}

type stored struct {
	size  int64
	body  []byte // nil: large
	etag  string
	token string // of the upload that made it
}

// tokenHeader is the metadata by which the program knows its own uploads.
const tokenHeader = "X-Amz-Meta-Ckptsync-Upload"

func newSink() *sink {
	return &sink{objects: map[string]stored{}, tokens: map[string]string{}, uploads: map[string]map[int]stored{}}
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.begin(w, r, key)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		s.complete(w, key, q.Get("uploadId"))
	case r.Method == http.MethodPut:
		s.put(w, r, key, q.Get("uploadId"))
	case r.Method == http.MethodGet && q.Has("uploadId"):
		s.parts(w, q.Get("uploadId"))
	case r.Method == http.MethodGet && key == "":
		s.list(w, q.Get("prefix"))
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		s.get(w, r, key)
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		delete(s.objects, key)
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "not known here", http.StatusNotImplemented)
	}
}

func (s *sink) begin(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	id := fmt.Sprint("u", len(s.uploads))
	s.uploads[id], s.tokens[id] = map[int]stored{}, r.Header.Get(tokenHeader)
	s.mu.Unlock()
	fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>%s</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>", key, id)
}

func (s *sink) complete(w http.ResponseWriter, key, id string) {
	s.mu.Lock()
	var size int64
	for _, p := range s.uploads[id] {
		size += p.size
	}
	s.objects[key] = stored{size: size, etag: `"` + id + `"`, token: s.tokens[id]}
	s.mu.Unlock()
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>%s</Key><ETag>\"%s\"</ETag></CompleteMultipartUploadResult>", key, id)
}

// parts lists those of an upload, all at once.
func (s *sink) parts(w http.ResponseWriter, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	io.WriteString(w, "<ListPartsResult><IsTruncated>false</IsTruncated>")
	for _, n := range slices.Sorted(maps.Keys(s.uploads[id])) {
		p := s.uploads[id][n]
		fmt.Fprintf(w, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag><Size>%d</Size></Part>", n, strings.ReplaceAll(p.etag, `"`, "&quot;"), p.size)
	}
	io.WriteString(w, "</ListPartsResult>")
}

func (s *sink) put(w http.ResponseWriter, r *http.Request, key, upload string) {
	head, err := io.ReadAll(io.LimitReader(r.Body, keep+1))
	if err != nil {
		return
	}
	rest, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	sum := md5.Sum(head)
	o := stored{size: int64(len(head)) + rest, body: head, etag: `"` + hex.EncodeToString(sum[:]) + `"`}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.size > keep || upload != "" {
		o.body = nil
		s.large += o.size
	}
	if _, there := s.objects[key]; there && r.Header.Get("If-None-Match") == "*" {
		w.WriteHeader(http.StatusPreconditionFailed)
		io.WriteString(w, "<Error><Code>PreconditionFailed</Code></Error>")
		return
	}
	if upload != "" {
		n, _ := strconv.Atoi(r.URL.Query().Get("partNumber")) // 0 will be missed
		s.uploads[upload][n] = o
	} else {
		s.objects[key] = o
	}
	if crc := r.Header.Get("X-Amz-Checksum-Crc32c"); crc != "" {
		w.Header().Set("X-Amz-Checksum-Crc32c", crc)
	}
	w.Header().Set("ETag", o.etag)
}

func (s *sink) list(w http.ResponseWriter, prefix string) {
	type content struct {
		Key          string
		LastModified string
		ETag         string
		Size         int64
	}
	out := struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Contents    []content
	}{}
	s.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if o := s.objects[key]; strings.HasPrefix(key, prefix) {
			out.Contents = append(out.Contents, content{key, time.Now().UTC().Format(time.RFC3339), o.etag, o.size})
		}
	}
	s.mu.Unlock()
	xml.NewEncoder(w).Encode(out)
}

func (s *sink) get(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	o, there := s.objects[key]
	s.mu.Unlock()
	if !there {
		w.WriteHeader(http.StatusNotFound)
		if r.Method == http.MethodGet {
			io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
		}
		return
	}
	w.Header().Set("ETag", o.etag)
	w.Header().Set(tokenHeader, o.token)
	var from, to int64 = 0, o.size - 1
	status := http.StatusOK
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n > 0 {
		to = min(to, o.size-1)
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, o.size))
	}
	w.Header().Set("Content-Length", strconv.FormatInt(max(to-from+1, 0), 10))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	if o.body != nil {
		w.Write(o.body[from : to+1])
		return
	}
	io.Copy(w, io.NewSectionReader(repeated{}, from, to-from+1))
}
