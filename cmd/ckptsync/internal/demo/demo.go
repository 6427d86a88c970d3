// Package demo tells the whole story of ckptsync in a temporary directory: a
// small trainer saves steps while the daemon watches, the node dies in the
// middle of a save, a fresh node restores the newest whole step, and training
// goes on as if nothing had happened. It runs the real program, as a user
// would, against a directory as the store.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// TrainerCommand is the hidden command under which the program runs Train.
const TrainerCommand = "demo-trainer"

const (
	every = 20 // training steps between two saves
	dies  = 80 // the save in which the node dies
	total = 120
)

// Options of the demo.
type Options struct {
	Out  io.Writer // the story
	Self string    // path of this program
	Keep string    // directory to work in and to leave; empty: a temporary one
}

// Run tells the story. It returns an error if any of it is not as it must be.
func Run(ctx context.Context, o Options) (err error) {
	dir := o.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ckptsync-demo-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	s := &story{o: o, dir: dir, losses: map[int]string{}, env: append(os.Environ(),
		"CKPTSYNC_RUN=demo", "CKPTSYNC_STORE=file://"+filepath.ToSlash(filepath.Join(dir, "store"))+"?create=true", "CKPTSYNC_CONFIG=", "CKPTSYNC_LOG_FORMAT=text")}
	if err := os.MkdirAll(filepath.Join(dir, "store"), 0o755); err != nil { //nolint:gosec // a demo's store
		return err
	}
	for _, act := range []func(context.Context) error{s.train, s.die, s.fresh, s.goOn, s.compare} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

type story struct {
	o      Options
	dir    string
	env    []string
	losses map[int]string // what the trainers said, by step
	step   string         // path of the restored step
}

func (s *story) root(node string) string { return filepath.Join(s.dir, "node-"+node, "out") }

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.o.Out, format+"\n", args...) } //nolint:errcheck // a story that nobody hears

func (s *story) chapter(title string) { s.say("\n\x1b[1m%s\x1b[0m", title) }

// command prepares the program as a user would type it, and shows that.
func (s *story) command(ctx context.Context, shown string, args ...string) *exec.Cmd {
	s.say("  $ ckptsync %s", shown)
	c := exec.CommandContext(ctx, s.o.Self, args...) //nolint:gosec // our own program
	c.Env = s.env
	return c
}

// train: the trainer saves, the daemon commits, and the node dies in mid-save.
func (s *story) train(ctx context.Context) error {
	s.chapter("Node A trains. ckptsync watches its output directory; the trainer knows nothing of it.")
	root := s.root("a")
	if err := os.MkdirAll(root, 0o755); err != nil { //nolint:gosec // as a trainer does
		return err
	}
	daemon := s.command(ctx, "daemon --root node-a/out &", "daemon", "--root", root, "--settle", "300ms", "--scan-interval", "500ms", "--log-level", "info")
	log := &tail{committed: make(chan string, 16), out: s.o.Out}
	daemon.Stderr = log
	if err := daemon.Start(); err != nil {
		return err
	}
	defer func() {
		daemon.Process.Kill() //nolint:errcheck // it may be gone already
		daemon.Wait()         //nolint:errcheck // it was killed
	}()
	trainer, lines, err := s.trainer(ctx, "--dir", root, "--steps", fmt.Sprint(total), "--every", fmt.Sprint(every), "--slow-at", fmt.Sprint(dies))
	if err != nil {
		return err
	}
	for line := range lines {
		if strings.HasPrefix(line, "saving") {
			break
		}
	}
	if err := log.wait(ctx, fmt.Sprintf("checkpoint-%d", dies-every)); err != nil {
		return errors.Join(err, trainer.Process.Kill())
	}
	time.Sleep(900 * time.Millisecond) // into the middle of the save
	s.chapter(fmt.Sprintf("In the middle of saving checkpoint-%d, the node dies (SIGKILL to trainer and daemon).", dies))
	if err := trainer.Process.Kill(); err != nil {
		return err
	}
	trainer.Wait() //nolint:errcheck // it was killed
	for range lines {
	}
	return nil
}

// trainer starts the small trainer; its lines are also noted.
func (s *story) trainer(ctx context.Context, args ...string) (*exec.Cmd, <-chan string, error) {
	c := exec.CommandContext(ctx, s.o.Self, append([]string{TrainerCommand}, args...)...) //nolint:gosec // our own program
	c.Env, c.Stderr = s.env, s.o.Out
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	lines := make(chan string, 1024)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	return c, lines, nil
}

// die: what is left on the dead node's disk.
func (s *story) die(ctx context.Context) error {
	out, err := s.output(s.command(ctx, "inspect node-a/out", "inspect", s.root("a")))
	if err != nil {
		return err
	}
	s.indent(out)
	if !strings.Contains(out, "trainer_state.json") {
		return fmt.Errorf("inspect did not say what checkpoint-%d lacks", dies)
	}
	return nil
}

