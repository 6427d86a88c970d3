package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

// store is a server under load, in a process of its own.
type store struct {
	name     string
	scheme   string
	endpoint string
	keeps    bool // what it is sent; else it is the sink
	gateway  *stores.Gateway
	stop     func()
	pid      int // of the sink
	client   *http.Client
}

func (st *store) String() string { return st.name + " over " + st.scheme }

// url is the store URL of ckptsync.
func (st *store) url() string { return storeURL(st.endpoint) }

func storeURL(endpoint string) string {
	q := url.Values{"endpoint": {endpoint}, "region": {stores.Region}, "path_style": {"true"}}
	return "s3://" + bucketName + "?" + q.Encode()
}

// startStore starts the server of that name.
func (b *bench) startStore(ctx context.Context, name, scheme string) (*store, error) {
	var cert, key string
	switch scheme {
	case "http":
	case "https":
		cert, key = b.ca.cert, b.ca.key
	default:
		return nil, fmt.Errorf("%q is neither http nor https", scheme)
	}
	st := &store{name: name, scheme: scheme, client: http.DefaultClient}
	switch name {
	case "sink":
		srv, err := startServer(ctx, "sink", sinkArgs{Roots: b.dir, Cert: cert, Key: key})
		if err != nil {
			return nil, err
		}
		st.endpoint, st.stop, st.pid = srv.first, srv.stop, srv.cmd.Process.Pid
		if scheme == "https" {
			bare, err := newBareClient(cert)
			if err != nil {
				return nil, err
			}
			st.client = bare.http
		}
		return st, nil
	case "versitygw":
		bin, err := stores.BuildVersitygw(ctx)
		if err != nil {
			return nil, err
		}
		g, err := stores.StartVersitygwTLS(ctx, bin, filepath.Join(b.dir, b.fresh(name)), cert, key)
		if err != nil {
			return nil, err
		}
		st.gateway, st.endpoint, st.keeps = g, g.Endpoint(), true
		st.stop = func() { g.Stop(); os.RemoveAll(filepath.Dir(g.DataDir())) }
		return st, g.MakeBucket(bucketName)
	}
	return nil, fmt.Errorf("there is no store %q; sink and versitygw are", name)
}

// empty makes a store forget everything, outside of what is measured.
func (st *store) empty(ctx context.Context) error {
	if !st.keeps {
		_, err := st.ask(ctx, "reset")
		return err
	}
	entries, err := os.ReadDir(st.data())
	if err != nil {
		return err
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(st.data(), e.Name())))
	}
	return err
}

// data is where a store that keeps its objects has them.
func (st *store) data() string { return filepath.Join(st.gateway.DataDir(), bucketName) }

// stats are what the sink counted.
func (st *store) stats(ctx context.Context) (s sinkStats, err error) {
	text, err := st.ask(ctx, "stats")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

func (st *store) ask(ctx context.Context, word string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, st.endpoint+"/_bench/"+word, nil)
	if err != nil {
		return nil, err
	}
	resp, err := st.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the sink says %s", resp.Status)
	}
	return text, err
}

// until asks the sink again and again until is says that it is so.
func (st *store) until(ctx context.Context, r *running, is func(sinkStats) bool) (sinkStats, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := st.stats(ctx)
		if err != nil || is(s) {
			return s, err
		}
		select {
		case <-tick.C:
		case <-r.ended:
			if s, err = st.stats(ctx); err != nil || is(s) {
				return s, err
			}
			_, err := r.wait()
			return s, fmt.Errorf("it ended too soon: %w", errors.Join(err, errors.New(r.errs.last())))
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// dataFolder finds where the files of a run's first step are: the bucket and
// the folder.
func (b *bench) dataFolder(ctx context.Context, st *store, run string) (string, error) {
	_, text, err := b.ckptsync(st, "show", "1", "--run", run, "--json").run(ctx)
	if err != nil {
		return "", err
	}
	var show struct {
		Entries []struct {
			Object string `json:"object"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(text, &show); err != nil {
		return "", err
	}
	for _, e := range show.Entries {
		if strings.HasSuffix(e.Object, ".dat") {
			return bucketName + "/" + path.Dir(e.Object), nil
		}
	}
	return "", fmt.Errorf("the commit of run %s names no file", run)
}
