package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Directions.
const (
	up   = "up"
	down = "down"
)

// Names of rows that others are compared with.
const (
	nameFloor   = "floor"
	nameDigests = "floor with digests"
	nameHash    = "digests alone"
	nameProgram = "ckptsync"
)

// trip is one time that a mover moves the files of a workload.
type trip struct {
	st     *store
	w      *workload
	way    string
	name   string // of this trip alone
	target string // down: a directory that is not there yet
	folder string // down: where the files are, with the bucket before it
}

// mover is one way to move files.
type mover struct {
	name string
	// can says why this mover does not take part; empty: it does.
	can func(st *store, w *workload, way string) string
	// ready prepares one trip, outside of what is measured; it may be nil.
	ready func(ctx context.Context, b *bench, t *trip) error
	// process is what is measured.
	process func(b *bench, t *trip) (process, error)
}

// ckptsync is the program with a command and its arguments.
func (b *bench) ckptsync(st *store, command string, args ...string) process {
	all := []string{b.bin, command, "--config", b.config, "--store", st.url(), "--log-format", "text"}
	return process{args: append(all, args...), env: b.env(st), dir: b.dir}
}

// onRun are the arguments that name a run of its own, with an empty state.
func (b *bench) onRun(name, root string) []string {
	return []string{"--run", name, "--root", root, "--state-dir", filepath.Join(b.dir, "state", name), "--layout", "bench"}
}

func (b *bench) push(st *store, name, root string, more ...string) process {
	return b.ckptsync(st, "push", append(append(b.onRun(name, root), "--json"), more...)...)
}

// movers are the rows of the tables, the floor first.
func movers() []mover {
	return append([]mover{
		floorMover(nameFloor, false),
		floorMover(nameDigests, true),
		{
			name: nameHash,
			can: func(_ *store, w *workload, way string) string {
				return unless(way == up && !w.again, "down it is part of every row")
			},
			process: func(b *bench, t *trip) (process, error) {
				return child("floor", floorArgs{Way: "hash", Digests: true, Dir: t.w.step()}, b.env(nil))
			},
		},
		{name: nameProgram, can: always, ready: readyProgram, process: runProgram},
		engineMover(),
	}, peers()...)
}

func always(*store, *workload, string) string { return "" }

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// onlyWhole is for movers that know nothing of an earlier step.
func onlyWhole(_ *store, w *workload, _ string) string {
	return unless(!w.again, "it does not tell an unchanged step")
}

func floorMover(name string, digests bool) mover {
	return mover{name: name, can: onlyWhole, process: func(b *bench, t *trip) (process, error) {
		a := floorArgs{Way: t.way, Digests: digests, Endpoint: t.st.endpoint, Prefix: bucketName + "/floor/" + t.name, Dir: t.w.step()}
		if t.way == down {
			a.Prefix, a.Dir, a.Known, a.Direct = t.folder, t.target, t.w.digests(), b.s.Direct
		}
		return child("floor", a, b.env(t.st))
	}}
}

// readyProgram commits the first step, where the second is what is measured.
func readyProgram(ctx context.Context, b *bench, t *trip) error {
	if !t.w.again {
		return nil
	}
	if _, _, err := b.push(t.st, t.name, t.w.root).run(ctx); err != nil {
		return fmt.Errorf("commit the first step: %w", err)
	}
	return os.Rename(t.w.hidden(), filepath.Join(t.w.root, secondStep))
}

func runProgram(b *bench, t *trip) (process, error) {
	if t.way == up {
		return b.push(t.st, t.name, t.w.root), nil
	}
	run, _, _ := strings.Cut(strings.TrimPrefix(t.folder, bucketName+"/"), "/")
	args := []string{"--run", run, "--to", t.target, "--read-only", "--layout", "bench", "--state-dir", filepath.Join(b.dir, "state", t.name)}
	if b.s.Direct {
		args = append(args, "--direct")
	}
	return b.ckptsync(t.st, "restore", args...), nil
}

// clean takes away what a trip left on the disk.
func (b *bench) clean(t *trip) error {
	err := errors.Join(
		os.RemoveAll(t.target), os.RemoveAll(t.target+".staging"), os.RemoveAll(t.target+".ckptsync"),
		os.RemoveAll(filepath.Join(b.dir, "state", t.name)))
	if second := filepath.Join(t.w.root, secondStep); t.w.again {
		if _, serr := os.Stat(second); serr == nil {
			err = errors.Join(err, os.Rename(second, t.w.hidden()))
		}
	}
	return err
}
