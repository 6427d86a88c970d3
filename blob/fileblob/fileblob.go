// Package fileblob keeps objects as plain files in a directory, on any number
// of processes and, as far as the file system allows, hosts at once.
//
// # What is promised
//
// An object is a regular file, under the path that its key spells, readable
// with any tool. Put writes a temporary file, checks the CRC32C of the bytes as
// it writes them, fsyncs it, moves it into place in one step, and fsyncs the
// directory and its parents; when it returns nil the object survives a power
// cut. Create-if-absent is link(2), or a rename that does not replace where
// there are no hard links; where there is neither, IfAbsent is ErrUnsupported.
// NFS and FUSE keep these promises as far as they keep link, rename and fsync.
//
// Everything that is not an object yet is below one hidden directory of the
// store, [Hidden], on the same file system: temporary files, and uploads in
// parts, which survive the process and even a power cut, part by part. List
// never shows it, and keys that begin with it are refused. Temporary files that
// killed processes left are removed by Open when they are older than a day.
//
// # What a directory cannot do
//
// The keys a and a/b exclude each other: the second Put is ErrUnsupported. On
// file systems that fold case or normalize Unicode, keys that differ only in
// that are one key. Symbolic links are not objects, and nothing outside of the
// directory is ever touched through one.
//
// # Errors
//
// ENOENT is ErrNotExist; EACCES, EPERM and EROFS are ErrDenied; names that the
// file system cannot spell are ErrUnsupported. A full disk or quota (ENOSPC,
// EDQUOT) is ErrTemporary, as a full object store would answer: it passes when
// space is freed, and the error names it until then. EIO and ESTALE are
// ErrTemporary too, since on a network they pass; a medium that stays
// unreadable stays an error and is never taken for an absent object. A file
// that is shorter than it was when it was opened is ErrCorrupt.
//
// # A server that hangs
//
// A system call on NFS or Lustre whose server is gone waits in the kernel, where
// no context and no time limit reaches it: on a hard mount until the server is
// back, on a soft one until the mount gives up with EIO, which is ErrTemporary.
// Contexts are looked at before each call of a file and between the blocks of a
// copy, so that only the one call that hangs is late. Nothing is torn by that, and
// what waits goes on by itself; the process can be killed meanwhile (these waits
// end on SIGKILL), and the next one finds whole objects only.
package fileblob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/durable"
)

// Hidden is the directory, directly in the store's, of temporary files and
// unfinished uploads.
const Hidden = ".ckptsync-tmp"

// Options modify Open.
type Options struct {
	// Create makes the store's directory if it is missing, but never its
	// parent: a parent that is missing is more often a file system that is not
	// mounted than a wish for a new one.
	Create bool
	// Mounted refuses a directory that lies on the same file system as "/", so
	// that the empty mount point of a file system that is not mounted is never
	// taken for an empty store.
	Mounted bool
}

// Bucket is an open store. Its methods may be called concurrently.
type Bucket struct {
	d    *durable.Dir
	path string // absolute

	mu   sync.Mutex
	safe map[string]fs.FileInfo // directories whose way up to the store is durable
}

var (
	_ blob.Bucket       = (*Bucket)(nil)
	_ blob.UploadLister = (*Bucket)(nil)
	_ blob.Describer    = (*Bucket)(nil)
)

// staleAge is how old a temporary file is that Open removes.
const staleAge = 24 * time.Hour

// Open opens the store in the directory dir. opts may be nil.
//
// A directory that is missing is an error that is not ErrNotExist, unless
// opts.Create: "the store is empty" and "the store is not there" must not look
// alike to a restore. Open writes nothing into a store that has no temporary
// files to clean, so a store on a read-only file system can be read.
func Open(dir string, opts *Options) (*Bucket, error) {
	if opts == nil {
		opts = &Options{}
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, classify("open store", dir, err)
	}
	if err := provide(path, opts.Create); err != nil {
		return nil, err
	}
	if opts.Mounted && onRootFileSystem(path) {
		return nil, blob.Errorf(blob.ErrTemporary, "open store", path,
			"it lies on the root file system: mount its own, or drop mounted=true")
	}
	d, err := durable.OpenDir(path)
	if err != nil {
		return nil, classify("open store", path, err)
	}
	b := &Bucket{d: d, path: path, safe: map[string]fs.FileInfo{}}
	// What cannot be cleaned now, on a read-only store for one, does no harm.
	_, _ = b.Clean(context.Background(), staleAge)
	return b, nil
}

