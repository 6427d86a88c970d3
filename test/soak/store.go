package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/test/stores"
)

// store is a real server behind a proxy that has its bad days.
type store struct {
	gateway *stores.Gateway
	proxy   *stores.Proxy
	bucket  blob.Bucket // past the proxy
	url     string      // through it

	mu     sync.Mutex
	rng    *rand.Rand
	storm  time.Time // until then it is busy
	calm   time.Time // until then it is not busy
	counts map[stores.Fate]int
}

func openStore(ctx context.Context, dir string, seed uint64) (*store, error) {
	bin, err := stores.BuildVersitygw(ctx)
	if err != nil {
		return nil, err
	}
	s := &store{rng: rand.New(rand.NewPCG(seed, 1)), counts: map[stores.Fate]int{}, calm: time.Now().Add(20 * time.Second)}
	if s.gateway, err = stores.StartVersitygw(ctx, bin, filepath.Join(dir, "gateway")); err != nil {
		return nil, err
	}
	if err := s.gateway.MakeBucket("ckpt"); err != nil {
		return nil, err
	}
	if s.proxy, err = stores.NewProxy(ctx, s.gateway.Endpoint(), s.fate); err != nil {
		return nil, err
	}
	u := s.gateway.URL("ckpt", "team")
	s.url = strings.Replace(u, url.QueryEscape(s.gateway.Endpoint()), url.QueryEscape(s.proxy.Endpoint()), 1)
	s.bucket, err = s3blob.Open(ctx, u, s3blob.Options{})
	return s, err
}

func (s *store) close() {
	s.proxy.Close()
	s.gateway.Stop()
}

// fate lets some 4 % of the requests go wrong, and in a storm every other one.
func (s *store) fate(_ int, r *http.Request) stores.Fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.After(s.calm) {
		s.storm = now.Add(time.Duration(1+s.rng.IntN(4)) * time.Second)
		s.calm = s.storm.Add(time.Duration(20+s.rng.IntN(60)) * time.Second)
	}
	f := stores.Pass
	switch p := s.rng.IntN(1000); {
	case now.Before(s.storm) && p < 500:
		f = stores.Busy
	case p < 10:
		f = stores.Drop
	case p < 20:
		f = stores.Lose
	case p < 30:
		f = stores.Busy
	case p < 40 && r.Method == http.MethodGet:
		f = stores.Short
	case p < 42:
		f = stores.Stall
	}
	s.counts[f]++
	return f
}

// told says how many requests went which way.
func (s *store) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	return fmt.Sprintf("%d requests, of which %d dropped, %d without their answer, %d refused as too many, %d cut short, %d stalled",
		c[stores.Pass]+c[stores.Drop]+c[stores.Lose]+c[stores.Busy]+c[stores.Short]+c[stores.Stall],
		c[stores.Drop], c[stores.Lose], c[stores.Busy], c[stores.Short], c[stores.Stall])
}

// head is the head of a run, as the store has it now; 0: there is none.
func (s *store) head(ctx context.Context, run string) (int64, error) {
	v, err := s.view(ctx, run)
	if err != nil {
		return 0, err
	}
	id, _ := v.Head()
	return id.Step, nil
}

func (s *store) view(ctx context.Context, run string) (*commit.View, error) {
	st, err := commit.NewStore(s.bucket, run)
	if err != nil {
		return nil, err
	}
	return st.View(ctx)
}

// audit reads every commit of a run and holds it against the trainer's saves.
func (s *store) audit(ctx context.Context, run string, lives int) (int, error) {
	st, err := commit.NewStore(s.bucket, run)
	if err != nil {
		return 0, err
	}
	v, err := st.View(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range v.Commits {
		_, parts, err := st.Load(ctx, c.ID)
		if err != nil {
			return 0, fmt.Errorf("a torn commit: %w", err)
		}
		got := map[string]string{}
		for _, f := range parts[0].Files {
			if f.Type != commit.TypeFile {
				continue
			}
			data, err := blob.ReadAll(ctx, s.bucket, st.Key(f.Object), 1<<30)
			if err != nil {
				return 0, fmt.Errorf("a torn commit: %s: %w", c.ID, err)
			}
			got[path.Base(f.Path)] = string(data)
		}
		if err := matches(got, int(c.Step), lives); err != nil {
			return 0, fmt.Errorf("commit %s: %w", c.ID, err)
		}
	}
	return len(v.Commits), nil
}
