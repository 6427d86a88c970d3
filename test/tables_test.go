package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTables: every test that README.md names is there, and each of the public
// reports has a test that is named after it.
func TestTables(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	there := testNames(t)
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)`").FindAllStringSubmatch(string(text), -1) {
		if !there[m[1]] {
			t.Errorf("README.md names %s, which is nowhere", m[1])
		}
	}
	const reports = 54
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (O-\d\d) \|.*$`).FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[0]
	}
	for n := 1; n <= reports; n++ {
		if row := rows[fmt.Sprintf("O-%02d", n)]; !strings.Contains(row, fmt.Sprintf("`TestO%02d", n)) {
			t.Errorf("O-%02d has no test of its own in README.md: %q", n, row)
		}
	}
}

// testNames are the tests and fuzz targets of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				out[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
