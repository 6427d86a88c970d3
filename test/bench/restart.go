package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

func restartFlags(s *settings, f *flag.FlagSet) {
	f.DurationVar(&s.Outage, "outage", 30*time.Second, "how long the server is away")
}

// restartSample is one upload that was killed in the middle.
type restartSample struct {
	At     float64 // share of the bytes that the sink had when it was killed
	Size   int64
	Resent int64 // bytes of data that arrived more than once
	Part   int64 // bytes of the largest part
}

// outageSample is one upload whose server was killed in the middle.
type outageSample struct {
	Wall   float64
	Down   float64 // seconds that the server was away
	Errors []string
}

// restart kills either side in the middle of one large file.
func restart(ctx context.Context, b *bench) error {
	w := &workload{name: "restart", files: 1, each: int64(b.s.Size), root: filepath.Join(b.dir, "src", "restart")}
	if err := w.make(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(w.root)
	if err := b.killClient(ctx, w); err != nil {
		return fmt.Errorf("the program killed: %w", err)
	}
	if err := b.killServer(ctx, w); err != nil {
		return fmt.Errorf("the server killed: %w", err)
	}
	return nil
}

// killClient kills the program at different moments.
func (b *bench) killClient(ctx context.Context, w *workload) error {
	st, err := b.startStore(ctx, "sink", "http")
	if err != nil {
		return err
	}
	defer st.stop()
	var all []restartSample
	for i := range b.s.Rounds {
		s, err := b.killOnce(ctx, st, w, float64(i+1)/float64(b.s.Rounds+1))
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	b.report.keep("restart", all)
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "killed at\tsent twice\tin parts of\t")
	var worst, most int64
	for _, s := range all {
		fmt.Fprintf(t, "%.0f %% of %s\t%s\t%s\n", 100*s.At, humanize.IBytes(uint64(s.Size)), humanize.IBytes(uint64(max(0, s.Resent))), humanize.IBytes(uint64(s.Part)))
		worst, most = max(worst, s.Resent), max(most, s.Part*concurrency)
	}
	t.Flush()
	b.report.judge("bytes sent twice after a kill", worst <= most, "%s, at most %s (a part per stream)", humanize.IBytes(uint64(max(0, worst))), humanize.IBytes(uint64(most)))
	return nil
}

// killOnce kills an upload when the sink has that share of it, and starts it
// again.
func (b *bench) killOnce(ctx context.Context, st *store, w *workload, at float64) (s restartSample, err error) {
	if err := errors.Join(st.empty(ctx), warm(ctx, w.step())); err != nil {
		return s, err
	}
	run := b.fresh("restart")
	defer os.RemoveAll(filepath.Join(b.dir, "state", run))
	r, err := b.push(st, run, w.root).start(ctx)
	if err != nil {
		return s, err
	}
	then, err := st.until(ctx, r, func(s sinkStats) bool { return float64(s.DataIn) >= at*float64(w.bytes()) })
	r.kill()
	if err != nil {
		return s, err
	}
	if _, _, err := b.push(st, run, w.root).run(ctx); err != nil {
		return s, fmt.Errorf("started again: %w", err)
	}
	end, err := st.stats(ctx)
	marker := int64(len("done\n"))
	return restartSample{
		At: float64(then.DataIn) / float64(w.bytes()), Size: w.bytes(), Resent: end.DataIn - w.bytes() - marker, Part: end.Largest,
	}, err
}

// killServer kills a real server and starts it again after a while.
func (b *bench) killServer(ctx context.Context, w *workload) error {
	const what = "the server away in mid-upload"
	st, err := b.startStore(ctx, "versitygw", "http")
	if err != nil {
		b.say("versitygw: not measured: %v", err)
		b.report.skip(what, "%v", err)
		return nil
	}
	defer func() { st.stop() }()
	run := b.fresh("outage")
	r, err := b.push(st, run, w.root, "--log-level", "info").start(ctx)
	if err != nil {
		return err
	}
	defer r.kill()
	for size(st.data()) < w.bytes()/2 {
		select {
		case <-r.ended:
			_, err := r.wait()
			return fmt.Errorf("it ended before half of it was there: %w", errors.Join(err, errors.New(r.errs.last())))
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	st.gateway.Kill()
	gone := time.Now()
	if !sleepUntil(ctx, gone.Add(b.s.Outage)) {
		return ctx.Err()
	}
	if err := st.gateway.Restart(ctx); err != nil {
		return err
	}
	s := outageSample{Down: time.Since(gone).Seconds()}
	u, err := r.wait()
	s.Wall, s.Errors = u.Wall, surfaced(r.errs.String(), err)
	if len(s.Errors) == 0 {
		s.Errors = b.readBack(ctx, st, w, run)
	}
	b.report.keep("outage", s)
	b.say("server away for %.1f s: the upload took %.1f s in all; errors: %d", s.Down, s.Wall, len(s.Errors))
	b.report.judge(what, len(s.Errors) == 0, "away for %.1f s, %s", s.Down, errorsOr(s.Errors, "no error surfaced, and what it committed was restored whole"))
	return nil
}

// readBack restores what was committed; restore compares every digest.
func (b *bench) readBack(ctx context.Context, st *store, w *workload, run string) []string {
	t := &trip{w: w, name: b.fresh("outage"), target: filepath.Join(b.dir, "target", run)}
	defer b.clean(t)
	if err := os.MkdirAll(t.target, 0o755); err != nil {
		return []string{err.Error()}
	}
	_, _, err := b.ckptsync(st, "restore", "--run", run, "--to", t.target, "--read-only", "--layout", "bench",
		"--state-dir", filepath.Join(b.dir, "state", t.name)).run(ctx)
	if err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, "state", run))); err == nil {
		err = sameFiles(t)
	}
	if err != nil {
		return []string{"restore: " + err.Error()}
	}
	return nil
}

// surfaced are the errors that a person would see.
func surfaced(log string, err error) []string {
	var list []string
	if err != nil {
		list = append(list, err.Error())
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=ERROR") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

func errorsOr(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return fmt.Sprintf("%d errors, the first: %s", len(list), list[0])
}

// size is the bytes of all files below a directory.
func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if fi, err := d.Info(); err == nil {
				n += fi.Size()
			}
		}
		return nil // what vanishes meanwhile counts no more
	})
	return n
}
