// Command peers moves the files of a directory to a bucket and back with the
// libraries that Go programs use for that, at their defaults, eight files at a
// time:
//
//	peers gocloud|transfermanager up|down DIR BUCKET PREFIX
//
// The endpoint, the region and the credentials are those of the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
	"golang.org/x/sync/errgroup"
)

const filesAtOnce = 8

// peer moves one file.
type peer interface {
	up(ctx context.Context, f *os.File, key string) error
	down(ctx context.Context, f *os.File, key string) error
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 5 {
		return errors.New("usage: peers gocloud|transfermanager up|down DIR BUCKET PREFIX")
	}
	name, direction, dir, bucket, prefix := args[0], args[1], args[2], args[3], strings.TrimSuffix(args[4], "/")+"/"
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	var p peer
	switch name {
	case "gocloud":
		b, err := s3blob.OpenBucket(ctx, client, bucket, nil)
		if err != nil {
			return err
		}
		defer b.Close()
		p = gocloud{b}
	case "transfermanager":
		p = manager{transfermanager.New(client), bucket}
	default:
		return fmt.Errorf("there is no peer %q", name)
	}
	if direction == "up" {
		return upAll(ctx, p, dir, prefix)
	}
	return downAll(ctx, p, client, dir, bucket, prefix)
}

func upAll(ctx context.Context, p peer, dir, prefix string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		g.Go(func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return p.up(ctx, f, prefix+filepath.ToSlash(rel))
		})
		return nil
	})
	return errors.Join(err, g.Wait())
}

func downAll(ctx context.Context, p peer, client *s3.Client, dir, bucket, prefix string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			path := filepath.Join(dir, strings.TrimPrefix(key, prefix))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			g.Go(func() error {
				f, err := os.Create(path)
				if err != nil {
					return err
				}
				return errors.Join(p.down(gctx, f, key), f.Close())
			})
		}
	}
	return g.Wait()
}

// gocloud uses the writer and the reader of gocloud.dev.
type gocloud struct{ b *blob.Bucket }

func (p gocloud) up(ctx context.Context, f *os.File, key string) error {
	w, err := p.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, w.Close())
}

func (p gocloud) down(ctx context.Context, f *os.File, key string) error {
	r, err := p.b.NewReader(ctx, key, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(f, r)
	return err
}

// manager uses the SDK's transfermanager.
type manager struct {
	m      *transfermanager.Client
	bucket string
}

func (p manager) up(ctx context.Context, f *os.File, key string) error {
	_, err := p.m.UploadObject(ctx, &transfermanager.UploadObjectInput{Bucket: &p.bucket, Key: &key, Body: f})
	return err
}

func (p manager) down(ctx context.Context, f *os.File, key string) error {
	_, err := p.m.DownloadObject(ctx, &transfermanager.DownloadObjectInput{Bucket: &p.bucket, Key: &key, WriterAt: f})
	return err
}
