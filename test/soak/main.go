package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/test/stores"
)

func main() {
	if text := os.Getenv(trainerEnv); text != "" {
		fmt.Fprintln(os.Stderr, "trainer:", train(text)) // it ends for no other reason than an error
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	span := flag.Duration("for", 3*time.Minute, "how long")
	pace := flag.Duration("pace", 1500*time.Millisecond, "time from one save to the next")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of what goes wrong when; the moments themselves are the machine's")
	flag.Parse()
	if err := soak(ctx, *span, *pace, *seed, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

// soak runs both nodes for so long, and says how it went.
func soak(ctx context.Context, span, pace time.Duration, seed uint64, out io.Writer) error {
	for _, kv := range stores.Env() { // for handles of its own
		k, v, _ := strings.Cut(kv, "=")
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "ckptsync-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "ckptsync")
	if text, err := exec.CommandContext(ctx, "go", "build", "-race=false", "-o", program, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, text)
	}
	s, err := openStore(ctx, dir, seed)
	if err != nil {
		return err
	}
	defer s.close()
	a, err := newNode(program, dir, "unsteady", s, pace, seed)
	if err != nil {
		return err
	}
	b, err := newNode(program, dir, "steady", s, pace, seed+1)
	if err != nil {
		return err
	}
	began := time.Now()
	use := &usage{every: max(span/400, 50*time.Millisecond)}
	g, all := errgroup.WithContext(ctx)
	timed, cancel := context.WithTimeout(all, span)
	defer cancel()
	g.Go(func() error { return a.unsteady(timed, all) })
	g.Go(func() error { return b.steady(timed, all, use) })
	err = g.Wait()
	return errors.Join(err, ctx.Err(), report(ctx, span, time.Since(began), seed, []*node{a, b}, use, out))
}

// report checks the end of it, and prints what there was.
func report(ctx context.Context, span, took time.Duration, seed uint64, nodes []*node, use *usage, out io.Writer) error {
	s := nodes[0].store
	fmt.Fprintf(out, "%v, -seed %d\n%s\n", took.Round(time.Second), seed, s.told())
	var errs []error
	for _, n := range nodes {
		left, err := s.audit(ctx, n.run, n.lives)
		v, verr := s.view(ctx, n.run)
		if verr == nil {
			fmt.Fprintf(out, "%s; %d commits are left, %d were retired\n", n.told(), left, len(v.Retired))
		}
		switch {
		case n.restores == 0:
			err = errors.Join(err, fmt.Errorf("%s: no restore brought anything", n.run))
		case verr == nil && len(v.Retired) == 0 && span > time.Minute: // a stall takes half of one
			err = errors.Join(err, fmt.Errorf("%s: nothing was pruned", n.run))
		}
		errs = append(errs, err, verr)
	}
	told, err := use.grown()
	fmt.Fprintln(out, told)
	return errors.Join(append(errs, err)...)
}
