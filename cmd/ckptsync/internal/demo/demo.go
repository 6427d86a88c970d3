// Package demo tells the whole story of ckptsync in a temporary directory: a
// small trainer saves steps while the daemon watches, the node dies in the
// middle of a save, another node restores the newest whole step, and training
// goes on as if nothing had happened. Nothing is staged: it runs the real
// program as a user would, with the arguments that it shows, kills with
// SIGKILL, and ends with an error if any of it is not as it must be.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

// TrainerCommand is the hidden command under which the program runs Train.
const TrainerCommand = "demo-trainer"

const (
	every = 20 // training steps between two saves
	whole = 60 // the newest step that is whole when the node dies
	torn  = 80 // the step that it dies in
	total = 120
)

func step(n int) string { return fmt.Sprintf("checkpoint-%d", n) }

// Options of the demo.
type Options struct {
	Term *term.Term // tells the story
	Self string     // path of this program
	Env  []string   // of the programs that it runs; what begins with CKPTSYNC_ is dropped
	Keep string     // absolute directory to work in and to leave, absent or empty; "": a temporary one, removed
}

// Run tells the story. Its error says what is not as it must be. When ctx is
// done it ends all that it started, cleans up, and returns the cause.
func Run(ctx context.Context, o Options) (err error) {
	s := &story{o: o, dir: o.Keep, losses: map[int]string{}}
	if err := s.makeDir(); err != nil {
		return err
	}
	defer func() {
		s.endAll()
		if o.Keep == "" {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}()
	for _, chapter := range []func(context.Context) error{s.begin, s.train, s.die, s.comeBack, s.restore, s.goOn, s.compare} {
		if err := chapter(ctx); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return nil
}

type story struct {
	o        Options
	dir      string
	env      []string
	chapters int
	children []*child
	losses   map[int]string // what the resumed trainer said, by step
}

func (s *story) makeDir() (err error) {
	if s.o.Keep == "" {
		s.dir, err = os.MkdirTemp("", "ckptsync-demo-")
	} else if err = os.MkdirAll(s.dir, 0o755); err == nil { //nolint:gosec // a demo's own
		var entries []os.DirEntry
		if entries, err = os.ReadDir(s.dir); err == nil && len(entries) > 0 {
			err = fmt.Errorf("%s is not empty: name another directory with --keep", s.dir)
		}
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	// A test or a person may have a link on the way; the programs print paths
	// as they are.
	if s.dir, err = filepath.EvalSymlinks(s.dir); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	s.env = slices.DeleteFunc(slices.Clone(s.o.Env), func(kv string) bool { return strings.HasPrefix(kv, "CKPTSYNC_") })
	// What a daemon that is killed leaves goes with everything else.
	s.env = append(s.env, "TMPDIR="+s.dir, "XDG_RUNTIME_DIR=", "CKPTSYNC_RUN=demo", "CKPTSYNC_STORE="+s.store(), "CKPTSYNC_LOG_FORMAT=text", "CKPTSYNC_LOG_LEVEL=error")
	return nil
}

func (s *story) store() string {
	return "file://" + filepath.ToSlash(filepath.Join(s.dir, "store")) + "?create=true"
}

func (s *story) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// say tells a line; a story that nobody hears is still worth its status.
func (s *story) say(style term.Style, format string, args ...any) {
	_ = s.o.Term.Printf(style, format, args...)
}

func (s *story) chapter(format string, args ...any) {
	s.chapters++
	s.say(term.Plain, "")
	s.say(term.Bold, "%d. %s", s.chapters, fmt.Sprintf(format, args...))
}

// tell shows what a program printed, with paths as seen from the directory
// that everything is in.
func (s *story) tell(out string) {
	for line := range strings.Lines(out) {
		s.say(term.Plain, "     %s", strings.ReplaceAll(strings.TrimRight(line, "\n"), s.dir+string(filepath.Separator), ""))
	}
}

func (s *story) begin(context.Context) error {
	keep := "removed at the end; --keep DIR leaves it"
	if s.o.Keep != "" {
		keep = "kept"
	}
	s.say(term.Plain, "A training run, a node that dies in the middle of a save, and what comes back.")
	s.say(term.Plain, "The programs, the kill and the files are real. They are in %s (%s).", s.dir, keep)
	return nil
}

// train: the trainer saves, the daemon commits, until the trainer is in the
// middle of a save.
func (s *story) train(ctx context.Context) error {
	s.chapter("Node A trains. ckptsync watches its output directory; the trainer knows nothing of it.")
	s.say(term.Dim, "   $ export CKPTSYNC_RUN=demo CKPTSYNC_STORE=%s", s.store())
	if err := os.MkdirAll(s.path("node-a", "out"), 0o755); err != nil { //nolint:gosec // as a trainer does
		return err
	}
	daemon, err := s.daemon("daemon", "--root", "node-a/out", "--settle", "300ms")
	if err != nil {
		return err
	}
	trainer, err := s.trainer("--dir", "node-a/out", "--steps", fmt.Sprint(total), "--every", fmt.Sprint(every), "--hang-at", fmt.Sprint(torn))
	if err != nil {
		return err
	}
	half := s.path("node-a", "out", step(torn), "optimizer.pt")
	if err := trainer.until(ctx, "it is in the middle of "+step(torn), func() bool {
		fi, err := os.Stat(half)
		return err == nil && fi.Size() > 0
	}); err != nil {
		return err
	}
	if err := daemon.until(ctx, step(whole)+" is committed", func() bool { return daemon.said("committed " + step(whole)) }); err != nil {
		return err
	}
	return daemon.until(ctx, step(torn)+" is seen", func() bool { return daemon.said(step(torn) + " is incomplete") })
}

// die: the node dies, and what is left on its disk.
func (s *story) die(ctx context.Context) error {
	s.chapter("In the middle of writing optimizer.pt of %s the node dies: SIGKILL to the trainer and the daemon.", step(torn))
	s.endAll()
	out, err := s.ckptsync(ctx, "inspect", "node-a/out")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "optimizer.pt: truncated") || !strings.Contains(out, "missing trainer_state.json") {
		return fmt.Errorf("inspect does not say what is wrong with %s", step(torn))
	}
	return nil
}

// comeBack: the dead node boots again, with its disk as it was.
func (s *story) comeBack(ctx context.Context) error {
	s.chapter("Say node A boots again. Its restore puts the torn step aside, where no trainer can pick it up.")
	if err := s.restored(ctx, "node-a"); err != nil {
		return err
	}
	if _, err := os.Stat(s.path("node-a", "out", step(torn))); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the torn %s is still where a trainer finds it", step(torn))
	}
	return nil
}

// restore: a node that has nothing.
func (s *story) restore(ctx context.Context) error {
	s.chapter("Say it does not. Node B is new and its disk is empty. Before training starts, it restores.")
	if err := s.restored(ctx, "node-b"); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.path("node-b", "out"))
	if err != nil {
		return err
	}
	if len(entries) != 1 {
		return fmt.Errorf("the restore left %d entries on the fresh node, not just the step", len(entries))
	}
	return nil
}

