package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Markers lists the commits that have a marker, retired ones included,
// ascending. What counts is in a View: this is for those who clean up.
func (s *Store) Markers(ctx context.Context) ([]ID, error) {
	var out []ID
	for o, err := range s.list(ctx, "commits/") {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindMarker {
			out = append(out, o.ID)
		}
	}
	return out, nil
}

// DataObject is a data object as a listing shows it.
type DataObject struct {
	Object
	Name    string    // its key below the run's prefix, as manifests have it
	Size    int64     // bytes
	ModTime time.Time // by the store's clock
}

// Data lists the run's data objects, whether a manifest names them or not,
// ascending by key: those of one commit follow each other.
func (s *Store) Data(ctx context.Context) iter.Seq2[DataObject, error] {
	return func(yield func(DataObject, error) bool) {
		for o, err := range s.list(ctx, "data/") {
			if err != nil {
				yield(DataObject{}, err)
				return
			}
			if o.Kind != KindData {
				continue
			}
			d := DataObject{Object: o.Object, Name: o.Info.Key[len(s.run)+1:], Size: o.Info.Size, ModTime: o.Info.ModTime}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// Now asks the store for its time, by creating a scratch object, which it
// deletes again. A store that says no times gives the zero time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	key := s.Key("probe-" + rand.Text() + "/clock")
	if _, err := s.b.Put(ctx, key, blob.Bytes("ckptsync\n"), nil); err != nil {
		return time.Time{}, fmt.Errorf("ask the store for its time: %w", err)
	}
	info, err := s.b.Stat(ctx, key)
	if derr := s.b.Delete(ctx, key); err == nil && derr != nil && !errors.Is(derr, blob.ErrDenied) {
		err = derr
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the store for its time: %w", err)
	}
	return info.ModTime, nil
}

// AbortUnder forgets the uploads in parts that were begun for a commit's data
// and never completed, and returns how many. It does nothing on a store that
// cannot list them. Who may do that, and when, is in protocol R11.
func (s *Store) AbortUnder(ctx context.Context, id ID) (int, error) {
	lister, ok := blob.As[blob.UploadLister](s.b)
	if !ok {
		return 0, nil
	}
	n := 0
	for u, err := range lister.Uploads(ctx, s.Key("data/"+id.String()+"/")) {
		if errors.Is(err, blob.ErrUnsupported) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("run %s: %w", s.run, err)
		}
		done, err := s.AbortUpload(ctx, u)
		if err != nil {
			return n, err
		}
		if done {
			n++
		}
	}
	return n, nil
}

// AbortUpload forgets one of the run's uploads in parts. False without an error:
// it is over already.
func (s *Store) AbortUpload(ctx context.Context, u blob.UnfinishedUpload) (bool, error) {
	up, err := s.b.Upload(ctx, u.Key, u.ID, &blob.UploadOptions{Size: blob.SizeUnknown, PartSize: blob.MinPart})
	if errors.Is(err, blob.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = up.Abort(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("give up an unfinished upload: %w", err)
	}
	return true, nil
}