// provide makes sure that the store's directory is there.
func provide(path string, create bool) error {
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.IsDir():
		return nil
	case err == nil:
		return blob.Errorf(blob.ErrUnsupported, "open store", path, "it is not a directory")
	case !errors.Is(err, fs.ErrNotExist):
		return classify("open store", path, err)
	case !create:
		return blob.Errorf(blob.ErrTemporary, "open store", path,
			"there is no such directory: mount its file system, or create it (mkdir, or ?create=true in the store's URL)")
	}
	parent := filepath.Dir(path)
	if fi, err := os.Stat(parent); err != nil || !fi.IsDir() {
		return blob.Errorf(blob.ErrTemporary, "open store", path,
			"its parent %s is missing too: mount its file system, or create the parent by hand", parent)
	}
	if err := durable.MkdirAll(path, 0o777); err != nil {
		return classify("open store", path, err)
	}
	return nil
}

// OpenURL opens file:///dir with the parameters create and mounted, which are
// true or false; any other parameter is an error.
func OpenURL(u *url.URL) (*Bucket, error) {
	bad := func(format string, args ...any) error {
		return blob.Errorf(blob.ErrUnsupported, "open store", u.Redacted(), format, args...)
	}
	if u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || u.Path == "" || u.Fragment != "" || u.User != nil {
		return nil, bad("want file:///absolute/path")
	}
	var opts Options
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, bad("%w", err)
	}
	for name, values := range query {
		into := map[string]*bool{"create": &opts.Create, "mounted": &opts.Mounted}[name]
		if into == nil {
			return nil, bad("unknown parameter %q: there are create and mounted", name)
		}
		if len(values) != 1 || values[0] != "true" && values[0] != "false" {
			return nil, bad("%s must be true or false, once", name)
		}
		*into = values[0] == "true"
	}
	return Open(filepath.FromSlash(u.Path), &opts)
}

// Close releases the directory. Streams that are open stay so.
func (b *Bucket) Close() error { return b.d.Close() }

// Location implements blob.Describer.
func (b *Bucket) Location(key string) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(b.path, filepath.FromSlash(key)))}
	return u.String()
}

// alive returns an error if the store's path leads to another directory now, or
// to none: it was removed, or its file system was unmounted. What is missing
// from it then is not absent.
func (b *Bucket) alive(op, key string) error {
	now, err := os.Stat(b.path)
	if err == nil {
		var held fs.FileInfo
		if held, err = b.d.Root().Stat("."); err == nil && !os.SameFile(now, held) {
			err = errors.New("another directory is there now")
		}
	}
	if errors.Is(err, fs.ErrPermission) { // of a directory above it
		return classify(op, key, err)
	}
	if err != nil {
		return blob.Errorf(blob.ErrTemporary, op, key, "the store %s went away (unmounted, or removed): %w", b.path, opaque{err})
	}
	return nil
}

// opaque keeps the text of an error and hides what it matches, so that a store
// that is missing does not match the class of an object that is.
type opaque struct{ err error }

func (o opaque) Error() string { return o.err.Error() }

// etag tells the versions of a file apart: each is a new inode whose
// modification time has random digits below a millisecond.
func etag(fi fs.FileInfo) string {
	return fmt.Sprintf("%x-%x-%x", inode(fi), fi.ModTime().UnixNano(), fi.Size())
}

func info(key string, fi fs.FileInfo) blob.Info {
	return blob.Info{Key: key, Size: fi.Size(), ModTime: fi.ModTime(), ETag: etag(fi)}
}
