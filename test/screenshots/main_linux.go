package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ckptsync/ckptsync/test/stores"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := flag.String("out", ".docs", "directory for the pictures")
	only := flag.String("only", "", "terminal or status; empty: both")
	light := flag.Bool("light", false, "as on a light terminal")
	flag.Parse()
	if err := run(ctx, *out, *only, *light); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		stop()
		os.Exit(1)
	}
}

// stageEnv tells the process that it is on the stage: its value is the directory
// that all happens in.
const stageEnv = "CKPTSYNC_SCREENSHOTS_STAGE"

func run(ctx context.Context, out, only string, light bool) error {
	if dir := os.Getenv(stageEnv); dir != "" {
		return onStage(ctx, dir, out, only, light)
	}
	dir, err := os.MkdirTemp("", "ckptsync-screenshots-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "ckptsync")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, text)
	}
	server, err := stores.BuildVersitygw(ctx)
	if err := errors.Join(err, os.Symlink(server, filepath.Join(dir, "versitygw"))); err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	return stage(ctx, dir, "-out", out, "-only", only, fmt.Sprintf("-light=%t", light))
}

func onStage(ctx context.Context, dir, out, only string, light bool) error {
	if err := setStage(dir); err != nil {
		return fmt.Errorf("set the stage: %w", err)
	}
	g, err := stores.StartVersitygw(ctx, filepath.Join(dir, "versitygw"), filepath.Join(dir, "s3"))
	if err != nil {
		return err
	}
	defer g.Stop()
	s := &scene{program: filepath.Join(dir, "ckptsync"), out: out, light: light, env: append(plainEnv(), stores.Env()...)}
	s.env = append(s.env, "AWS_ENDPOINT_URL="+g.Endpoint(), "AWS_REGION="+stores.Region)
	for _, act := range []struct {
		name string
		play func(context.Context) error
	}{{"terminal", s.terminal}, {"status", s.status}} {
		if only != "" && only != act.name {
			continue
		}
		data := filepath.Join(dir, "s3", "data", bucket)
		if err := errors.Join(os.RemoveAll(data), os.Mkdir(data, 0o755), act.play(ctx)); err != nil {
			return err
		}
	}
	return nil
}
