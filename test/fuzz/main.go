// Command fuzz finds every fuzz target of the module and fuzzes each for a
// time:
//
//	go run ./test/fuzz -for 60s             # all of them
//	go run ./test/fuzz -run OCDBT -for 10m  # those whose name matches
//	go run ./test/fuzz -list
//
// Its last line counts findings; with one it ends with status 1, and the input
// that was found stays below testdata/fuzz of the package, to be fixed and
// committed.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run() error {
	span := flag.Duration("for", time.Minute, "how long each target is fuzzed")
	match := flag.String("run", "", "only targets whose name matches this expression")
	workers := flag.Int("parallel", 1, "processes at a time that fuzz one target")
	list := flag.Bool("list", false, "print the targets and fuzz nothing")
	flag.Parse()
	only, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	targets, err := find(".")
	if err != nil {
		return err
	}
	ran, bad := 0, 0
	for _, t := range targets {
		switch {
		case !only.MatchString(t.name):
		case *list:
			fmt.Println(t.dir, t.name)
		default:
			ran++
			if err := t.fuzz(*span, *workers); err != nil {
				bad++
				fmt.Println(err)
			}
		}
	}
	if *list {
		return nil
	}
	fmt.Printf("%d targets, %v each: %d findings\n", ran, *span, bad)
	if ran == 0 || bad > 0 {
		return errors.New("a finding, or nothing to do")
	}
	return nil
}

// target is one function FuzzXxx.
type target struct {
	dir  string // as go takes a package: ./below/the/module
	name string
}

// find reads the test files below a directory.
func find(root string) ([]target, error) {
	var out []target
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && p != root):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				out = append(out, target{"./" + filepath.ToSlash(filepath.Dir(p)), fn.Name.Name})
			}
		}
		return nil
	})
	return out, err
}

var executions = regexp.MustCompile(`execs: (\d+)`)

// fuzz runs a target, and says how many inputs were tried.
func (t target) fuzz(span time.Duration, workers int) error {
	cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", span.String(), "-parallel", strconv.Itoa(workers), "-fuzzminimizetime", "10s", t.dir)
	out, err := cmd.CombinedOutput()
	tried := "none"
	if all := executions.FindAllSubmatch(out, -1); len(all) > 0 {
		tried = string(all[len(all)-1][1])
	}
	if err == nil {
		fmt.Printf("ok    %-20s %s, %s inputs\n", t.name, t.dir, tried)
		return nil
	}
	return fmt.Errorf("FOUND %-20s %s, after %s inputs: %w\n%s", t.name, t.dir, tried, err, bytes.TrimSpace(out))
}
