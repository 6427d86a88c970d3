package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

func escape(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s))
	return b.String()
}

// bucket answers what is asked of the bucket itself.
func (k *sink) bucket(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/xml")
	switch {
	case r.Method == http.MethodHead, r.Method == http.MethodPut:
	case r.Method == http.MethodPost && q.Has("delete"):
		var in struct {
			Objects []struct{ Key string } `xml:"Object"`
		}
		if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
			fail(w, http.StatusBadRequest, "MalformedXML")
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, o := range in.Objects {
			delete(k.objects, o.Key)
		}
		fmt.Fprint(w, "<DeleteResult></DeleteResult>")
	case r.Method != http.MethodGet:
		fail(w, http.StatusNotImplemented, "NotImplemented")
	case q.Has("location"):
		fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
	case q.Has("uploads"):
		k.listUploads(w, q.Get("prefix"))
	default:
		k.list(w, q)
	}
}

func (k *sink) listUploads(w io.Writer, prefix string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fmt.Fprint(w, "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>")
	for _, id := range slices.Sorted(maps.Keys(k.uploads)) {
		if u := k.uploads[id]; strings.HasPrefix(u.key, prefix) {
			fmt.Fprintf(w, "<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>", escape(u.key), id, u.when.UTC().Format(time.RFC3339))
		}
	}
	fmt.Fprint(w, "</ListMultipartUploadsResult>")
}

// list is both versions of ListObjects.
func (k *sink) list(w io.Writer, q url.Values) {
	prefix, delimiter, most := q.Get("prefix"), q.Get("delimiter"), 1000
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		most = min(n, most)
	}
	after := max(q.Get("start-after"), q.Get("continuation-token"), q.Get("marker"))
	name := escape
	if q.Get("encoding-type") == "url" {
		name = func(s string) string { return escape(strings.ReplaceAll(url.QueryEscape(s), "%2F", "/")) }
	}
	var body strings.Builder
	count, more, last, folder := 0, false, "", ""
	k.mu.Lock()
	for _, key := range k.sorted() {
		rest, below := strings.CutPrefix(key, prefix)
		if !below || key <= after || folder != "" && strings.HasPrefix(key, folder) {
			continue
		}
		if delimiter != "" && strings.HasSuffix(after, delimiter) && strings.HasPrefix(key, after) {
			continue // of a folder that was listed
		}
		if count == most {
			more = true
			break
		}
		count++
		if i := strings.Index(rest, delimiter); delimiter != "" && i >= 0 {
			folder = prefix + rest[:i+len(delimiter)]
			last = folder
			fmt.Fprintf(&body, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", name(folder))
			continue
		}
		last = key
		o := k.objects[key]
		fmt.Fprintf(&body, "<Contents><Key>%s</Key><Size>%d</Size><ETag>&quot;%s&quot;</ETag><LastModified>%s</LastModified><StorageClass>STANDARD</StorageClass></Contents>",
			name(key), o.size, o.etag, o.when.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	k.mu.Unlock()
	fmt.Fprintf(w, "<ListBucketResult><Name>%s</Name><Prefix>%s</Prefix><MaxKeys>%d</MaxKeys><KeyCount>%d</KeyCount><IsTruncated>%t</IsTruncated>",
		bucketName, name(prefix), most, count, more)
	if q.Get("encoding-type") == "url" {
		fmt.Fprint(w, "<EncodingType>url</EncodingType>")
	}
	if more {
		fmt.Fprintf(w, "<NextContinuationToken>%s</NextContinuationToken><NextMarker>%s</NextMarker>", escape(last), name(last))
	}
	fmt.Fprint(w, body.String(), "</ListBucketResult>")
}

// sorted are the keys; the caller holds the lock.
func (k *sink) sorted() []string { return slices.Sorted(maps.Keys(k.objects)) }
