package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/test/stores"
)

// store is a server under load.
type store struct {
	name     string
	url      string // of the bucket
	endpoint string
	raw      bool // takes requests without a signature
	keeps    bool // what it is sent, which must be there before it is read and fit on the disk
	stop     func()
}

const benchBucket = "bench"

// startStore starts a server in a process of its own.
func startStore(ctx context.Context, name string, s settings) (*store, error) {
	for _, kv := range stores.Env() { // for the children as well
		k, v, _ := strings.Cut(kv, "=")
		if err := os.Setenv(k, v); err != nil {
			return nil, err
		}
	}
	switch name {
	case "sink":
		return startSink(ctx, s)
	case "versitygw":
		bin, err := stores.BuildVersitygw(ctx)
		if err != nil {
			return nil, err
		}
		g, err := stores.StartVersitygw(ctx, bin, filepath.Join(s.Dir, name))
		if err != nil {
			return nil, err
		}
		if err := g.MakeBucket(benchBucket); err != nil {
			g.Stop()
			return nil, err
		}
		return &store{name: name, url: g.URL(benchBucket, ""), endpoint: g.Endpoint(), keeps: true, stop: g.Stop}, nil
	}
	return nil, fmt.Errorf("there is none of this name; sink and versitygw are")
}

func startSink(ctx context.Context, s settings) (*store, error) {
	cmd, err := child(ctx, job{Settings: s, Mover: "sink"})
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	stop := func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() }
	if err != nil {
		stop()
		return nil, err
	}
	endpoint := strings.TrimSpace(line)
	q := url.Values{"endpoint": {endpoint}, "region": {stores.Region}, "path_style": {"true"}}
	return &store{name: "sink", url: "s3://" + benchBucket + "?" + q.Encode(), endpoint: endpoint, raw: true, stop: stop}, nil
}

// prepare makes the store ready for a mover, outside of what is measured: free
// of what was sent before, or holding what is to be fetched.
func (st *store) prepare(ctx context.Context, s settings, m mover) error {
	if !st.keeps {
		return nil
	}
	b, err := s3blob.Open(ctx, st.url, s3blob.Options{})
	if err != nil {
		return err
	}
	if m.dir == up {
		return b.Delete(ctx, objectKey)
	}
	if info, err := b.Stat(ctx, objectKey); err == nil && info.Size == s.Size {
		return nil
	}
	_, err = spawn(ctx, job{Settings: s, Mover: "s3blob", Dir: up, URL: st.url})
	return err
}
