package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ckptsync/ckptsync"

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	ForTest      string
}

// layer is a part of the tree, from the top down. A package may import its own
// layer and those below it.
type layer struct {
	name string
	// may lists the modules of others that the layer's packages may import, by
	// the beginning of the path.
	may []string
}

// The import rule: cmd → sync → commit → blob.
var layers = []layer{
	{"cmd", []string{
		"github.com/spf13/", "go.yaml.in/yaml/v3", "github.com/vbauerster/mpb/v8", "github.com/dustin/go-humanize",
		"github.com/mattn/go-runewidth", "github.com/prometheus/", "github.com/cenkalti/backoff/v4", "github.com/gofrs/flock", "golang.org/x/",
	}},
	{"sync", []string{
		"github.com/fsnotify/fsnotify", "github.com/gofrs/flock", "github.com/zeebo/blake3", "github.com/klauspost/compress/zstd", "github.com/dustin/go-humanize",
		"github.com/cenkalti/backoff/v4",
		"github.com/prometheus/client_golang/", "golang.org/x/sync/", "golang.org/x/sys/", "golang.org/x/time/",
	}},
	{"commit", []string{"github.com/zeebo/blake3", "aead.dev/minisign", "filippo.io/age", "golang.org/x/sync/"}},
	{"blob", []string{
		"github.com/cenkalti/backoff/v4", "github.com/gofrs/flock", "golang.org/x/sync/", "golang.org/x/sys/", "golang.org/x/time/",
		"github.com/prometheus/client_golang/", "github.com/zeebo/blake3",
	}},
}

// only names who alone may import what: an SDK stays in its driver.
var only = []struct {
	path string
	in   []string // beginnings of import paths below the module
}{
	{"github.com/aws/", []string{"blob/s3blob"}},
	{"gocloud.dev/", []string{"blob/cdkblob"}},
	{"cloud.google.com/", []string{"blob/cdkblob"}},
	{"github.com/Azure/", []string{"blob/cdkblob"}},
	{"github.com/googleapis/", []string{"blob/cdkblob"}},
	{"google.golang.org/", []string{"blob/cdkblob"}},
	{"github.com/minio/crc64nvme", []string{"blob/cdkblob", "blob/s3blob"}},
	{"go.yaml.in/yaml/", []string{"cmd/ckptsync/internal/config"}},
	{"github.com/vbauerster/mpb/", []string{"cmd/ckptsync/internal/term"}},
	{"golang.org/x/term", []string{"cmd/ckptsync/internal/term"}},
	{"github.com/spf13/", []string{"cmd/ckptsync"}},
	{"github.com/fsnotify/", []string{"sync/watch"}},
	{"filippo.io/age", []string{"blob/ageblob", "commit"}},
}

// inDriver says whether only rules an import, and if so whether this importer is
// among those who may.
func inDriver(imported, importer string) (ruled, ok bool) {
	for _, o := range only {
		if !strings.HasPrefix(imported, o.path) {
			continue
		}
		return true, slices.ContainsFunc(o.in, func(in string) bool {
			return importer == in || strings.HasPrefix(importer, in+"/")
		})
	}
	return false, false
}

// violation says why a package may not import another; empty if it may.
func violation(importer, imported string) string {
	own, ours := strings.CutPrefix(imported, module+"/")
	from := slices.IndexFunc(layers, func(l layer) bool { return within(importer, l.name) })
	if from < 0 {
		return ""
	}
	if ours {
		switch to := slices.IndexFunc(layers, func(l layer) bool { return within(own, l.name) }); {
		case within(own, "test"):
			return "nothing imports test"
		case within(own, "cmd") && !within(importer, "cmd"):
			return "nothing imports cmd"
		case to < 0:
			return "it is in no layer: add its folder to the rule"
		case to < from:
			return layers[from].name + " is below " + layers[to].name
		}
		return ""
	}
	if ruled, ok := inDriver(imported, importer); ruled {
		if ok {
			return ""
		}
		return "only its own driver or package may import it"
	}
	for _, m := range layers[from].may {
		if strings.HasPrefix(imported, m) {
			return ""
		}
	}
	return "it is not among the libraries of " + layers[from].name
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, args...)...)
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// standard reports whether an import path is of the standard library.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportsGoOneWay(t *testing.T) {
	pkgs := list(t, "./...")
	seen := map[string]bool{}
	for _, p := range pkgs {
		importer := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, l := range layers {
			seen[l.name] = seen[l.name] || within(importer, l.name)
		}
		for _, i := range p.Imports {
			if standard(i) {
				continue
			}
			if why := violation(importer, i); why != "" && !testKit(importer) {
				t.Errorf("%s imports %s: %s", importer, i, why)
			}
		}
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if !within(importer, "test") && i == module+"/cmd/ckptsync" {
				t.Errorf("%s imports the program", importer)
			}
		}
	}
	for _, l := range layers {
		if !seen[l.name] {
			t.Errorf("no package of layer %s was looked at", l.name)
		}
	}
}

