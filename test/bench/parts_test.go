package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/test/stores"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{9, 1, 2}, spread{2, 1, 9}},
		{[]float64{4, 1, 2, 9}, spread{3, 1, 9}},
	} {
		if got := spreadOf(c.in); got != c.want {
			t.Errorf("spread of %v = %+v, want %+v", c.in, got, c.want)
		}
	}
	if got := (spread{2, 1, 4}).rate(8); got != (spread{4, 2, 8}) {
		t.Errorf("rate: %+v", got)
	}
}

// tableOf makes a table of 1 GiB whose rows took so many seconds, of which all
// were of a processor.
func tableOf(name, way, scheme string, rows map[string]float64) *table {
	t := &table{Case: name, Files: 1, Bytes: 1 << 30, Way: way, Store: "sink", Scheme: scheme}
	for mover, s := range rows {
		t.Rows = append(t.Rows, &row{Name: mover, Samples: []sample{{usage: usage{Wall: s, CPU: s, Peak: 100}}}})
	}
	return t
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		table *table
		what  string
		want  string
	}{
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1.09}), "CPU, big up", ok},
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1.11}), "CPU, big up", missed},
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1, "s5cmd": 2.1}), "CPU against s5cmd", ok},
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1, "s5cmd": 1.9}), "CPU against s5cmd", missed},
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1}), "CPU against s5cmd", unmeasured},
		{tableOf("big", up, "http", map[string]float64{nameProgram: 1, "aws s3 cp": 2.9}), "CPU against aws cli", missed},
		{tableOf("shards", up, "http", map[string]float64{nameProgram: 1, nameDigests: 0.91}), "wall time against the floor", ok},
		{tableOf("shards", up, "http", map[string]float64{nameProgram: 1, nameDigests: 0.89}), "wall time against the floor", missed},
		{tableOf("big", up, "https", map[string]float64{nameProgram: 1.6, nameFloor: 1, nameHash: 0.5}), "CPU, big up", ok},
		{tableOf("big", up, "https", map[string]float64{nameProgram: 1.7, nameFloor: 1, nameHash: 0.5}), "CPU, big up", missed},
		{tableOf("big", up, "https", map[string]float64{nameProgram: 1.7, nameFloor: 1}), "CPU, big up", unmeasured},
		{tableOf("big", down, "https", map[string]float64{nameProgram: 1.12, nameDigests: 1}), "CPU against the floor", missed},
		{tableOf("big", down, "http", map[string]float64{nameProgram: 1.09, nameDigests: 1}), "CPU against the floor", ok},
		{tableOf("small", up, "http", map[string]float64{nameProgram: 1, "s5cmd": 1}), "objects/s against s5cmd", ok},
		{tableOf("small", up, "http", map[string]float64{nameProgram: 1.1, "s5cmd": 1}), "objects/s against s5cmd", missed},
	} {
		b := &bench{out: io.Discard}
		b.report.Tables = []*table{c.table}
		b.judgeMoves()
		if got := b.report.word(c.what); got != c.want {
			t.Errorf("%s over %s: %q is %q, want %q: %v", c.table.Case, c.table.Scheme, c.what, got, c.want, b.report.Verdicts)
		}
	}
}

func (r *report) word(what string) string {
	for _, v := range r.Verdicts {
		if strings.HasPrefix(v.What, what) {
			return v.Word
		}
	}
	return ""
}

func TestVerdictOnAnUnchangedStep(t *testing.T) {
	for _, c := range []struct {
		s          sample
		sent, soon string
	}{
		{sample{usage{Peak: 1}, 0.9, 0, 0}, ok, ok},
		{sample{usage{Peak: 1}, 1.1, 0, 0}, ok, missed},
		{sample{usage{Peak: 1}, 0.9, 4096, 0}, missed, ok},
		{sample{usage{Peak: 1}, 0.9, 0, 4096}, missed, ok},
	} {
		b := &bench{out: io.Discard}
		b.report.Tables = []*table{{Case: "again", Files: 1, Bytes: 1, Way: up, Rows: []*row{{Name: nameProgram, Samples: []sample{c.s}}}}}
		b.judgeMoves()
		if sent, soon := b.report.word("nothing unchanged"), b.report.word("an unchanged step"); sent != c.sent || soon != c.soon {
			t.Errorf("%+v: %s and %s, want %s and %s", c.s, sent, soon, c.sent, c.soon)
		}
	}
}

func TestUsageCountsChildrenAndPeaks(t *testing.T) {
	p := process{args: []string{"sh", "-c", `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; true`}, env: os.Environ()}
	u, _, err := p.run(t.Context())
	if err != nil || u.CPU < 0.02 || u.Wall < 0.02 {
		t.Errorf("%+v, %v", u, err)
	}
	p, err = child("touch", int64(200<<20), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if u, _, err = p.run(t.Context()); err != nil || u.Peak < 150 || u.Peak > 400 {
		t.Errorf("after 200 MiB: %+v, %v", u, err)
	}
	p = process{args: []string{"sh", "-c", "echo the reason >&2; exit 3"}, env: os.Environ()}
	if _, _, err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("the error is %v", err)
	}
}

