package upload

import (
	"context"
	"errors"
	"os"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/pagecache"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// ErrStopped says that Send was told to stop before everything was sent. What
// the store acknowledged is in the Log.
var ErrStopped = errors.New("told to stop")

func (f *File) stopped() bool { return f.Stop != nil && f.Stop() }

func (f *File) sure(file *os.File, off, n int64) bool { return f.Sure != nil && f.Sure(file, off, n) }

// doubtedLast are the indices of the files, those last of which parts have to be
// read once more: the wire need not wait for hashes.
func doubtedLast(files []File) []int {
	var first, last []int
	for i := range files {
		doubted := false
		for _, p := range files[i].Sent {
			doubted = doubted || p.Doubt
		}
		if doubted {
			last = append(last, i)
		} else {
			first = append(first, i)
		}
	}
	return append(first, last...)
}

// Whole sends a file of at most one chunk as one object, and tells the log. It
// is what Send does with such a file, but it leaves the page cache alone: the
// file is read again.
func (u *Uploader) Whole(ctx context.Context, f *File, log Log) error {
	d, err := u.small(ctx, f, pagecache.Keep)
	if err != nil {
		return err
	}
	return log.FileSent(f, d)
}

// Growing is the upload of a file that is still being written. Its parts are
// sent as the file is now, and are doubted until the file is final: whoever
// completes the upload reads them once more ([SentPart]). Its methods may be
// called concurrently.
type Growing struct {
	u  *Uploader
	up blob.Upload
}

// ID is that of the upload.
func (g *Growing) ID() string { return g.up.ID() }

// Grow begins an upload of unknown size, or continues f.UploadID; of f.Sent it
// then keeps what the store bears out. If the store does not know that upload
// any more a new one is begun under f.Fresh. The error is blob.ErrUnsupported
// where the store takes no parts.
func (u *Uploader) Grow(ctx context.Context, f *File, log Log) (*Growing, error) {
	f.Growing = true
	g := &Growing{u: u}
	if f.UploadID != "" {
		up, err := u.bucket.Upload(ctx, f.Object, f.UploadID, f.options())
		if err == nil {
			g.up = up
			err = reconcile(ctx, up, f)
		}
		if !errors.Is(err, blob.ErrNotExist) {
			return g, err
		}
		f.Object, f.UploadID, f.Sent = f.Fresh, "", nil
	}
	up, err := u.bucket.Upload(ctx, f.Object, "", f.options())
	if err != nil {
		return nil, err
	}
	g.up = up
	return g, log.Begun(f, up.ID())
}

// Send reads part n of the file as f has it now, which is size bytes long, sends
// it, unless it is what f.Sent has, and tells the log. The
// file may change meanwhile; one that is another by now, or shorter, is a *ChangedError.
func (g *Growing) Send(ctx context.Context, f *File, n int, size int64, log Log) error {
	file, err := openInode(f)
	if err != nil {
		return err
	}
	defer file.Close()
	off := int64(n-1) * f.Chunk
	firm := f.Sure != nil && still(f, file) == nil && f.sure(file, off, size)
	return g.u.withChunk(ctx, f, file, off, size, func(ctx context.Context, src blob.Source, d commit.Digest, crc uint32) error {
		p := SentPart{Digest: d, Doubt: true, Firm: firm && still(f, file) == nil}
		if was, ok := f.Sent[n]; ok && was.Digest == d && was.Size == size {
			p.Part = was.Part
			return log.PartSent(f, g.up.ID(), p)
		}
		if p.Part, err = g.up.PutPart(ctx, n, src, crc); err != nil {
			return err
		}
		g.u.progress(size, 0)
		return log.PartSent(f, g.up.ID(), p)
	})
}

// Alike reads part n of a file, which is size bytes long, and reports whether
// it has that digest now.
func (u *Uploader) Alike(ctx context.Context, f *File, n int, size int64, want commit.Digest) (alike bool, err error) {
	file, err := openInode(f)
	if err != nil {
		return false, err
	}
	defer file.Close()
	err = u.withChunk(ctx, f, file, int64(n-1)*f.Chunk, size, func(_ context.Context, _ blob.Source, d commit.Digest, _ uint32) error {
		alike = d == want
		return nil
	})
	return alike, err
}

// openInode opens a file that may have changed, but must be the same file.
func openInode(f *File) (*os.File, error) {
	file, err := f.Open()
	if err != nil {
		return nil, &ReadError{Path: f.Path, Err: err}
	}
	fi, err := file.Stat()
	if err == nil && (!fi.Mode().IsRegular() || tree.IdentOf(fi).Inode != f.Ident.Inode) {
		err = &ChangedError{Path: f.Path, Why: "another file stands in its place"}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// options are those of the file's upload in parts.
func (f *File) options() *blob.UploadOptions {
	o := &blob.UploadOptions{Size: f.Ident.Size, PartSize: f.Chunk}
	if f.Growing {
		o.Size = blob.SizeUnknown
	}
	return o
}

// reconcile keeps of f.Sent what the store bears out: same number, size and
// version.
func reconcile(ctx context.Context, up blob.Upload, f *File) error {
	have, err := up.Parts(ctx)
	if err != nil {
		return err
	}
	there := make(map[int]blob.Part, len(have))
	for _, p := range have {
		there[p.Number] = p
	}
	for n, p := range f.Sent {
		if t, ok := there[n]; !ok || t.Size != p.Size || t.ETag != p.ETag {
			delete(f.Sent, n)
		}
	}
	return nil
}
