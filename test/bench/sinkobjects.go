package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

const crcName = "X-Amz-Checksum-Crc32c"

// put takes a whole object.
func (k *sink) put(w http.ResponseWriter, r *http.Request, key string) {
	if r.Header.Get("X-Amz-Copy-Source") != "" {
		fail(w, http.StatusNotImplemented, "NotImplemented")
		return
	}
	o := object{size: sizeOf(r), crc: r.Header.Get(crcName), when: time.Now(), token: r.Header.Get("X-Amz-Meta-Ckptsync-Upload")}
	k.mu.Lock()
	o.file = k.fileOf(key)
	k.mu.Unlock()
	var err error
	if o.file == "" && (o.size <= keepAtMost || strings.HasSuffix(key, ".json")) {
		if o.body, err = io.ReadAll(unchunk(r)); err == nil {
			o.size = int64(len(o.body))
			k.moved(key, o.size, 0)
		}
	} else {
		err = k.drain(key, r.Body)
	}
	if err != nil {
		return // the client is gone
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Header.Get("If-None-Match") == "*" && k.objects[key] != nil {
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	o.etag = k.name("whole")
	k.objects[key] = &o
	if strings.Contains(key, "/commits/") {
		k.stats.Commits = append(k.stats.Commits, markerSeen{key, time.Now().UnixNano()})
	}
	k.confirm(w, &o)
}

// confirm answers to a PUT; the caller holds the lock.
func (k *sink) confirm(w http.ResponseWriter, o *object) {
	w.Header().Set("ETag", `"`+o.etag+`"`)
	if o.crc != "" {
		w.Header().Set(crcName, o.crc)
	}
}

// sizeOf is that of the content, without the framing of a chunked body.
func sizeOf(r *http.Request) int64 {
	if n, err := strconv.ParseInt(r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64); err == nil {
		return n
	}
	return r.ContentLength
}

// unchunk takes the SDK's framing away.
func unchunk(r *http.Request) io.Reader {
	if r.Header.Get("X-Amz-Decoded-Content-Length") == "" {
		return r.Body
	}
	in, out := bufio.NewReader(r.Body), &bytes.Buffer{}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return failing{io.ErrUnexpectedEOF}
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil {
			return failing{err}
		}
		if n == 0 {
			if _, err := io.Copy(io.Discard, in); err != nil { // the trailers
				return failing{err}
			}
			return out
		}
		if _, err := io.CopyN(out, in, n); err != nil {
			return failing{io.ErrUnexpectedEOF}
		}
		if _, err := in.Discard(2); err != nil {
			return failing{io.ErrUnexpectedEOF}
		}
	}
}

// failing is a stream that is an error.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// begin begins an upload in parts.
func (k *sink) begin(w http.ResponseWriter, r *http.Request, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := k.name("upload")
	k.uploads[id] = &multipart{key: key, when: time.Now(), token: r.Header.Get("X-Amz-Meta-Ckptsync-Upload"), parts: map[int]object{}}
	fmt.Fprintf(w, "<InitiateMultipartUploadResult><Key>%s</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>", escape(key), id)
}

// putPart takes a part.
func (k *sink) putPart(w http.ResponseWriter, r *http.Request, key string) {
	q := r.URL.Query()
	n, err := strconv.Atoi(q.Get("partNumber"))
	if err != nil || r.Header.Get("X-Amz-Copy-Source") != "" {
		fail(w, http.StatusNotImplemented, "NotImplemented")
		return
	}
	if err := k.drain(key, r.Body); err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.uploads[q.Get("uploadId")]
	if u == nil {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	o := object{size: sizeOf(r), crc: r.Header.Get(crcName), when: time.Now(), etag: k.name("part")}
	u.parts[n] = o
	if isData(key) {
		k.stats.Largest = max(k.stats.Largest, o.size)
	}
	k.confirm(w, &o)
}

// listParts lists what an upload has, in one page.
func (k *sink) listParts(w http.ResponseWriter, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.uploads[id]
	if u == nil {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	fmt.Fprint(w, "<ListPartsResult><IsTruncated>false</IsTruncated>")
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		p := u.parts[n]
		fmt.Fprintf(w, "<Part><PartNumber>%d</PartNumber><Size>%d</Size><ETag>&quot;%s&quot;</ETag>", n, p.size, p.etag)
		if p.crc != "" {
			fmt.Fprintf(w, "<ChecksumCRC32C>%s</ChecksumCRC32C>", p.crc)
		}
		fmt.Fprint(w, "</Part>")
	}
	fmt.Fprint(w, "</ListPartsResult>")
}

// complete makes an object of an upload's parts. Its checksum is that of the
// parts' checksums.
func (k *sink) complete(w http.ResponseWriter, r *http.Request, key string) {
	var in struct {
		Parts []struct {
			PartNumber int
			ETag       string
		} `xml:"Part"`
	}
	if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	id := r.URL.Query().Get("uploadId")
	u := k.uploads[id]
	if u == nil {
		fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	o := &object{etag: k.name("parts"), when: time.Now(), token: u.token, file: k.fileOf(key)}
	var sums []byte
	for _, p := range in.Parts {
		have, ok := u.parts[p.PartNumber]
		if !ok || have.etag != strings.Trim(p.ETag, `"`) {
			fail(w, http.StatusBadRequest, "InvalidPart")
			return
		}
		o.size += have.size
		if sum, err := base64.StdEncoding.DecodeString(have.crc); err == nil {
			sums = append(sums, sum...)
		}
	}
	delete(k.uploads, id)
	k.objects[key] = o
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><Key>%s</Key><ETag>&quot;%s&quot;</ETag>", escape(key), o.etag)
	if len(sums) == 4*len(in.Parts) {
		o.crc = fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, blob.CRC32C(sums))), len(in.Parts))
		fmt.Fprintf(w, "<ChecksumCRC32C>%s</ChecksumCRC32C>", o.crc)
	}
	fmt.Fprint(w, "</CompleteMultipartUploadResult>")
}