// The floor compares what it fetches with the digests.
func TestFloorVerifies(t *testing.T) {
	dir := t.TempDir()
	w := &workload{name: "w", files: 1, each: 17<<20 + 5, root: filepath.Join(dir, "src")}
	if err := w.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := newSink(dir)
	srv := httptest.NewServer(k)
	defer srv.Close()
	k.objects["f/"+w.file(0)] = &object{size: w.each, file: filepath.Join(w.step(), w.file(0))}
	fetch := func(to string) error {
		args, err := json.Marshal(floorArgs{Way: down, Digests: true, Endpoint: srv.URL, Prefix: "bench/f", Dir: filepath.Join(dir, to), Known: w.digests()})
		if err != nil {
			t.Fatal(err)
		}
		return floorJob(t.Context(), args, nil)
	}
	if err := fetch("whole"); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(w.step(), w.file(0)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "whole", w.file(0))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what the floor fetched differs: %v", err)
	}
	want[16<<20] ^= 1
	if err := os.WriteFile(filepath.Join(w.step(), w.file(0)), want, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fetch("torn"); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a wrong byte is %v", err)
	}
}

// The sink counts what comes, and is a store to the program's own driver.
func TestSink(t *testing.T) {
	stores.Setenv(t)
	dir := t.TempDir()
	content := make([]byte, 17<<20)
	rand.NewChaCha8([32]byte{7}).Read(content)
	if err := os.WriteFile(filepath.Join(dir, "large.dat"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	k := newSink(dir)
	srv := httptest.NewServer(k)
	defer srv.Close()
	b, err := s3blob.Open(t.Context(), storeURL(srv.URL), s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const key = "run/data/x/large.dat"
	u, err := b.Upload(t.Context(), key, "", &blob.UploadOptions{Size: int64(len(content)), PartSize: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var parts []blob.Part
	for n, p := range [][]byte{content[:16<<20], content[16<<20:]} {
		part, err := u.PutPart(t.Context(), n+1, blob.Bytes(p), blob.CRC32C(p))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	if listed, err := u.Parts(t.Context()); err != nil || len(listed) != 2 || listed[1] != parts[1] {
		t.Errorf("parts %v, %v", listed, err)
	}
	if _, err := u.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	for i, absent := range []bool{true, false} {
		_, err := b.Put(t.Context(), "run/commits/1.json", blob.Bytes("{}"), &blob.PutOptions{IfAbsent: true})
		if (err == nil) != absent {
			t.Errorf("creation %d: %v", i, err)
		}
	}
	r, err := b.Open(t.Context(), key, 16<<20-3, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content[16<<20-3:16<<20+7]) {
		t.Errorf("a range: %x, %v", got, err)
	}
	r.Close()
	var keys []string
	for info, err := range b.List(t.Context(), "run/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if len(keys) != 2 || keys[1] != key {
		t.Errorf("listed %v", keys)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.stats; s.DataIn != int64(len(content)) || s.DataOut != 10 || s.Largest != 16<<20 || len(s.Commits) != 1 || s.First == 0 || s.Last < s.First {
		t.Errorf("stats %+v", s)
	}
}

func TestSinkTakesChunkedBodies(t *testing.T) {
	req := httptest.NewRequest(http.MethodPut, "/bench/k", strings.NewReader("3;sign=x\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"))
	req.Header.Set("X-Amz-Decoded-Content-Length", "5")
	if got, err := io.ReadAll(unchunk(req)); string(got) != "abcde" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	req = httptest.NewRequest(http.MethodPut, "/bench/k", strings.NewReader("3\r\nab"))
	req.Header.Set("X-Amz-Decoded-Content-Length", "3")
	if _, err := io.ReadAll(unchunk(req)); err == nil {
		t.Error("a body that was cut off is taken for whole")
	}
}

// The slow network delays by what it says, carries no more than it says, and
// changes nothing.
func TestProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // an echo
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const rate, delay, size = 5e6, 15 * time.Millisecond, 1_000_000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go (&proxyArgs{To: l.Addr().String(), Rate: rate, Delay: delay}).serve(ctx, front)

	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	one := []byte{1}
	trip := func() time.Duration {
		began := time.Now()
		if _, err := c.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, one); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	if d := trip(); d < 4*delay {
		t.Errorf("the first round trip, with the handshake, took %v", d)
	}
	if d := trip(); d < 2*delay {
		t.Errorf("a round trip took %v", d)
	}
	want := make([]byte, size)
	rand.NewChaCha8([32]byte{9}).Read(want)
	began := time.Now()
	go c.Write(want)
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what came is not what was sent: %v", err)
	}
	least := time.Duration(float64(size) / rate * float64(time.Second))
	if d := time.Since(began); d < least*9/10 {
		t.Errorf("%d bytes took %v, less than %v", size, d, least)
	}
}
