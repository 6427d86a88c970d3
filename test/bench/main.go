package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize"
)

// settings are the same for all processes of a run.
type settings struct {
	Size        int64
	Chunk       int64
	Concurrency int
	Memory      int64
	Rounds      int
	Dir         string
	Stores      []string
	Only        string
	Profiles    string
}

func main() {
	if job := os.Getenv(jobEnv); job != "" {
		if err := runJob(job); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := parse()
	if err == nil {
		err = run(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parse reads the flags.
func parse() (settings, error) {
	var s settings
	size := flag.String("size", "2GiB", "size of the file")
	chunk := flag.String("chunk", "16MiB", "size of a chunk, which is a part and has a digest")
	memory := flag.String("memory", "128MiB", "the engine's budget for file content")
	stores := flag.String("stores", "sink,versitygw", "the stores to measure against")
	flag.IntVar(&s.Concurrency, "concurrency", 4, "requests at a time")
	flag.IntVar(&s.Rounds, "rounds", 3, "how often each is measured")
	flag.StringVar(&s.Dir, "dir", "", "where the files are (default: a temporary directory)")
	flag.StringVar(&s.Only, "only", "", "measure only movers whose name contains this")
	flag.StringVar(&s.Profiles, "profiles", "", "write a CPU profile of each mover into this directory")
	flag.Parse()
	s.Stores = strings.Split(*stores, ",")
	for _, f := range []struct {
		text string
		to   *int64
	}{{*size, &s.Size}, {*chunk, &s.Chunk}, {*memory, &s.Memory}} {
		n, err := humanize.ParseBytes(f.text)
		if err != nil {
			return s, err
		}
		*f.to = int64(n)
	}
	return s, nil
}

// run measures everything.
func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp(s.Dir, "ckptsync-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s.Dir = dir
	fmt.Printf("%s in chunks of %s, %d at a time; medians of %d (least–greatest)\n",
		humanize.IBytes(uint64(s.Size)), humanize.IBytes(uint64(s.Chunk)), s.Concurrency, s.Rounds)
	for _, f := range []string{sourceFile, targetFile} {
		if err := writeFile(ctx, filepath.Join(dir, f), s.Size); err != nil {
			return err
		}
	}
	for _, name := range s.Stores {
		st, err := startStore(ctx, name, s)
		if err != nil {
			return fmt.Errorf("store %s: %w", name, err)
		}
		err = measure(ctx, s, st)
		st.stop()
		if err != nil {
			return fmt.Errorf("store %s: %w", name, err)
		}
	}
	return nil
}

// measure lets the movers take turns against one store and prints a table for
// each direction.
func measure(ctx context.Context, s settings, st *store) error {
	for _, dir := range []direction{up, down} {
		var list []mover
		for _, m := range movers() {
			if m.dir == dir && (m.raw == "" || st.raw) && strings.Contains(m.name, s.Only) {
				list = append(list, m)
			}
		}
		results := make(map[string][]result)
		for range s.Rounds {
			for _, m := range list {
				if err := st.prepare(ctx, s, m); err != nil {
					return err
				}
				if err := warm(ctx, filepath.Join(s.Dir, sourceFile)); err != nil {
					return err
				}
				r, err := spawn(ctx, job{Settings: s, Mover: m.name, Dir: m.dir, URL: st.url, Raw: st.endpoint})
				if err != nil {
					return fmt.Errorf("%s: %w", m.name, err)
				}
				results[m.name] = append(results[m.name], r)
			}
		}
		table(os.Stdout, fmt.Sprintf("%s, %s", dir, st.name), list, results)
	}
	return nil
}

// job is what one process is to do.
type job struct {
	Settings settings
	Mover    string // or "sink"
	Dir      direction
	URL      string // of the bucket
	Raw      string // of the server
}

// jobEnv carries a job to a child of this program.
const jobEnv = "CKPTSYNC_BENCH_JOB"

// runJob is the main function of a child.
func runJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if j.Mover == "sink" {
		return serveSink(ctx, j.Settings)
	}
	for _, m := range movers() {
		if m.name == j.Mover && m.dir == j.Dir {
			r, err := m.measure(ctx, j)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(r)
		}
	}
	return fmt.Errorf("no mover %s is called %q", j.Dir, j.Mover)
}
