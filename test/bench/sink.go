package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// keepAtMost is how large a body the sink remembers that it has no file for.
const keepAtMost = 4 << 20

// sinkArgs are how a sink is started.
type sinkArgs struct {
	Roots     string // directory below which the files are that objects of their names are made from
	Cert, Key string // empty: plain http
}

// sink is a store that keeps next to nothing: bodies are read and thrown away,
// and an object whose last name is that of a known file is sent from that file.
// Small other objects (manifests, markers) are kept in memory. Checksums are
// confirmed and not looked at. It speaks as much of S3 as the clients of this
// bench need.
type sink struct {
	roots   string
	buffers sync.Pool

	mu      sync.Mutex
	files   map[string]string // by last name
	objects map[string]*object
	uploads map[string]*multipart // by id
	names   int                   // for ETags and ids
	stats   sinkStats
	streams int // requests for data that are under way
}

// object is what is known of one.
type object struct {
	size  int64
	etag  string
	crc   string // as told by the client; empty if it was not
	when  time.Time
	body  []byte // nil: from file, or gone
	file  string
	token string // metadata of the upload that made it
}

// multipart is an upload in parts.
type multipart struct {
	key   string
	token string
	when  time.Time
	parts map[int]object
}

// sinkStats are what a sink counted since it was last reset. "Data" is what
// commits name, as opposed to what they are made of.
type sinkStats struct {
	Requests int64
	In, Out  int64 // bytes of all bodies
	DataIn   int64 // bytes of data, those of requests that were cut off too
	DataOut  int64
	Largest  int64 // part
	First    int64 // UnixNano of the first and the last byte of data, either way
	Last     int64
	Streams  int // requests for data at a time, at most
	Commits  []markerSeen
}

// markerSeen is a commit marker that arrived.
type markerSeen struct {
	Key  string
	When int64 // UnixNano
}

// sinkJob prints the address and serves.
func sinkJob(ctx context.Context, args json.RawMessage, out io.Writer) error {
	var a sinkArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	k := newSink(a.Roots)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	scheme := "http"
	// Like Amazon's own it does not speak HTTP/2.
	srv := &http.Server{
		Handler: k, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, ReadHeaderTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients that hang up
	}
	go func() { <-ctx.Done(); srv.Close() }()
	serve := func() error { return srv.Serve(l) }
	if a.Cert != "" {
		scheme = "https"
		serve = func() error { return srv.ServeTLS(l, a.Cert, a.Key) }
	}
	fmt.Fprintf(out, "%s://%s\n", scheme, l.Addr())
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func newSink(roots string) *sink {
	k := &sink{roots: roots}
	k.buffers.New = func() any { b := make([]byte, 1<<20); return &b }
	k.reset()
	return k
}

// reset forgets everything and looks anew which files there are.
func (k *sink) reset() {
	files := map[string]string{}
	if k.roots != "" {
		_ = filepath.WalkDir(k.roots, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.HasSuffix(p, ".dat") {
				files[d.Name()] = p
			}
			return nil // what vanishes meanwhile is nobody's
		})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.files, k.objects, k.uploads, k.stats = files, map[string]*object{}, map[string]*multipart{}, sinkStats{}
}

// ServeHTTP implements http.Handler.
func (k *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.stats.Requests++
	k.mu.Unlock()
	if word, ok := strings.CutPrefix(r.URL.Path, "/_bench/"); ok {
		k.control(w, word)
		return
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if isData(key) {
		defer k.stream()()
	}
	q := r.URL.Query()
	switch {
	case key == "":
		k.bucket(w, r)
	case r.Method == http.MethodPut && q.Has("partNumber"):
		k.putPart(w, r, key)
	case r.Method == http.MethodPut:
		k.put(w, r, key)
	case r.Method == http.MethodPost && q.Has("uploads"):
		k.begin(w, r, key)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		k.complete(w, r, key)
	case r.Method == http.MethodGet && q.Has("uploadId"):
		k.listParts(w, q.Get("uploadId"))
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		k.get(w, r, key)
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		k.mu.Lock()
		delete(k.uploads, q.Get("uploadId"))
		k.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		k.mu.Lock()
		delete(k.objects, key)
		k.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusNotImplemented, "NotImplemented")
	}
}

// control is how the bench talks to its sink.
func (k *sink) control(w http.ResponseWriter, word string) {
	switch word {
	case "reset":
		k.reset()
	case "restart-clock":
		k.mu.Lock()
		defer k.mu.Unlock()
		k.stats.First, k.stats.Last, k.stats.Streams = 0, 0, 0
	case "stats":
		k.mu.Lock()
		defer k.mu.Unlock()
		json.NewEncoder(w).Encode(&k.stats)
	default:
		http.NotFound(w, nil)
	}
}

// isData reports whether a key is of a file of a step.
func isData(key string) bool { return strings.Contains(key, "/data/") }

// stream counts a request for data until the returned function is called.
func (k *sink) stream() (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.streams++
	k.stats.Streams = max(k.stats.Streams, k.streams)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.streams--
	}
}

// moved counts bytes of a body as they come or go.
func (k *sink) moved(key string, in, out int64) {
	now := time.Now().UnixNano()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.stats
	s.In, s.Out = s.In+in, s.Out+out
	if !isData(key) {
		return
	}
	s.DataIn, s.DataOut = s.DataIn+in, s.DataOut+out
	if s.First == 0 {
		s.First = now
	}
	s.Last = now
}

// drain reads a body and throws it away.
func (k *sink) drain(key string, body io.Reader) error {
	buf := k.buffers.Get().(*[]byte)
	defer k.buffers.Put(buf)
	for {
		n, err := body.Read(*buf)
		k.moved(key, int64(n), 0)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// fileOf is the file that an object of that key is made from; empty if there is
// none. The caller holds the lock.
func (k *sink) fileOf(key string) string { return k.files[path.Base(key)] }

// name is a new word for an ETag or an id; the caller holds the lock.
func (k *sink) name(kind string) string {
	k.names++
	return fmt.Sprintf("%s-%08d", kind, k.names)
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the sink says so</Message></Error>", code)
}
