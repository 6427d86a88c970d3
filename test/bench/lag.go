package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

func lagFlags(s *settings, f *flag.FlagSet) {
	s.StepSize = 2 << 30
	f.Var(&s.StepSize, "step-size", "`bytes` of a step, in 4 files")
	f.DurationVar(&s.Settle, "settle", 100*time.Millisecond, "the daemon's --settle: how long a complete step must have been quiet")
}

// writerArgs are a step to write.
type writerArgs struct {
	Dir   string
	Files int
	Each  int64
	Seed  int
}

// written is what the writer prints at the end.
type written struct {
	Began, Evidence int64 // UnixNano: before the first byte, after the marker
}

// writerJob writes a step as a trainer does that makes sure of its files: one
// after the other, each synced, the marker last. So it is as fast as the disk.
func writerJob(ctx context.Context, args json.RawMessage, out io.Writer) error {
	var a writerArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	w := written{Began: time.Now().UnixNano()}
	if err := os.MkdirAll(a.Dir, 0o755); err != nil {
		return err
	}
	for i := range a.Files {
		path := filepath.Join(a.Dir, fmt.Sprintf("lag-%d-%d.dat", a.Seed, i))
		if err := writeFast(ctx, path, a.Each, uint64(a.Seed*a.Files+i)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(a.Dir, markerName), []byte("done\n"), 0o600); err != nil {
		return err
	}
	w.Evidence = time.Now().UnixNano()
	return json.NewEncoder(out).Encode(w)
}

// writeFast writes and syncs a file of which no two blocks are the same.
func writeFast(ctx context.Context, path string, size int64, seed uint64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, block)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 3}).Read(buf)
	for at := int64(0); at < size && ctx.Err() == nil; at += block {
		binary.LittleEndian.PutUint64(buf, uint64(at))
		if _, err := f.Write(buf[:min(block, size-at)]); err != nil {
			return err
		}
	}
	return errors.Join(ctx.Err(), f.Sync(), f.Close())
}

// lagSample is one step.
type lagSample struct {
	Write  float64 // seconds that the writer took
	Lag    float64 // seconds from the evidence to the marker
	Before float64 // share of the bytes that were at the store when the evidence appeared
	Speed  float64 // bytes/s of data, from its first byte at the store to its last
}

// lag runs a daemon beside a writer.
func lag(ctx context.Context, b *bench) error {
	st, err := b.startStore(ctx, "sink", "http")
	if err != nil {
		return err
	}
	defer st.stop()
	root := filepath.Join(b.dir, "src", "lag")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	run := b.fresh("lag")
	args := append(b.onRun(run, root), "--settle", b.s.Settle.String())
	daemon, err := b.ckptsync(st, "daemon", args...).start(ctx)
	if err != nil {
		return err
	}
	defer daemon.kill()
	b.say("a step of 4 × %s at the speed of the disk; --settle %v", (*bytesFlag)(ptr(int64(b.s.StepSize)/4)).String(), b.s.Settle)
	var all []lagSample
	for n := range b.s.Rounds {
		s, err := b.lagOnce(ctx, st, daemon, root, n+1)
		if err != nil {
			return fmt.Errorf("step %d: %w", n+1, err)
		}
		all = append(all, s)
	}
	b.report.keep("lag", all)
	b.showLag(all)
	return nil
}

func ptr[T any](v T) *T { return &v }

// lagOnce writes a step and waits for its commit.
func (b *bench) lagOnce(ctx context.Context, st *store, daemon *running, root string, n int) (s lagSample, err error) {
	if err := touchFree(ctx, int64(b.s.StepSize)); err != nil {
		return s, err
	}
	if _, err := st.ask(ctx, "restart-clock"); err != nil {
		return s, err
	}
	before, err := st.stats(ctx)
	if err != nil {
		return s, err
	}
	dir := filepath.Join(root, fmt.Sprintf("step-%d", n))
	p, err := child("writer", writerArgs{Dir: dir, Files: 4, Each: int64(b.s.StepSize) / 4, Seed: n}, b.env(nil))
	if err != nil {
		return s, err
	}
	_, text, err := p.run(ctx)
	if err != nil {
		return s, err
	}
	at, err := st.stats(ctx)
	if err != nil {
		return s, err
	}
	var w written
	if err := json.Unmarshal(text, &w); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("no commit in ten minutes"))
	defer cancel()
	name := fmt.Sprintf("/commits/%012d-", n)
	end, err := st.until(ctx, daemon, func(s sinkStats) bool { return arrival(s, name) > 0 })
	if err != nil {
		return s, errors.Join(err, context.Cause(ctx))
	}
	s.Write = float64(w.Evidence-w.Began) / 1e9
	s.Lag = float64(arrival(end, name)-w.Evidence) / 1e9
	s.Before = float64(at.DataIn-before.DataIn) / float64(b.s.StepSize)
	s.Speed = float64(end.DataIn-before.DataIn) / (float64(end.Last-end.First) / 1e9)
	return s, os.RemoveAll(dir)
}

// arrival is when the marker of that name came; 0 if it did not.
func arrival(s sinkStats, name string) int64 {
	for _, m := range s.Commits {
		if strings.Contains(m.Key, name) {
			return m.When
		}
	}
	return 0
}

func (b *bench) showLag(all []lagSample) {
	pick := func(of func(lagSample) float64) spread {
		var vs []float64
		for _, s := range all {
			vs = append(vs, of(s))
		}
		return spreadOf(vs)
	}
	lag, speed := pick(func(s lagSample) float64 { return s.Lag }), pick(func(s lagSample) float64 { return s.Speed })
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "written in s\tsent before the evidence\tcommitted after it in s\tupload MB/s\t")
	fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%s\n", pick(func(s lagSample) float64 { return s.Write }), 100*pick(func(s lagSample) float64 { return s.Before }).median, lag, speed.scaled(1e-6))
	w.Flush()
	chunk := float64(commit.ChunkSize(int64(b.s.StepSize)/4)) / speed.median
	b.report.judge("commit after the evidence", lag.median <= 1+chunk, "%s s, at most %.2f (1 s and one chunk)", lag, 1+chunk)
}