// get sends an object, or what HEAD asks for.
func (k *sink) get(w http.ResponseWriter, r *http.Request, key string) {
	k.mu.Lock()
	o := k.objects[key]
	k.mu.Unlock()
	if o == nil || o.file == "" && o.body == nil && o.size > 0 {
		fail(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	h := w.Header()
	h.Set("ETag", `"`+o.etag+`"`)
	h.Set("Last-Modified", o.when.UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	if o.token != "" {
		h.Set("X-Amz-Meta-Ckptsync-Upload", o.token)
	}
	from, n, status := int64(0), o.size, http.StatusOK
	if text := r.Header.Get("Range"); text != "" {
		var ok bool
		if from, n, ok = parseRange(text, o.size); !ok {
			fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, o.size))
	}
	if status == http.StatusOK && o.crc != "" && r.Header.Get("X-Amz-Checksum-Mode") != "" {
		h.Set(crcName, o.crc)
	}
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	k.send(w, key, o, from, n)
}

// send sends a range: by sendfile where that can be.
func (k *sink) send(w io.Writer, key string, o *object, from, n int64) {
	if o.file == "" {
		w.Write(o.body[from : from+n])
		k.moved(key, 0, n)
		return
	}
	f, err := os.Open(o.file)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return
	}
	k.moved(key, 0, 0)
	const piece = 8 << 20 // so that what was counted is what is on its way
	for n > 0 {
		m, err := io.CopyN(w, f, min(n, piece))
		k.moved(key, 0, m)
		if n -= m; err != nil {
			return
		}
	}
}

// parseRange reads "bytes=0-9", "bytes=5-" and "bytes=-5".
func parseRange(text string, size int64) (from, n int64, ok bool) {
	first, last, found := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	if !found {
		return 0, 0, false
	}
	if first == "" {
		n, err := strconv.ParseInt(last, 10, 64)
		n = min(n, size)
		return size - n, n, err == nil && n > 0
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil || from >= size {
		return 0, 0, false
	}
	to := size - 1
	if last != "" {
		if to, err = strconv.ParseInt(last, 10, 64); err != nil || to < from {
			return 0, 0, false
		}
	}
	return from, min(to, size-1) - from + 1, true
}
