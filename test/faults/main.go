//go:build linux && amd64

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
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		stop()
		os.Exit(1)
	}
}

// options choose what is tried.
type options struct {
	ops, kinds, faults *regexp.Regexp
	every              int // further thinning
	from               int // first point
	point              int // this one alone
	verbose            bool
}

func run(ctx context.Context) error {
	op := flag.String("op", "", "only operations whose name matches this expression")
	kind := flag.String("store", "", "only stores (file, s3) that match")
	name := flag.String("fault", "", "only faults whose name matches")
	every := flag.Int("every", 1, "try one of so many points")
	point := flag.Int("point", 0, "try this point alone, and say what it was")
	out := flag.String("update", "", "write what was found into the table of this file (test/README.md)")
	verbose := flag.Bool("v", false, "print each point")
	flag.Parse()
	o := options{every: *every, point: *point, verbose: *verbose || *point > 0}
	for _, e := range []struct {
		to   **regexp.Regexp
		text string
	}{{&o.ops, *op}, {&o.kinds, *kind}, {&o.faults, *name}} {
		var err error
		if *e.to, err = regexp.Compile(e.text); err != nil {
			return err
		}
	}
	for _, kv := range stores.Env() { // for handles of its own
		k, v, _ := strings.Cut(kv, "=")
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	base, err := os.MkdirTemp("", "ckptsync-faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	program, err := buildProgram(ctx, base)
	if err != nil {
		return err
	}
	rows, err := o.all(ctx, program, base)
	if *out != "" {
		err = errors.Join(err, update(*out, rows))
	}
	return err
}

// buildProgram builds the program as people run it.
func buildProgram(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "ckptsync")
	out, err := exec.CommandContext(ctx, "go", "build", "-race=false", "-o", program, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return program, nil
}

// row is a line of the table.
type row struct {
	op, kind, fault string
	points, tried   int
	bad             []string
	took            time.Duration
}

func (r row) String() string {
	s := fmt.Sprintf("%-22s %-5s %-62s %4d of %4d points, %d violations, %v", r.op, r.kind, r.fault, r.tried, r.points, len(r.bad), r.took.Round(time.Second))
	for _, b := range r.bad {
		s += "\n  VIOLATION " + b
	}
	return s
}

// all tries everything that was chosen.
func (o *options) all(ctx context.Context, program, base string) ([]row, error) {
	var rows []row
	bad := 0
	for _, op := range operations() {
		for _, kind := range []string{"file", "s3"} {
			if !o.ops.MatchString(op.name) || !o.kinds.MatchString(kind) {
				continue
			}
			dir, err := os.MkdirTemp(base, "site-")
			if err != nil {
				return rows, err
			}
			s, err := prepare(ctx, program, dir, kind, op)
			if err != nil {
				return rows, err
			}
			got, err := o.faultsOf(ctx, s, op)
			s.close()
			rows = append(rows, got...)
			if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
				return rows, err
			}
			for _, r := range got {
				bad += len(r.bad)
			}
		}
	}
	switch {
	case len(rows) == 0:
		return nil, errors.New("nothing is chosen")
	case bad > 0:
		return rows, fmt.Errorf("%d violations", bad)
	}
	return rows, nil
}

// faultsOf tries the faults of one operation on one store.
func (o *options) faultsOf(ctx context.Context, s *site, op *operation) ([]row, error) {
	var rows []row
	points := map[bool]int{}
	for _, f := range faultList() {
		if !f.local && s.kind == "file" || !o.faults.MatchString(f.name) {
			continue
		}
		if points[f.local] == 0 {
			n, err := s.measure(ctx, op, f)
			if err != nil {
				return rows, err
			}
			points[f.local] = n
		}
		if points[f.local] == 0 {
			continue // it writes nothing here
		}
		r, err := o.pointsOf(ctx, s, op, f, points[f.local])
		if err != nil {
			return rows, err
		}
		fmt.Println(r)
		rows = append(rows, r)
	}
	return rows, nil
}

// pointsOf tries one fault at its points.
func (o *options) pointsOf(ctx context.Context, s *site, op *operation, f fault, points int) (row, error) {
	r := row{op: op.name, kind: s.kind, fault: f.name, points: points}
	began := time.Now()
	step := f.every * o.every
	for n := 1 + o.from%step; n <= points; n += step {
		if o.point > 0 {
			n, step = o.point, points
		}
		what, err := s.try(ctx, op, f, n)
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		if what != "" {
			r.tried++
		}
		if err != nil {
			r.bad = append(r.bad, fmt.Sprintf("-op %q -store %s -fault %q -point %d, at %s: %v", "^"+op.name+"$", s.kind, "^"+f.name+"$", n, what, err))
		}
		if o.verbose || err != nil {
			fmt.Fprintf(os.Stderr, "%s, %s, %s, %d of %d, %s: %v\n", op.name, s.kind, f.name, n, points, what, err)
		}
		if len(r.bad) >= 5 {
			break
		}
	}
	r.took = time.Since(began)
	return r, nil
}
