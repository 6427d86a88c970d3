package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// trainerEnv makes this program the trainer.
const trainerEnv = "CKPTSYNC_SOAK_TRAINER"

// every is the number of training steps between two saves.
const every = 10

// training is what one life of a trainer does, until it is killed.
type training struct {
	Root string
	From int // the step that it begins from
	Life int // of all trainers; what it saves follows from it and the step
	Pace time.Duration
	Keep int // steps that stay
}

// files are those of a step as a life saves it.
func files(step, life int) []layouttest.File {
	return layouttest.HFFiles(step, layouttest.Seed(uint64(life)), layouttest.Size(200<<10+step%7<<10))
}

// train saves a step after each pace, file by file, in place, and removes the
// oldest.
func train(text string) error {
	var t training
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	for step := t.From + every; ; step += every {
		dir := filepath.Join(t.Root, layouttest.HFName(step))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		all := files(step, t.Life)
		for _, f := range all {
			time.Sleep(t.Pace / time.Duration(2*len(all))) // it is a slow disk
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
				return err
			}
		}
		if err := rotate(t.Root, t.Keep); err != nil {
			return err
		}
		time.Sleep(t.Pace / 2) // it trains
	}
}

// stepsIn are the steps below a root, whole or not, ascending.
func stepsIn(root string) []int {
	names, _ := os.ReadDir(root)
	var out []int
	for _, d := range names {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Name(), "checkpoint-")); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func rotate(root string, keep int) error {
	steps := stepsIn(root)
	for _, n := range steps[:max(0, len(steps)-keep)] {
		if err := os.RemoveAll(filepath.Join(root, layouttest.HFName(n))); err != nil {
			return err
		}
	}
	return nil
}

// startTrainer starts this program again as a trainer.
func startTrainer(t training) (*exec.Cmd, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), trainerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

// isSave fails unless a directory is, byte for byte, one save of that step.
func isSave(dir string, step, lives int) error {
	got := map[string]string{}
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range names {
		data, err := os.ReadFile(filepath.Join(dir, d.Name()))
		if err != nil {
			return err
		}
		got[d.Name()] = string(data)
	}
	return matches(got, step, lives)
}

// matches fails unless these files, by name, are one save of a step by one of
// so many lives.
func matches(got map[string]string, step, lives int) error {
	for life := lives; life > 0; life-- {
		all, same := files(step, life), 0
		for _, f := range all {
			if data, ok := got[f.Name]; ok && data == string(f.Data) {
				same++
			}
		}
		if same == len(all) && len(got) == len(all) {
			return nil
		}
	}
	return fmt.Errorf("step %d with %d files is no save of any of %d lives", step, len(got), lives)
}
