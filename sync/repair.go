package syncer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// RepairOptions say what to send again, and from where.
type RepairOptions struct {
	Store *commit.Store
	Root  string        // with the step's files, or what is left of them
	Files []commit.File // that proved damaged, as their manifests have them

	Concurrency int   // requests at once
	Memory      int64 // bytes of file content in memory
}

// Repair sends damaged files again that are under the root with every byte
// right, to the objects that they had: the same content, so that no key carries
// two (R2). It returns the objects that are whole in the store again, by their
// keys below the run's prefix; of the others there is no right copy here. Of a
// path that several nodes have saved differently, each version is an object of
// its own.
func Repair(ctx context.Context, o RepairOptions) ([]string, error) {
	var todo []upload.File
	var files []*commit.File // of todo
	for i := range o.Files {
		f := &o.Files[i]
		path := filepath.Join(o.Root, filepath.FromSlash(f.Path))
		fi, err := os.Lstat(path)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() != f.Size {
			continue
		}
		same, err := hasDigests(ctx, path, f)
		if err != nil {
			return nil, err
		}
		if same {
			files = append(files, f)
			todo = append(todo, upload.File{
				Path: f.Path, Ident: tree.IdentOf(fi), Object: o.Store.Key(f.Object), Chunk: f.Chunk,
				Open: func() (*os.File, error) { return os.Open(path) },
			})
		}
	}
	digests, err := upload.New(o.Store.Bucket(), o.Concurrency, o.Memory).Send(ctx, todo, noLog{})
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	var whole []string
	for i, f := range files {
		if !sameDigests(digests[i], f.Digest) {
			return whole, fmt.Errorf("repair: %s changed while it was sent: verify again", f.Path)
		}
		whole = append(whole, f.Object)
	}
	return whole, nil
}

// noLog is the log of an upload that is not continued.
type noLog struct{}

func (noLog) Begun(*upload.File, string) error                     { return nil }
func (noLog) PartSent(*upload.File, string, upload.SentPart) error { return nil }
func (noLog) FileSent(*upload.File, []commit.Digest) error         { return nil }
