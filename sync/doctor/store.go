package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

const (
	// scratch is where probes write, below the store prefix. It is no run's
	// name, since those do not begin with a dot.
	scratch = ".ckptsync/probe/"

	clockSkew   = 5 * time.Minute  // S3 refuses requests at three times that
	uploadAge   = 24 * time.Hour   // an unfinished upload that is older is a leftover
	cleanupTime = 30 * time.Second // for deleting the scratch objects, whatever happened
)

// Store looks at a bucket, with the decorators that the program uses: whether
// it answers, and can do all that ckptsync asks of a store. now is the local
// clock.
func Store(ctx context.Context, b blob.Bucket, now func() time.Time) Findings {
	p := &prober{b: b, now: now, key: scratch + commit.NewOpToken()}
	if !p.list(ctx) {
		return p.fs
	}
	if p.write(ctx) {
		p.read(ctx)
		p.checksum(ctx)
		p.parts(ctx)
		p.delete(ctx)
		p.conditional(ctx)
	}
	p.unfinished(ctx)
	return p.fs
}

type prober struct {
	b     blob.Bucket
	now   func() time.Time
	fs    Findings
	key   string
	body  []byte   // of the object at key
	wrote []string // scratch objects that are there
}

func (p *prober) list(ctx context.Context) bool {
	for _, err := range p.b.List(ctx, scratch) {
		if err != nil {
			p.fs.fail("list", Bad, err, "list objects")
			return false
		}
		break
	}
	p.fs.add("list", OK, "the store answers, and what is in it can be listed", "")
	return true
}

func (p *prober) write(ctx context.Context) bool {
	p.body = []byte("ckptsync doctor, may be deleted: " + p.key + "\n")
	start := p.now()
	if _, err := p.b.Put(ctx, p.key, blob.Bytes(p.body), nil); err != nil {
		p.fs.fail("write", Bad, err, "write objects")
		return false
	}
	p.wrote = append(p.wrote, p.key)
	p.fs.add("write", OK, "objects can be written, a small one in "+p.since(start), "")
	return true
}

func (p *prober) since(start time.Time) string {
	return max(p.now().Sub(start), 0).Round(100 * time.Microsecond).String()
}

// read compares what was written, and the clocks.
func (p *prober) read(ctx context.Context) {
	got, err := blob.ReadAll(ctx, p.b, p.key, 1<<16)
	switch {
	case errors.Is(err, blob.ErrNotExist):
		p.fs.add("read", Bad, "what was written a moment ago is not there", "the store has to show at once what it acknowledged: look for caches and replicas in between")
	case err != nil:
		p.fs.fail("read", Bad, err, "read objects")
	case !bytes.Equal(got, p.body):
		p.fs.add("read", Bad, "what is read is not what was written", "something between here and the store changes content: look for proxies")
	default:
		p.fs.add("read", OK, "what was written is read back", "")
	}
	info, err := p.b.Stat(ctx, p.key)
	if err != nil || info.ModTime.IsZero() {
		return // reading is judged above
	}
	if skew := p.now().Sub(info.ModTime).Abs(); skew > clockSkew {
		p.fs.add("clock", Warn, fmt.Sprintf("the local clock and the store's are %s apart", skew.Round(time.Second)),
			"stores refuse signed requests when the clocks are a quarter of an hour apart: run NTP here")
		return
	}
	p.fs.add("clock", OK, "the local clock and the store's agree", "")
}

// checksum offers content under a wrong checksum: a good store refuses it.
func (p *prober) checksum(ctx context.Context) {
	key, body := p.key+"-sum", []byte("ckptsync doctor, may be deleted\n")
	wrong := ^blob.CRC32C(body)
	_, err := p.b.Put(ctx, key, blob.Bytes(body), &blob.PutOptions{CRC32C: &wrong})
	switch {
	case errors.Is(err, blob.ErrCorrupt):
		p.fs.add("checksum", OK, "content that does not match its checksum is refused", "")
	case err != nil:
		p.fs.add("checksum", Warn, "content with a wrong checksum was refused for another reason: "+err.Error(), "try again; if it stays so, damage on the way shows as that error")
	default:
		p.wrote = append(p.wrote, key)
		p.fs.add("checksum", Warn, "the store accepted content with a wrong checksum",
			"damage on the way up is found only by a restore or `ckptsync verify`: prefer https, and run verify now and then")
	}
}

// parts sends one object in two parts, the smallest that every store takes.
func (p *prober) parts(ctx context.Context) {
	start := p.now()
	err := p.sendParts(ctx)
	took := p.now().Sub(start)
	switch {
	case errors.Is(err, blob.ErrUnsupported):
		p.fs.add("multipart", Note, "large files go up in one request: "+err.Error(), "an upload that is cut off begins that file anew")
	case err != nil:
		p.fs.fail("multipart", Bad, err, "upload in parts")
	case took >= time.Millisecond:
		rate := humanize.IBytes(uint64(float64(blob.MinPart) / took.Seconds()))
		p.fs.add("multipart", OK, fmt.Sprintf("large files go up in parts and can be resumed; one stream makes %s/s", rate), "")
	default:
		p.fs.add("multipart", OK, "large files go up in parts and can be resumed", "")
	}
}

func (p *prober) sendParts(ctx context.Context) error {
	key, first, last := p.key+"-parts", make([]byte, blob.MinPart), []byte("the end")
	up, err := p.b.Upload(ctx, key, "", &blob.UploadOptions{Size: int64(len(first) + len(last)), PartSize: blob.MinPart})
	if err != nil {
		return err
	}
	abort := func(err error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		return errors.Join(err, up.Abort(ctx))
	}
	var sent []blob.Part
	for i, body := range [][]byte{first, last} {
		part, err := up.PutPart(ctx, i+1, blob.Bytes(body), blob.CRC32C(body))
		if err != nil {
			return abort(err)
		}
		sent = append(sent, part)
	}
	if _, err := up.Complete(ctx, sent); err != nil {
		return abort(err)
	}
	p.wrote = append(p.wrote, key)
	return nil
}

