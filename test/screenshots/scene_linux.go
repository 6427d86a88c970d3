package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	bucket = "checkpoints"
	job    = "llama-7b-lora"
	root   = scratch + "/" + job + "/out"
)

// scene is what the pictures are of.
type scene struct {
	program string
	out     string
	light   bool
	env     []string
}

func (s *scene) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = append(s.env, "CKPTSYNC_RUN="+job, "CKPTSYNC_STORE=s3://"+bucket+"/team-a", "CKPTSYNC_ROOT="+root)
	cmd.Dir = scratch
	return cmd
}

// must runs commands of which no picture is made.
func (s *scene) must(ctx context.Context, lines ...string) error {
	for _, l := range lines {
		if text, err := s.command(ctx, strings.Fields(l)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ckptsync %s: %w\n%s", l, err, text)
		}
	}
	return nil
}

// train has the demo's trainer go on from a step to another, saving as it goes.
func (s *scene) train(ctx context.Context, from, to, every int) error {
	line := fmt.Sprintf("demo-trainer --dir %s --steps %d --every %d", root, to, every)
	if from > 0 {
		line += fmt.Sprintf(" --resume %s/checkpoint-%d", root, from)
	}
	return s.must(ctx, line)
}

// shoot makes the picture of one command.
func (s *scene) shoot(ctx context.Context, name, line string, columns int) error {
	text, err := onTerminal(ctx, columns, s.command(ctx, strings.Fields(line)...))
	if err != nil {
		return fmt.Errorf("ckptsync %s: %w\n%s", line, err, text)
	}
	th := dark
	if s.light {
		th = light
	}
	svg, err := draw("$ ckptsync "+line+"\n"+text, "ckptsync "+line, columns, th)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return os.WriteFile(filepath.Join(s.out, name+".svg"), []byte(svg), 0o644)
}

// terminal: training started three times, one step was taken out, and the last
// save was torn by the end of the node.
func (s *scene) terminal(ctx context.Context) error {
	if err := errors.Join(os.MkdirAll(root, 0o755), s.train(ctx, 0, 60, 20)); err != nil {
		return err
	}
	if err := s.must(ctx, "push --settle 0s", "restore --to "+scratch+"/tried"); err != nil {
		return err
	}
	if err := errors.Join(s.must(ctx, "restore"), s.train(ctx, 60, 120, 20)); err != nil {
		return err
	}
	if err := s.must(ctx, "push --settle 0s"); err != nil {
		return err
	}
	if err := errors.Join(s.command(ctx, "mark", "100", "excluded", "--reason", "loss spike").Run(), s.tear(ctx, 120, 140)); err != nil {
		return err
	}
	return errors.Join(
		s.shoot(ctx, "inspect", "inspect", 80),
		s.shoot(ctx, "list", "list --all", 100),
		s.shoot(ctx, "doctor", "doctor", 100),
	)
}

// tear has the trainer die in the middle of a save.
func (s *scene) tear(ctx context.Context, from, at int) error {
	step := fmt.Sprintf("%s/checkpoint-%d", root, at)
	cmd := s.command(ctx, "demo-trainer", "--dir", root, "--steps", fmt.Sprint(at), "--every", "20", "--hang-at", fmt.Sprint(at),
		"--resume", fmt.Sprintf("%s/checkpoint-%d", root, from))
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err := os.Stat(step + "/optimizer.pt")
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end) && ctx.Err() == nil; _, err = os.Stat(step + "/optimizer.pt") {
		time.Sleep(50 * time.Millisecond)
	}
	if kill := cmd.Process.Kill(); kill != nil {
		return kill
	}
	_ = cmd.Wait() // it was killed
	return err
}

// status: a trainer that saves faster than the network takes it.
func (s *scene) status(ctx context.Context) error {
	err := errors.Join(os.RemoveAll(scratch+"/"+job), os.MkdirAll(root, 0o755))
	if err != nil {
		return err
	}
	const listen = "127.0.0.1:9464"
	daemon := s.command(ctx, "daemon", "--listen", listen, "--bandwidth", "100kB/s", "--settle", "1s", "--early-upload=false")
	var log strings.Builder
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		return err
	}
	err = s.saves(ctx)
	if err == nil {
		err = s.shoot(ctx, "status", "status", 100)
	}
	if err == nil {
		err = s.page(ctx, "http://"+listen+"/")
	}
	err = errors.Join(err, daemon.Process.Signal(syscall.SIGKILL))
	_ = daemon.Wait() // it was killed
	if err != nil {
		return fmt.Errorf("%w\n%s", err, &log)
	}
	return nil
}

// saves has steps be saved for some minutes, now faster and now slower than the
// network takes them; one of them is torn.
func (s *scene) saves(ctx context.Context) error {
	for n := 1; n <= 18; n++ {
		if err := s.train(ctx, 500*(n-1), 500*n, 500); err != nil {
			return err
		}
		if n == 8 {
			if err := tornCopy(root+"/checkpoint-4000", root+"/checkpoint-4250"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After([]time.Duration{3, 8, 5}[n%3] * time.Second):
		}
	}
	return nil
}

// tornCopy copies a step but for the file that is written last.
func tornCopy(from, to string) error {
	entries, err := os.ReadDir(from)
	if err == nil {
		err = os.Mkdir(to, 0o755)
	}
	for _, e := range entries {
		if err != nil || e.Name() == "trainer_state.json" {
			continue
		}
		var data []byte
		if data, err = os.ReadFile(filepath.Join(from, e.Name())); err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), data, 0o644)
		}
	}
	return err
}

func (s *scene) page(ctx context.Context, url string) error {
	browser := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+scratch+"/browser",
		"--window-size=1120,1105", "--screenshot="+filepath.Join(s.out, "status.png"), url)
	browser.Env = s.env
	if text, err := browser.CombinedOutput(); err != nil {
		return fmt.Errorf("chromium: %w\n%s", err, text)
	}
	return nil
}