// testKit reports whether a package exists for other packages' tests only: it
// may import libraries for tests, and never gets into the program (see
// TestProgramHoldsNoTestCode).
func testKit(importer string) bool {
	return strings.HasSuffix(importer, "test") && importer != "test"
}

func TestProgramHoldsNoTestCode(t *testing.T) {
	for _, p := range list(t, "./cmd/ckptsync") {
		for _, d := range p.Deps {
			own := strings.TrimPrefix(d, module+"/")
			if own != d && (within(own, "test") || testKit(own)) || slices.Contains([]string{
				"testing", "pgregory.net/rapid", "github.com/google/go-cmp/cmp", "go.uber.org/goleak", "github.com/rogpeppe/go-internal/testscript",
			}, d) {
				t.Errorf("the program holds %s", d)
			}
		}
	}
}

func TestServersStayOutOfTheProductsModule(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"versity/", "fsouza/fake-gcs-server", "Shopify/toxiproxy", "minio/minio ", "seaweedfs/", "johannesboyne/gofakes3"} {
		if bytes.Contains(mod, []byte(server)) {
			t.Errorf("go.mod names %s, which belongs into a module of its own below test", server)
		}
	}
	if bytes.Contains(mod, []byte("\nreplace ")) {
		t.Error("go.mod replaces a module: then `go install` of the program fails")
	}
	below, err := filepath.Glob("*/go.mod")
	if err != nil || len(below) == 0 {
		t.Errorf("no module of its own below test: %v, %v", below, err)
	}
}

// The rule itself is tested: what it forbids must not slip through.
func TestViolation(t *testing.T) {
	for _, c := range []struct {
		importer, imported string
		bad                bool
	}{
		{"cmd/ckptsync", module + "/sync", false},
		{"cmd/ckptsync", module + "/blob/s3blob", false},
		{"sync/upload", module + "/commit", false},
		{"commit", module + "/blob", false},
		{"blob/fileblob", module + "/blob/durable", false},
		{"commit", module + "/sync/layout", true},
		{"blob", module + "/commit", true},
		{"blob/memblob", module + "/sync/layout", true},
		{"sync", module + "/cmd/ckptsync/internal/config", true},
		{"sync", module + "/test/stores", true},
		{"cmd/ckptsync", module + "/test/stores", true},
		{"cmd/ckptsync", module + "/util", true},
		{"blob/s3blob", "github.com/aws/aws-sdk-go-v2/aws", false},
		{"blob/retryblob", "github.com/aws/aws-sdk-go-v2/aws", true},
		{"blob/cdkblob", "cloud.google.com/go/auth", false},
		{"cmd/ckptsync/internal/store", "github.com/Azure/azure-sdk-for-go/sdk/azcore", true},
		{"cmd/ckptsync/internal/store", "github.com/aws/aws-sdk-go-v2/aws", true},
		{"cmd/ckptsync/internal/config", "go.yaml.in/yaml/v3", false},
		{"cmd/ckptsync", "go.yaml.in/yaml/v3", true},
		{"sync/layout", "go.yaml.in/yaml/v3", true},
		{"commit", "github.com/prometheus/client_golang/prometheus", true},
		{"commit", "github.com/spf13/cobra", true},
		{"sync", "github.com/spf13/cobra", true},
		{"sync", "github.com/fsnotify/fsnotify", true},
		{"sync/watch", "github.com/fsnotify/fsnotify", false},
		{"sync", "github.com/sirupsen/logrus", true},
		{"cmd/ckptsync/internal/term", "github.com/vbauerster/mpb/v8/decor", false},
		{"sync", "github.com/vbauerster/mpb/v8", true},
	} {
		if why := violation(c.importer, c.imported); (why != "") != c.bad {
			t.Errorf("%s imports %s: %q", c.importer, c.imported, why)
		}
	}
}

// TestTopLevel: a newcomer sees the architecture from the folder names, and no
// other names stand beside them.
func TestTopLevel(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		out = nil // no checkout: what is there counts
		entries, err := os.ReadDir("..")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(append(out, e.Name()...), 0)
		}
	}
	allowed := []string{"LICENSE", "README.md", "blob", "cmd", "commit", "config.example.yaml", "deploy", "go.mod", "go.sum", "sync", "test"}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		top, _, _ := strings.Cut(name, "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(allowed, top) {
			t.Errorf("%s stands at the top level", name)
		}
	}
}
