// Package doctor finds out, before it matters, whether a store and a root can
// do what ckptsync needs of them. Every finding says what was found and, if it
// is not well, what to do about it. It leaves nothing behind in the store, and
// writes nothing into the root.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Level grades a finding.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // worth knowing
	Warn Level = "warn" // works, but worse than it could
	Bad  Level = "bad"  // will not work
)

// Finding is one thing that was looked at.
type Finding struct {
	Area   string `json:"area"` // "store" or "root"
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Findings are in the order in which they were found.
type Findings []Finding

func (fs *Findings) add(area, name string, l Level, detail, remedy string) {
	*fs = append(*fs, Finding{Area: area, Name: name, Level: l, Detail: detail, Remedy: remedy})
}

// Worst is the gravest level among the findings.
func (fs Findings) Worst() Level {
	rank := map[Level]int{OK: 0, Note: 1, Warn: 2, Bad: 3}
	worst := OK
	for _, f := range fs {
		if rank[f.Level] > rank[worst] {
			worst = f.Level
		}
	}
	return worst
}

// Unreachable reports whether the store could not be asked at all.
func (fs Findings) Unreachable() bool {
	for _, f := range fs {
		if f.Area == "store" && f.Name == "list" && f.Level == Bad {
			return true
		}
	}
	return false
}

// scratch is where probes write, below the store prefix. It is no run's name,
// since those do not begin with a dot.
const scratch = ".ckptsync/probe/"

const area = "store"

// Store looks at a bucket, with the decorators that the program uses, and at a
// run in it (store may be nil). now is the local clock.
func Store(ctx context.Context, b blob.Bucket, store *commit.Store, now func() time.Time) Findings {
	var fs Findings
	if !list(ctx, &fs, b) {
		return fs
	}
	key := scratch + commit.NewOpToken()
	if objects(ctx, &fs, b, key, now) {
		conditional(ctx, &fs, b)
		parts(ctx, &fs, b, key+"-parts")
	}
	unfinished(ctx, &fs, b, store)
	if store != nil {
		run(ctx, &fs, store)
	}
	return fs
}

func list(ctx context.Context, fs *Findings, b blob.Bucket) bool {
	for _, err := range b.List(ctx, scratch) {
		if err != nil {
			fs.add(area, "list", Bad, err.Error(), remedy(err, "list"))
			return false
		}
		break
	}
	fs.add(area, "list", OK, "the store answers, and the prefix can be listed", "")
	return true
}

// objects puts, reads, compares and deletes one small object.
func objects(ctx context.Context, fs *Findings, b blob.Bucket, key string, now func() time.Time) bool {
	body := []byte("ckptsync doctor " + key)
	info, err := b.Put(ctx, key, blob.Bytes(body), nil)
	if err != nil {
		fs.add(area, "write", Bad, err.Error(), remedy(err, "write objects"))
		return false
	}
	fs.add(area, "write", OK, "objects can be written", "")
	got, err := blob.ReadAll(ctx, b, key, 1<<16)
	switch {
	case err != nil:
		fs.add(area, "read", Bad, err.Error(), remedy(err, "read objects"))
	case string(got) != string(body):
		fs.add(area, "read", Bad, "what was read is not what was written", "something between here and the store changes content: look for proxies")
	default:
		fs.add(area, "read", OK, "what was written is read back", "")
	}
	clock(fs, info, now())
	checksum(ctx, fs, b, key+"-sum")
	if err := b.Delete(ctx, key); err != nil {
		fs.add(area, "delete", Warn, err.Error(), "uploads and restores work without it; pruning does not: "+remedy(err, "delete objects"))
	} else {
		fs.add(area, "delete", OK, "objects can be deleted", "")
	}
	return true
}

// clock compares the two clocks, for people: nothing is decided by them.
func clock(fs *Findings, info blob.Info, local time.Time) {
	if info.ModTime.IsZero() {
		return
	}
	switch skew := local.Sub(info.ModTime).Abs(); {
	case skew > 5*time.Minute:
		fs.add(area, "clock", Warn, fmt.Sprintf("the local clock and the store's are %s apart", skew.Round(time.Second)),
			"signed requests are refused when the clocks are far apart: run NTP here")
	default:
		fs.add(area, "clock", OK, "the local clock and the store's agree", "")
	}
}

// checksum offers content under a wrong checksum: a good store refuses it.
func checksum(ctx context.Context, fs *Findings, b blob.Bucket, key string) {
	wrong := uint32(0xdeadbeef)
	_, err := b.Put(ctx, key, blob.Bytes("ckptsync"), &blob.PutOptions{CRC32C: &wrong})
	switch {
	case errors.Is(err, blob.ErrCorrupt):
		fs.add(area, "checksum", OK, "the store refuses content that does not match its checksum", "")
	case err != nil:
		fs.add(area, "checksum", Warn, "content with a wrong checksum was refused for another reason: "+err.Error(), "")
	default:
		fs.add(area, "checksum", Warn, "the store accepted content with a wrong checksum",
			"damage on the way is found only at restore or verify: prefer https, and run verify now and then")
		_ = b.Delete(ctx, key) // the finding above says enough
	}
}

func conditional(ctx context.Context, fs *Findings, b blob.Bucket) {
	p, err := blob.Probe(ctx, b, scratch+commit.NewOpToken()+"/")
	if err != nil {
		fs.add(area, "create-if-absent", Warn, err.Error(), "could not be found out: try again")
		return
	}
	if p.Verdict == blob.ProbeWorks {
		fs.add(area, "create-if-absent", OK, p.Details, "")
		return
	}
	fs.add(area, "create-if-absent", Warn, p.Details,
		"only one writer per run is safe on this store; several nodes are refused. Use a store (or a version of it) with conditional writes if jobs can overlap")
}

// parts sends one object in two parts, the smallest that every store takes.
func parts(ctx context.Context, fs *Findings, b blob.Bucket, key string) {
	err := func() error {
		first := make([]byte, blob.MinPart)
		last := []byte("the end")
		up, err := b.Upload(ctx, key, "", &blob.UploadOptions{Size: int64(len(first) + len(last)), PartSize: blob.MinPart})
		if err != nil {
			return err
		}
		var ps []blob.Part
		for i, body := range [][]byte{first, last} {
			p, err := up.PutPart(ctx, i+1, blob.Bytes(body), crc(body))
			if err != nil {
				return errors.Join(err, up.Abort(ctx))
			}
			ps = append(ps, p)
		}
		if _, err := up.Complete(ctx, ps); err != nil {
			return errors.Join(err, up.Abort(ctx))
		}
		return b.Delete(ctx, key)
	}()
	switch {
	case err == nil:
		fs.add(area, "multipart", OK, "large files go up in parts, and can be resumed", "")
	case errors.Is(err, blob.ErrUnsupported):
		fs.add(area, "multipart", Note, "large files go up in one request: "+err.Error(), "an upload that is cut off begins that file anew")
	default:
		fs.add(area, "multipart", Bad, err.Error(), remedy(err, "use multipart uploads"))
	}
}

func unfinished(ctx context.Context, fs *Findings, b blob.Bucket, store *commit.Store) {
	u, ok := blob.As[blob.UploadLister](b)
	if !ok {
		return
	}
	prefix := ""
	if store != nil {
		prefix = store.Key("")
	}
	n, oldest := 0, time.Time{}
	for up, err := range u.Uploads(ctx, prefix) {
		if err != nil {
			fs.add(area, "unfinished uploads", Note, "cannot be listed: "+err.Error(), "")
			return
		}
		n++
		if oldest.IsZero() || up.Started.Before(oldest) {
			oldest = up.Started
		}
	}
	if n == 0 {
		fs.add(area, "unfinished uploads", OK, "none", "")
		return
	}
	fs.add(area, "unfinished uploads", Note, fmt.Sprintf("%d, the oldest since %s", n, oldest.UTC().Format(time.RFC3339)),
		"they cost storage: a lifecycle rule that aborts incomplete uploads after a week is good practice")
}

// run looks at what is under the run's prefix.
func run(ctx context.Context, fs *Findings, store *commit.Store) {
	ok, err := store.Exists(ctx)
	if err != nil {
		fs.add(area, "run", Bad, err.Error(), remedy(err, "read objects"))
		return
	}
	if !ok {
		fs.add(area, "run", Note, fmt.Sprintf("nothing of run %q is in the store yet", store.Run()), "if there should be something, check --run and the store's prefix")
	} else if v, err := store.View(ctx); err != nil {
		fs.add(area, "run", Bad, err.Error(), "")
	} else {
		fs.add(area, "run", OK, fmt.Sprintf("run %q: %d attempts, %d commits", store.Run(), len(v.Attempts), len(v.Commits)), "")
	}
	n, first := 0, ""
	for info, err := range store.Foreign(ctx) {
		if err != nil {
			fs.add(area, "foreign objects", Note, "cannot be listed: "+err.Error(), "")
			return
		}
		if n++; n == 1 {
			first = info.Key
		}
	}
	if n > 0 {
		fs.add(area, "foreign objects", Note, fmt.Sprintf("%d objects under the run's prefix are not ckptsync's, the first is %s", n, first), "they are never touched")
	}
}

func remedy(err error, what string) string {
	switch {
	case errors.Is(err, blob.ErrDenied):
		return "grant these credentials permission to " + what + " under the prefix"
	case errors.Is(err, blob.ErrThrottled):
		return "the store asks to slow down: try again"
	case errors.Is(err, blob.ErrTemporary), errors.Is(err, context.DeadlineExceeded):
		return "check the endpoint, the network and the store's health"
	}
	return ""
}
