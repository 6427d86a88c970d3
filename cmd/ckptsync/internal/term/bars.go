package term

import (
	"log/slog"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// logEvery is how often a transfer is logged where no bar can be shown.
const logEvery = 30 * time.Second

// Bars shows how transfers proceed: as bars if standard error is a terminal,
// else as a log line for each long one now and then. Close it before the
// program ends. Its methods may be called concurrently.
type Bars struct {
	t   *Term
	log *slog.Logger // where there is no terminal; nil: silent

	mu       sync.Mutex
	progress *mpb.Progress // nil until there is a bar to show
	console  *console
	open     map[*Bar]struct{}
	closed   bool
}

// Bars begins showing transfers. log may be nil.
func (t *Term) Bars(log *slog.Logger) *Bars {
	return &Bars{t: t, log: log, open: map[*Bar]struct{}{}}
}

// Bar is one transfer under way. A nil *Bar ignores every call.
type Bar struct {
	bars *Bars
	name string
	bar  *mpb.Bar // nil if there is no terminal

	mu    sync.Mutex
	total int64
	done  int64
	begun time.Time
	said  time.Time
}

// Bar begins the bar of a transfer of total bytes.
func (b *Bars) Bar(name string, total int64) *Bar {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	now := time.Now()
	bar := &Bar{bars: b, name: Clean(name), total: total, begun: now, said: now}
	b.open[bar] = struct{}{}
	if !b.t.errTTY {
		return bar
	}
	if b.progress == nil {
		b.console = b.t.err.begin()
		b.progress = mpb.New(mpb.WithConsoleWriter(b.console), mpb.WithAutoRefresh(), mpb.WithRefreshRate(120*time.Millisecond))
	}
	bar.bar = b.progress.New(total, mpb.BarStyle().Lbound("").Rbound("").Filler("━").Tip("━").Padding("─"),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(bar.name, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(
			decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace),
			decor.AverageSpeed(decor.SizeB1024(0), "% .1f", decor.WCSyncSpace),
			decor.AverageETA(decor.ET_STYLE_GO, decor.WCSyncSpace),
		))
	return bar
}

// Add says that n more bytes are there.
func (b *Bar) Add(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.done += n
	done, total := b.done, b.total
	say := b.bar == nil && b.bars.log != nil && time.Since(b.said) >= logEvery
	if say {
		b.said = time.Now()
	}
	b.mu.Unlock()
	switch {
	case b.bar != nil:
		b.bar.IncrInt64(n)
	case say:
		rate, eta := pace(done, total, time.Since(b.begun))
		b.bars.log.Info("transfer under way", "name", b.name, "bytes", done, "total", total, "bytes_per_second", rate, "eta", eta.String())
	}
}

// pace is how many bytes a second have come, and how long the rest takes at
// that; 0 if there is no telling.
func pace(done, total int64, took time.Duration) (rate int64, eta time.Duration) {
	if done <= 0 || took <= 0 {
		return 0, 0
	}
	per := float64(done) / took.Seconds()
	rest := time.Duration(float64(max(total-done, 0)) / per * float64(time.Second))
	return int64(per), rest.Round(time.Second)
}

// End takes the bar away, whether its transfer is whole or not.
func (b *Bar) End() {
	if b == nil {
		return
	}
	b.bars.mu.Lock()
	delete(b.bars.open, b)
	b.bars.mu.Unlock()
	if b.bar != nil {
		b.bar.Abort(true)
	}
}

// Close takes every bar away and lets standard error be itself again.
func (b *Bars) Close() {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	progress := b.progress
	var open []*Bar
	for bar := range b.open {
		open = append(open, bar)
	}
	b.mu.Unlock()
	for _, bar := range open {
		bar.End()
	}
	if progress == nil {
		return
	}
	progress.Wait()
	b.console.Shut()
	b.t.err.end(b.console)
}
