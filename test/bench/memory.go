package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
)

func memoryFlags(s *settings, f *flag.FlagSet) {
	s.Huge = 60 << 30
	f.Var(&s.Huge, "huge", "`bytes` of the sparse file")
}

// budget is one setting of memory, and what it may take.
type budget struct {
	name string
	args []string
	most float64 // MiB
}

// memorySample is one push or restore of the sparse file.
type memorySample struct {
	Command, Budget string
	Peak            float64 // MiB
	Wall            float64 // seconds
	Mover           usage
}

// memory pushes a sparse file against the sink, and restores it.
func memory(ctx context.Context, b *bench) error {
	root := filepath.Join(b.dir, "src", "huge")
	if err := sparseStep(filepath.Join(root, firstStep), int64(b.s.Huge)); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	st, err := b.startStore(ctx, "sink", "http")
	if err != nil {
		return err
	}
	defer st.stop()
	b.say("a sparse file of %s, against the sink", b.s.Huge.String())
	var all []memorySample
	for range b.s.Rounds {
		for _, m := range []budget{{"defaults", nil, mostMemory}, {"--memory 96MiB", []string{"--memory", "96MiB"}, 128}} {
			if err := st.empty(ctx); err != nil {
				return err
			}
			run := b.fresh("huge")
			u, _, err := b.push(st, run, root, m.args...).run(ctx)
			if err != nil {
				return fmt.Errorf("push with %s: %w", m.name, err)
			}
			all = append(all, memorySample{"push", m.name, u.Peak, u.Wall, u})
			target, state := filepath.Join(b.dir, "target", run), filepath.Join(b.dir, "state", run)
			args := append([]string{"--run", run, "--to", target, "--read-only", "--layout", "bench", "--state-dir", state + "-down"}, m.args...)
			if err := os.MkdirAll(target, 0o755); err != nil {
				return err
			}
			if u, _, err = b.ckptsync(st, "restore", args...).run(ctx); err != nil {
				return fmt.Errorf("restore with %s: %w", m.name, err)
			}
			all = append(all, memorySample{"restore", m.name, u.Peak, u.Wall, u})
			if err := errors.Join(os.RemoveAll(target), os.RemoveAll(state), os.RemoveAll(state+"-down")); err != nil {
				return err
			}
		}
	}
	b.report.keep("memory", all)
	b.showMemory(all)
	return nil
}

func (b *bench) showMemory(all []memorySample) {
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "command\twith\tpeak MiB\twall s\t")
	for _, command := range []string{"push", "restore"} {
		for _, m := range []budget{{name: "defaults", most: mostMemory}, {name: "--memory 96MiB", most: 128}} {
			var peaks, walls []float64
			for _, s := range all {
				if s.Command == command && s.Budget == m.name {
					peaks, walls = append(peaks, s.Peak), append(walls, s.Wall)
				}
			}
			p := spreadOf(peaks)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", command, m.name, p, spreadOf(walls))
			b.report.judge(fmt.Sprintf("memory of a %s with %s, %s", command, m.name, b.s.Huge.String()), p.greatest <= m.most,
				"%s MiB, at most %.0f", number(p.greatest), m.most)
		}
	}
	w.Flush()
}

// sparseStep makes a step of one file that has next to no blocks on the disk:
// some bytes at its beginning, in the middle and at the end.
func sparseStep(dir string, size int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "huge.dat"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, at := range []int64{0, size / 2, size - 8} {
		if _, err := f.WriteAt([]byte("not zero"), max(0, at)); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, markerName), []byte("done\n"), 0o600)
}
