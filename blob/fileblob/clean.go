package fileblob

import (
	"cmp"
	"context"
	"encoding/json"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Uploads implements blob.UploadLister, ascending by key and id.
func (b *Bucket) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		found, err := b.uploads(ctx, prefix)
		if err != nil {
			yield(blob.UnfinishedUpload{}, err)
			return
		}
		for _, u := range found {
			if err := blob.ContextError(ctx, "list uploads", prefix); err != nil {
				yield(blob.UnfinishedUpload{}, err)
				return
			}
			if !yield(u, nil) {
				return
			}
		}
	}
}

func (b *Bucket) uploads(ctx context.Context, prefix string) ([]blob.UnfinishedUpload, error) {
	const op = "list uploads"
	if err := blob.ContextError(ctx, op, prefix); err != nil {
		return nil, err
	}
	if err := b.alive(op, prefix); err != nil {
		return nil, err
	}
	entries, err := b.hidden(upPrefix)
	if err != nil {
		return nil, classify(op, prefix, err)
	}
	var found []blob.UnfinishedUpload
	for _, e := range entries {
		key, started, err := b.uploadOf(e.Name())
		if err != nil && !missing(err) {
			return nil, classify(op, prefix, err)
		}
		if err == nil && strings.HasPrefix(key, prefix) {
			found = append(found, blob.UnfinishedUpload{Key: key, ID: strings.TrimPrefix(e.Name(), upPrefix), Started: started})
		}
	}
	slices.SortFunc(found, func(u, v blob.UnfinishedUpload) int {
		return cmp.Or(cmp.Compare(u.Key, v.Key), cmp.Compare(u.ID, v.ID))
	})
	return found, nil
}

// uploadOf reads whose an upload's directory is. The error matches
// fs.ErrNotExist if it is no upload (any more).
func (b *Bucket) uploadOf(name string) (key string, started time.Time, err error) {
	root := b.d.Root()
	if _, err := root.Lstat(path.Join(Hidden, name, "data")); err != nil {
		return "", time.Time{}, err
	}
	data, err := root.ReadFile(path.Join(Hidden, name, "meta.json"))
	if err != nil {
		return "", time.Time{}, err
	}
	fi, err := root.Lstat(path.Join(Hidden, name, "meta.json"))
	if err != nil {
		return "", time.Time{}, err
	}
	var m meta
	if err := json.Unmarshal(data, &m); err != nil || m.Format != metaFormat {
		return "", time.Time{}, fs.ErrNotExist
	}
	return m.Key, fi.ModTime(), nil
}

// Clean removes temporary files and the remains of uploads that are over, if
// they are older than age by the file system's clock, and returns how many. It
// never touches an upload that can be continued: those are its owner's, who
// finds them with Uploads and aborts them.
func (b *Bucket) Clean(ctx context.Context, age time.Duration) (int, error) {
	const op = "clean"
	if err := blob.ContextError(ctx, op, ""); err != nil {
		return 0, err
	}
	if _, err := b.d.Root().Lstat(Hidden); missing(err) {
		return 0, nil
	}
	n, err := b.d.Clean(Hidden, age, func(name string) bool {
		return strings.HasPrefix(name, "put-") || strings.HasPrefix(name, ".")
	})
	if err != nil {
		return n, classify(op, "", err)
	}
	over, err := b.over()
	if err != nil || len(over) == 0 {
		return n, classify(op, "", err)
	}
	now, err := b.d.Now(Hidden)
	if err != nil {
		return n, classify(op, "", err)
	}
	for _, fi := range over {
		if now.Sub(fi.ModTime()) <= age {
			continue
		}
		if err := b.d.Root().RemoveAll(path.Join(Hidden, fi.Name())); err != nil {
			return n, classify(op, "", err)
		}
		n++
	}
	return n, classify(op, "", b.d.Sync(Hidden))
}

// over lists the directories of uploads that cannot be continued: completed,
// aborted, or never begun in full.
func (b *Bucket) over() ([]fs.FileInfo, error) {
	dead, err := b.hidden(deadPrefix)
	if err != nil {
		return nil, err
	}
	ups, err := b.hidden(upPrefix)
	if err != nil {
		return nil, err
	}
	for _, e := range ups {
		if _, _, err := b.uploadOf(e.Name()); missing(err) {
			dead = append(dead, e)
		}
	}
	var over []fs.FileInfo
	for _, e := range dead {
		if fi, err := e.Info(); err == nil {
			over = append(over, fi)
		}
	}
	return over, nil
}
