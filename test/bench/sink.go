package main

import (
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// sink is a server that keeps nothing: it reads what it is sent, confirms the
// checksum it was told, and makes up what it is asked for. It speaks as much
// of S3 as the driver needs, and plain PUT and GET below /raw/.
type sink struct {
	size    int64
	pattern []byte
	buffers sync.Pool
}

// serveSink prints the address and serves until ctx is done.
func serveSink(ctx context.Context, s settings) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	k := &sink{size: s.Size, pattern: make([]byte, 4<<20)}
	rand.NewChaCha8([32]byte{2}).Read(k.pattern)
	k.buffers.New = func() any { b := make([]byte, 1<<20); return &b }
	fmt.Fprintf(os.Stdout, "http://%s\n", l.Addr())
	srv := &http.Server{Handler: k}
	go func() { <-ctx.Done(); srv.Close() }()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (k *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, h := r.URL.Query(), w.Header()
	switch {
	case r.Method == http.MethodPut:
		if err := k.drain(r.Body); err != nil {
			return
		}
		h.Set("ETag", `"sink"`)
		if crc := r.Header.Get("X-Amz-Checksum-Crc32c"); crc != "" {
			h.Set("X-Amz-Checksum-Crc32c", crc)
		}
	case r.Method == http.MethodPost && q.Has("uploads"):
		fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>sink</UploadId></InitiateMultipartUploadResult>")
	case r.Method == http.MethodPost:
		k.complete(w, r)
	case r.Method == http.MethodGet:
		k.send(w, r)
	default:
		http.Error(w, "the sink does not do that", http.StatusNotImplemented)
	}
}

func (k *sink) drain(r io.Reader) error {
	buf := k.buffers.Get().(*[]byte)
	defer k.buffers.Put(buf)
	for {
		if _, err := r.Read(*buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// complete answers with the checksum of the parts' checksums.
func (k *sink) complete(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Parts []struct{ ChecksumCRC32C string } `xml:"Part"`
	}
	if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var sums []byte
	for _, p := range in.Parts {
		sum, err := base64.StdEncoding.DecodeString(p.ChecksumCRC32C)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sums = append(sums, sum...)
	}
	crc := blob.CRC32C(sums)
	text := base64.StdEncoding.EncodeToString([]byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)})
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><ETag>&quot;sink&quot;</ETag><ChecksumCRC32C>%s-%d</ChecksumCRC32C></CompleteMultipartUploadResult>", text, len(in.Parts))
}

// send makes up a range of an object.
func (k *sink) send(w http.ResponseWriter, r *http.Request) {
	first, last, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	if !ok || err1 != nil || err2 != nil || from > to || to >= k.size {
		http.Error(w, "no such range", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	h := w.Header()
	h.Set("ETag", `"sink"`)
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, k.size))
	h.Set("Content-Length", strconv.FormatInt(to-from+1, 10))
	w.WriteHeader(http.StatusPartialContent)
	for left := to - from + 1; left > 0; {
		n, err := w.Write(k.pattern[:min(left, int64(len(k.pattern)))])
		if err != nil {
			return
		}
		left -= int64(n)
	}
}
