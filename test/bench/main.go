package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// errMissed makes -check end with status 1.
var errMissed = errors.New("a target was missed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := start(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// start runs a job of this program's own, if the environment has one, else the
// command that args name.
func start(ctx context.Context, args []string, out io.Writer) error {
	if text := os.Getenv(jobEnv); text != "" {
		return runJob(ctx, text, out)
	}
	return command(ctx, args, out)
}

// part is one command: a kind of measurement.
type part struct {
	name  string
	about string
	flags func(*settings, *flag.FlagSet)
	run   func(context.Context, *bench) error
}

func parts() []part {
	return []part{
		{"move", "move files up and down, beside the floor and the peers", moveFlags, move},
		{"trainer", "what an upload takes from a trainer beside it", trainerFlags, trainer},
		{"shaped", "how it scales with connections on a slow network", shapedFlags, shaped},
		{"lag", "how soon after its evidence a step is committed", lagFlags, lag},
		{"restart", "what is sent twice after a crash of either side", restartFlags, restart},
		{"memory", "how much memory a very large file takes", memoryFlags, memory},
	}
}

// command is the main function of the bench.
func command(ctx context.Context, args []string, out io.Writer) error {
	name := "move"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	var todo []part
	for _, p := range parts() {
		if p.name == name || name == "all" {
			todo = append(todo, p)
		}
	}
	if len(todo) == 0 {
		return fmt.Errorf("there is no command %q: see go doc ./test/bench", name)
	}
	var s settings
	f := flag.NewFlagSet("bench "+name, flag.ContinueOnError)
	f.SetOutput(out)
	commonFlags(&s, f)
	for _, p := range todo {
		p.flags(&s, f)
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("what is %q meant for? see -h", f.Arg(0))
	}
	b, err := newBench(ctx, s, out)
	if err != nil {
		return err
	}
	defer b.close()
	for _, p := range todo {
		b.say("\n=== %s: %s", p.name, p.about)
		if err := p.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return b.conclude()
}