// restored restores on a node, which must give the newest whole step.
func (s *story) restored(ctx context.Context, node string) error {
	out, err := s.ckptsync(ctx, "restore", "--root", node+"/out")
	if err != nil {
		return err
	}
	if want := s.path(node, "out", step(whole)); strings.TrimSuffix(out, "\n") != want {
		return fmt.Errorf("the restore printed %q, not %s", out, want)
	}
	return nil
}

// goOn: training continues on the fresh node, to its end.
func (s *story) goOn(ctx context.Context) error {
	s.chapter("Training goes on from there, with ckptsync beside it, which drains when the job ends.")
	daemon, err := s.daemon("daemon", "--root", "node-b/out", "--settle", "300ms")
	if err != nil {
		return err
	}
	trainer, err := s.trainer("--dir", "node-b/out", "--resume", "node-b/out/"+step(whole), "--steps", fmt.Sprint(total), "--every", fmt.Sprint(every))
	if err != nil {
		return err
	}
	if err := trainer.ends(ctx); err != nil {
		return err
	}
	s.losses = trainer.losses()
	// Before it watches it has no handler for the signal yet.
	if err := daemon.until(ctx, step(torn)+" is committed", func() bool { return daemon.said("committed " + step(torn)) }); err != nil {
		return err
	}
	if err := daemon.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the daemon: %w", err)
	}
	if err := daemon.ends(ctx); err != nil {
		return err
	}
	out, err := s.ckptsync(ctx, "list")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d  %s  head", total, step(total)); !strings.Contains(out, want) {
		return fmt.Errorf("list does not say that %s is the head", step(total))
	}
	return nil
}

// compare: the losses are those of a run that was never interrupted.
func (s *story) compare(ctx context.Context) error {
	s.chapter("The same training once more, never interrupted, and nothing saved.")
	trainer, err := s.trainer("--steps", fmt.Sprint(total))
	if err != nil {
		return err
	}
	if err := trainer.ends(ctx); err != nil {
		return err
	}
	want := trainer.losses()
	for i := whole + 1; i <= total; i++ {
		if want[i] == "" || s.losses[i] == "" {
			return fmt.Errorf("the loss of step %d is not known", i)
		}
		if want[i] != s.losses[i] {
			return fmt.Errorf("the loss of step %d differs from that of the run that was never interrupted", i)
		}
	}
	if len(s.losses) != total-whole {
		return fmt.Errorf("the resumed training made %d steps, not %d", len(s.losses), total-whole)
	}
	s.say(term.Plain, "")
	s.say(term.Good, "All %d losses after the restore equal those of the run that was never interrupted, bit for bit.", len(s.losses))
	return nil
}
