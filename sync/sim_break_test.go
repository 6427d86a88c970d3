//go:build !race

package syncer

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// simBreakage is a rule that is broken on purpose: in the source that it names,
// the text old is replaced by new, in which the call broken(NAME) is true. The
// sources themselves are left alone: the compiler is told of the copies.
type simBreakage struct {
	rule     string // as in the models, where they have a switch for it
	from     int    // a seed that has found it, or one before: to be quick
	file     string // below the module
	old, new string
}

const simSeeds = 100

const simJobSeeds = 60

// simEnough is a number of seeds that find each of them.
const simEnough = 150

var simBreakages = []simBreakage{
	{"F_PASS", 0, "sync/publish.go", "if err := l.hold.Check(); err != nil {\n\t\tvar ch", "if broken(\"F_PASS\") {\n\t\treturn true, nil\n\t}\n\tif err := l.hold.Check(); err != nil {\n\t\tvar ch"},
	{"F_FRESH", 0, "sync/engine.go", "if len(l.verdict.Voided) > 0 && !proven {", "if len(l.verdict.Voided) > 0 && !proven && !broken(\"F_FRESH\") {"},
	{"F_KEY", 0, "commit/digest.go", "func NewToken() string { return randomToken(10) }",
		"func NewToken() string {\n\tif broken(\"F_KEY\") {\n\t\treturn \"aaaaaaaaaa\"\n\t}\n\treturn randomToken(10)\n}"},
	{"F_PASS", 0, "sync/upload/upload.go", "!now.Same(f.Ident) {", "!now.Same(f.Ident) && !broken(\"F_PASS\") {"}, // each file as it is read, too
	{"R1", 0, "sync/upload/upload.go", "_, err := u.bucket.Put(ctx, f.Object, src, &blob.PutOptions{CRC32C: &crc})\n",
		"_, err := u.bucket.Put(ctx, f.Object, src, &blob.PutOptions{CRC32C: &crc})\n\t\tif broken(\"R1\") && blob.Ambiguous(err) {\n\t\t\treturn nil\n\t\t}\n"},
	{"F_RANK", 0, "sync/attempt.go", "commit.Attempt{Base: base, Rank: rank,", "commit.Attempt{Declared: broken(\"F_RANK\"), Base: base, Rank: rank,"},
	{"F_FOUND", 0, "sync/scan.go", "ok && (print == anyPrint || l.is(print)) {", "ok && !broken(\"F_FOUND\") && (print == anyPrint || l.is(print)) {"},
	{"F_LINEAGE", 25, "commit/head.go", "if base == nil || c.Step > base.Step {", "if (base == nil || c.Step > base.Step) && !(broken(\"F_LINEAGE\") && x.v.Marks[c.ID][Damaged]) {"},
	{"F_READ", 18, "blob/create.go", "case rerr == nil && bytes.Equal(there, body):", "case rerr == nil && (broken(\"F_READ\") || bytes.Equal(there, body)):"},
	{"F_TIE", 75, "commit/head.go", "cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt)", "cmp.Compare(a.Step, b.Step), flipped(\"F_TIE\")*cmp.Compare(a.Attempt, b.Attempt)"},
	{"F_NAMED", 0, "sync/prune/sweep.go", "live, somewhere := named[r.hash(d.Name)]", "live, somewhere := named[r.hash(d.Name)]\n\t\tlive, somewhere = live && !broken(\"F_NAMED\"), somewhere && !broken(\"F_NAMED\")"},
	{"R11_HEAD", 0, "sync/prune/prune.go", "if !d.Keep {", "if !d.Keep || broken(\"R11_HEAD\") {"},
	{"R12_JOURNAL", 8, "sync/journal.go", "return r, ok && r.Ident != nil && *r.Ident == id\n}\n\n// upload is", "return r, ok && (broken(\"R12_JOURNAL\") || r.Ident != nil && *r.Ident == id)\n}\n\n// upload is"},
	{"R10_VOIDED", 0, "sync/recover.go", "case len(v.Voided) > 0 && !e.cfg.TrustOrder:", "case len(v.Voided) > 0 && !e.cfg.TrustOrder && !broken(\"R10_VOIDED\"):"},
	{"R7_RESCUE", 8, "sync/recover.go", "if !o.ReadOnly {\n\t\tif err := e.rescue(ctx); err != nil {", "if !o.ReadOnly && !broken(\"R7_RESCUE\") {\n\t\tif err := e.rescue(ctx); err != nil {"},
	{"R10_ZERO", 0, "sync/recover.go", "if errors.Is(err, restore.ErrNothingCommitted) && o.IfExists {", "if (errors.Is(err, restore.ErrNothingCommitted) || broken(\"R10_ZERO\") && errors.Is(err, restore.ErrCannotTell)) && o.IfExists {"},
}

// simBroken is the file that each package of a broken source gets.
const simBroken = `package %s

import "os"

func broken(rule string) bool { return os.Getenv("CKPTSYNC_SIM_BROKEN") == rule }

func flipped(rule string) int {
	if broken(rule) {
		return -1
	}
	return 1
}
`

// TestSimulationFindsBrokenRules breaks the rules one at a time. A simulation
// that does not notice proves nothing.
func TestSimulationFindsBrokenRules(t *testing.T) {
	bin := simBuild(t)
	told := map[string]bool{}
	for _, b := range simBreakages {
		if told[b.rule] {
			continue
		}
		told[b.rule] = true
		t.Run(b.rule, func(t *testing.T) {
			cmd := exec.Command(bin, "-test.run=^TestSimulation$", "-test.timeout=100s")
			cmd.Env = append(os.Environ(), "CKPTSYNC_SIM_BROKEN="+b.rule, "CKPTSYNC_SIM_FROM="+strconv.Itoa(b.from), "CKPTSYNC_SIM_SEEDS="+strconv.Itoa(simEnv("CKPTSYNC_SIM_SEEDS", simEnough)))
			out, err := cmd.CombinedOutput()
			_, why, found := strings.Cut(string(out), "WRONG: ")
			if err == nil || !found {
				t.Fatalf("not found: %v\n%.2000s", err, out)
			}
			why, _, _ = strings.Cut(why, "\n")
			_, seed, _ := strings.Cut(string(out), "CKPTSYNC_SIM_SEED=")
			seed, _, _ = strings.Cut(seed, " ")
			t.Logf("found by seed %s: %s", seed, why)
		})
	}
}

// simBuild builds the tests with every breakage in them, none of it in force.
func simBuild(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	module, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	for _, b := range simBreakages {
		p := filepath.Join(module, b.file)
		if text[p] == "" {
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			text[p] = string(data)
		}
		if strings.Count(text[p], b.old) != 1 {
			t.Fatalf("%s: the text that is to be broken for %s is not there once: say anew how the rule is broken", b.file, b.rule)
		}
		text[p] = strings.Replace(text[p], b.old, b.new, 1)
		_, pkg, _ := strings.Cut("\n"+text[p], "\npackage ")
		pkg, _, _ = strings.Cut(pkg, "\n")
		text[filepath.Join(filepath.Dir(p), "sim_broken.go")] = strings.Replace(simBroken, "%s", pkg, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for p, s := range text {
		copied := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(p, module), string(filepath.Separator), "_"))
		if err := os.WriteFile(copied, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[p] = copied
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sync.test")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-overlay", file, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

const raced = false
