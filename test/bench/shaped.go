package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

func shapedFlags(s *settings, f *flag.FlagSet) {
	s.Connections, s.Rate = listFlag{"1", "2", "4", "8", "16"}, 40e6
	f.Var(&s.Connections, "connections", "how many transfers at once")
	f.Var(&s.Rate, "rate", "of each connection, `bytes` per second")
	f.DurationVar(&s.RoundTrip, "rtt", 40*time.Millisecond, "round trip time of the network")
	f.DurationVar(&s.Window, "seconds", 10*time.Second, "how long a transfer on the slow network should take")
}

// shapedSample is one transfer over the slow network.
type shapedSample struct {
	Way         string
	Connections int
	Bytes       int64
	Data        float64 // seconds from the first byte of data to the last, at the server
	Wall        float64 // of the process
	Busy        float64 // share of this machine's processors that was in use
	CPU         float64 // of the process
	Streams     int     // requests for data at a time, at most
}

// shaped measures both ways with more and more connections.
func shaped(ctx context.Context, b *bench) error {
	counts, err := b.s.Connections.numbers()
	if err != nil {
		return err
	}
	st, slow, stop, err := b.slowStore(ctx)
	if err != nil {
		return err
	}
	defer stop()
	b.say("%s/s per connection, %v round trip; medians of %d", humanize.Bytes(uint64(b.s.Rate)), b.s.RoundTrip, b.s.Rounds)
	// As many files as connections, each of what one carries in the time.
	files := &workload{name: "shaped", files: slices.Max(counts), each: int64(float64(b.s.Rate) * b.s.Window.Seconds()), root: filepath.Join(b.dir, "src", "shaped")}
	if err := files.make(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(files.root)
	var all []shapedSample
	for range b.s.Rounds {
		for _, n := range counts {
			w, err := files.first(n)
			if err != nil {
				return err
			}
			pair, err := b.shapedPair(ctx, st, slow, w, n)
			if err = errors.Join(err, os.RemoveAll(w.root)); err != nil {
				return fmt.Errorf("with %d connections: %w", n, err)
			}
			all = append(all, pair...)
		}
	}
	b.report.keep("shaped", all)
	b.showShaped(all, counts)
	return nil
}

// slowStore is a sink, and the same behind a slow network.
func (b *bench) slowStore(ctx context.Context) (st, slow *store, stop func(), err error) {
	if st, err = b.startStore(ctx, "sink", "http"); err != nil {
		return nil, nil, nil, err
	}
	u, err := url.Parse(st.endpoint)
	if err != nil {
		return nil, nil, nil, err
	}
	proxy, err := startServer(ctx, "proxy", proxyArgs{To: u.Host, Rate: int64(b.s.Rate), Delay: b.s.RoundTrip / 2})
	if err != nil {
		st.stop()
		return nil, nil, nil, err
	}
	far := *st
	far.endpoint = "http://" + proxy.first
	return st, &far, func() { proxy.stop(); st.stop() }, nil
}

// shapedPair pushes a file and restores it.
func (b *bench) shapedPair(ctx context.Context, st, slow *store, w *workload, n int) ([]shapedSample, error) {
	if err := st.empty(ctx); err != nil {
		return nil, err
	}
	run := b.fresh("shaped")
	// A chunk for each connection, and as much again for what is read ahead.
	wide := []string{"--concurrency", strconv.Itoa(n), "--memory", fmt.Sprintf("%dMiB", max(128, 32*n))}
	if err := warm(ctx, w.step()); err != nil {
		return nil, err
	}
	up, err := b.shapedOnce(ctx, st, w, b.push(slow, run, w.root, wide...))
	if err != nil {
		return nil, err
	}
	up.Way, up.Connections = "up", n
	t := &trip{w: w, name: b.fresh("shaped"), target: filepath.Join(b.dir, "target", run)}
	args := append([]string{"--run", run, "--to", t.target, "--read-only", "--layout", "bench", "--state-dir", filepath.Join(b.dir, "state", t.name)}, wide...)
	if err := errors.Join(os.MkdirAll(t.target, 0o755), touchFree(ctx, w.bytes())); err != nil {
		return nil, err
	}
	down, err := b.shapedOnce(ctx, st, w, b.ckptsync(slow, "restore", args...))
	if err != nil {
		return nil, err
	}
	down.Way, down.Connections = "down", n
	err = errors.Join(sameFiles(t), b.clean(t), os.RemoveAll(filepath.Join(b.dir, "state", run)))
	return []shapedSample{up, down}, err
}

// shapedOnce runs one transfer. The counts of the sink begin anew with it only
// in that the first and the last byte of data are those after its start.
func (b *bench) shapedOnce(ctx context.Context, st *store, w *workload, p process) (s shapedSample, err error) {
	if _, err := st.ask(ctx, "restart-clock"); err != nil {
		return s, err
	}
	busy := processors()
	u, _, err := p.run(ctx)
	if err != nil {
		return s, err
	}
	stats, err := st.stats(ctx)
	if err != nil {
		return s, err
	}
	s = shapedSample{Bytes: w.bytes(), Wall: u.Wall, CPU: u.CPU, Busy: processors().since(busy), Streams: stats.Streams}
	s.Data = time.Duration(stats.Last - stats.First).Seconds()
	return s, nil
}

// showShaped prints what came of it and judges it.
func (b *bench) showShaped(all []shapedSample, counts []int) {
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "way\tconnections\tMB/s of data\tof what they carry\tMB/s with all around it\trequests at a time\tprocessors busy\t")
	for _, way := range []string{"up", "down"} {
		for _, n := range counts {
			var data, whole, busy []float64
			streams := 0
			for _, s := range all {
				if s.Way == way && s.Connections == n {
					data, whole, busy = append(data, float64(s.Bytes)/s.Data/1e6), append(whole, float64(s.Bytes)/s.Wall/1e6), append(busy, s.Busy)
					streams = max(streams, s.Streams)
				}
			}
			d, most := spreadOf(data), float64(n)*float64(b.s.Rate)/1e6
			share, full := d.median/most, spreadOf(busy).median
			fmt.Fprintf(w, "%s\t%d\t%s\t%.2f\t%s\t%d\t%.0f %%\n", way, n, d, share, spreadOf(whole), streams, 100*full)
			what := fmt.Sprintf("slow network %s, connections: %d", way, n)
			if share < throughput && full > coresFull {
				b.report.skip(what, "%.2f of what they carry, and the processors are full (%.0f %%)", share, 100*full)
				continue
			}
			b.report.judge(what, share >= throughput, "%.2f of what they carry, at least %.2f; processors %.0f %% busy", share, throughput, 100*full)
		}
	}
	w.Flush()
}

// coresFull is the share from which on more connections cannot help.
const coresFull = 0.9

// cpuTimes are those of the whole machine.
type cpuTimes struct{ busy, all float64 }

// processors reads what they have done so far.
func processors() cpuTimes {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var t cpuTimes
	for i, word := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseFloat(word, 64)
		if i > 7 { // guests are in user time already
			break
		}
		t.all += n
		if i != 3 && i != 4 { // idle, waiting for the disk
			t.busy += n
		}
	}
	return t
}

// since is the share that was busy since an earlier reading.
func (t cpuTimes) since(was cpuTimes) float64 {
	if t.all <= was.all {
		return 0
	}
	return (t.busy - was.busy) / (t.all - was.all)
}