// delete removes what the probes wrote, also when ctx is done.
func (p *prober) delete(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	var failed error
	for _, key := range p.wrote {
		if err := p.b.Delete(ctx, key); err != nil {
			failed = err
		}
	}
	if failed == nil {
		p.fs.add("delete", OK, "objects can be deleted", "")
		return
	}
	p.fs.add("delete", Warn, fmt.Sprintf("%v (scratch objects stay under %s)", failed, scratch),
		"uploads and restores work without it, pruning does not: "+remedy(failed, "delete objects"))
}

// conditional finds out about create-if-absent.
func (p *prober) conditional(ctx context.Context) {
	r, err := blob.Probe(ctx, p.b, scratch)
	switch {
	case err != nil:
		p.fs.fail("create-if-absent", Warn, err, "create objects with If-None-Match and read them")
	case r.Verdict == blob.ProbeWorks:
		p.fs.add("create-if-absent", OK, r.Details, "")
	default:
		p.fs.add("create-if-absent", Warn, r.Details,
			"only one writer per run is safe on this store, and several nodes are refused: where jobs can overlap, use a store (or a version of it) that has conditional writes")
	}
}

// unfinished counts uploads in parts that nobody ended.
func (p *prober) unfinished(ctx context.Context) {
	u, ok := blob.As[blob.UploadLister](p.b)
	if !ok {
		return
	}
	n, oldest := 0, time.Time{}
	for up, err := range u.Uploads(ctx, "") {
		if err != nil {
			p.fs.add("unfinished uploads", Note, "cannot be listed: "+err.Error(), "let the credentials list multipart uploads, or have a lifecycle rule abort old ones")
			return
		}
		n++
		if oldest.IsZero() || !up.Started.IsZero() && up.Started.Before(oldest) {
			oldest = up.Started
		}
	}
	switch {
	case n == 0:
		p.fs.add("unfinished uploads", OK, "none", "")
	case !oldest.IsZero() && p.now().Sub(oldest) < uploadAge:
		p.fs.add("unfinished uploads", OK, fmt.Sprintf("%d, all begun within the last day", n), "")
	default:
		p.fs.add("unfinished uploads", Note, fmt.Sprintf("%d%s", n, begun(oldest)),
			"what they hold is paid for: have a lifecycle rule abort incomplete uploads after a week")
	}
}

func begun(oldest time.Time) string {
	if oldest.IsZero() {
		return ""
	}
	return ", the oldest begun " + oldest.UTC().Format(time.RFC3339)
}

// encryption says for whom a run is encrypted, if it is. It needs no identity.
func (fs *Findings) encryption(ctx context.Context, store *commit.Store) {
	k, err := store.KeyState(ctx)
	switch {
	case err != nil, k.Key == "": // what is wrong with the store is said elsewhere
	case k.Wrapped == 0:
		fs.add("encryption", Bad, "it has key "+k.Key+", and no copy of that key is in the store", "put back the object below keys/; without it nobody can read the run")
	case k.Wrapped > 1:
		fs.add("encryption", Warn, fmt.Sprintf("its key can be opened by %s, and by whom it could be before", strings.Join(k.Recipients, ", ")),
			"a rekey was cut off: do it again with 'ckptsync rekey'")
	default:
		fs.add("encryption", OK, fmt.Sprintf("key %s, which %s can open", k.Key, strings.Join(k.Recipients, ", ")), "")
	}
}

// Run looks at what a store holds of a run, and at what there is not
// ckptsync's.
func Run(ctx context.Context, store *commit.Store) Findings {
	var fs Findings
	fs.encryption(ctx, store)
	ok, err := store.Exists(ctx)
	if err != nil {
		fs.fail("run", Bad, err, "read objects")
		return fs
	}
	if !ok {
		fs.add("run", Note, "nothing of it is in the store yet", "if there should be something, check the run's name and the store's prefix")
	} else if v, err := store.View(ctx); err != nil {
		fs.fail("run", Bad, err, "list and read objects")
	} else {
		fs.add("run", OK, summary(v), "")
	}
	n, first, scratch := 0, "", 0
	for info, err := range store.Foreign(ctx) {
		if err != nil {
			fs.add("foreign objects", Note, "cannot be listed: "+err.Error(), remedy(err, "list objects"))
			return fs
		}
		if strings.HasPrefix(info.Key, store.Key("probe/")) || strings.HasPrefix(info.Key, store.Key("probe-")) {
			scratch++
			continue
		}
		if n++; n == 1 {
			first = info.Key
		}
	}
	if n > 0 {
		fs.add("foreign objects", Note, fmt.Sprintf("%d under the run's prefix are not ckptsync's, the first is %s", n, first), "nothing: they are never touched, nor taken for anything")
	}
	if scratch > 0 {
		fs.add("scratch objects", Note, fmt.Sprintf("%d under %s* were left by processes that died while they tried out the store, or that it lets delete nothing", scratch, store.Key("probe")),
			"nothing: they are small and taken for nothing, and may be deleted by hand while no ckptsync starts")
	}
	return fs
}

func summary(v *commit.View) string {
	return fmt.Sprintf("%s, %s", count(len(v.Commits), "commit"), count(len(v.Attempts), "attempt"))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return humanize.Comma(int64(n)) + " " + noun + "s"
}