// fresh: a new node restores.
func (s *story) fresh(ctx context.Context) error {
	s.chapter("A fresh node B has nothing. Before its training starts, it restores.")
	out, err := s.output(s.command(ctx, "restore --root node-b/out", "restore", "--root", s.root("b")))
	if err != nil {
		return err
	}
	s.step = strings.TrimSpace(out)
	s.indent(out)
	if want := fmt.Sprintf("checkpoint-%d", dies-every); filepath.Base(s.step) != want {
		return fmt.Errorf("restored %s, not %s", s.step, want)
	}
	s.chapter("And if node A itself comes back, its torn step is put aside, where no trainer can pick it up.")
	out, err = s.output(s.command(ctx, "restore --root node-a/out", "restore", "--root", s.root("a")))
	if err != nil {
		return err
	}
	s.indent(out)
	if _, err := os.Stat(filepath.Join(s.root("a"), fmt.Sprintf("checkpoint-%d", dies))); err == nil {
		return fmt.Errorf("the torn checkpoint-%d is still where a trainer finds it", dies)
	}
	return nil
}

// goOn: training continues on the fresh node, and ends.
func (s *story) goOn(ctx context.Context) error {
	s.chapter(fmt.Sprintf("Training goes on from %s.", filepath.Base(s.step)))
	trainer, lines, err := s.trainer(ctx, "--dir", s.root("b"), "--resume", s.step, "--steps", fmt.Sprint(total), "--every", fmt.Sprint(every))
	if err != nil {
		return err
	}
	for line := range lines {
		s.note(line)
	}
	if err := trainer.Wait(); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if _, err := s.output(s.command(ctx, "push --root node-b/out", "push", "--root", s.root("b"), "--settle", "300ms", "--json")); err != nil {
		return err
	}
	out, err := s.output(s.command(ctx, "list", "list"))
	if err != nil {
		return err
	}
	s.indent(out)
	return nil
}

func (s *story) note(line string) {
	var n int
	var loss string
	if c, err := fmt.Sscanf(line, "step %d loss %s", &n, &loss); err == nil && c == 2 {
		s.losses[n] = loss
	}
}

// compare: the losses are those of a run that was never interrupted.
func (s *story) compare(context.Context) error {
	var buf bytes.Buffer
	dir := filepath.Join(s.dir, "uninterrupted")
	if err := Train(TrainOptions{Dir: dir, Steps: total, Every: total}, &buf); err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(buf.String()) {
		var step int
		var loss string
		fmt.Sscanf(line, "step %d loss %s", &step, &loss) //nolint:errcheck // lines of our own making
		if got, ok := s.losses[step]; ok {
			if got != loss {
				return fmt.Errorf("the loss of step %d differs from that of an uninterrupted run", step)
			}
			n++
		}
	}
	if n != total-(dies-every) {
		return fmt.Errorf("compared the losses of %d steps, not of %d", n, total-(dies-every))
	}
	s.chapter(fmt.Sprintf("The losses of all %d steps after the restore equal those of a run that was never interrupted, bit for bit.", n))
	return nil
}

func (s *story) output(c *exec.Cmd) (string, error) {
	var out bytes.Buffer
	c.Stdout = &out
	c.Stderr = &prefixed{out: s.o.Out}
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w", strings.Join(c.Args[1:], " "), err)
	}
	return out.String(), nil
}

func (s *story) indent(out string) {
	for line := range strings.Lines(out) {
		s.say("    %s", strings.TrimRight(strings.ReplaceAll(line, s.dir+string(filepath.Separator), ""), "\n"))
	}
}

// prefixed shows another program's log, indented.
type prefixed struct{ out io.Writer }

// Write implements io.Writer.
func (p *prefixed) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		fmt.Fprintf(p.out, "    %s\n", bytes.TrimRight(line, "\n")) //nolint:errcheck // a story that nobody hears
	}
	return len(b), nil
}

// tail shows the daemon's log, and tells which steps it says are committed.
type tail struct {
	out       io.Writer
	committed chan string
	rest      []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.rest = append(t.rest, b...)
	for {
		i := bytes.IndexByte(t.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		line := string(t.rest[:i])
		t.rest = t.rest[i+1:]
		fmt.Fprintf(t.out, "    %s\n", line) //nolint:errcheck // a story that nobody hears
		if _, after, ok := strings.Cut(line, "step committed"); ok {
			t.committed <- after
		}
	}
}

// wait returns once the daemon said that the step is committed.
func (t *tail) wait(ctx context.Context, step string) error {
	timeout := time.After(15 * time.Second)
	for {
		select {
		case line := <-t.committed:
			if strings.Contains(line, step+" ") {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("the daemon did not commit %s in time", step)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
