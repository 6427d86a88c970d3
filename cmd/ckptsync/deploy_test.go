package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

const deployDir = "../../deploy"

// parse says what is wrong with a command line, as cobra sees it.
func parse(args []string) error {
	a := &app{term: term.New(&bytes.Buffer{}, &bytes.Buffer{}, os.Getenv), getenv: os.Getenv}
	cmd, rest, err := a.rootCmd().Find(args)
	if err != nil {
		return err
	}
	if !cmd.HasParent() {
		if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
			return unknownCommand(cmd, rest[0])
		}
		return cmd.ParseFlags(rest)
	}
	if err := cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if err := checkValues(cmd); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// checkValues has the configuration check the values of flags.
func checkValues(cmd *cobra.Command) error {
	a := &app{dir: "/", getenv: func(string) string { return "" }}
	in := a.input(cmd)
	in.File = "/dev/null"
	for name, value := range in.Flags {
		if strings.Contains(value, "$") { // a shell's
			delete(in.Flags, name)
		}
	}
	_, err := config.Load(in)
	return err
}

// words splits a line as a shell does, and stops where its command ends.
func words(line string) []string {
	var out []string
	var word strings.Builder
	in, quote := false, rune(0)
	end := func() {
		if in {
			out = append(out, word.String())
		}
		word.Reset()
		in = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, in = r, true
		case r == ' ' || r == '\t':
			end()
		case strings.ContainsRune("|&;<>)#", r):
			if r == '>' && (word.String() == "2" || word.String() == "1") {
				in = false
			}
			end()
			return out
		default:
			word.WriteRune(r)
			in = true
		}
	}
	end()
	return out
}

var (
	inShell = regexp.MustCompile("(?:^|[\\s`(;&|]|exec )ckptsync ([a-z-][^`]*)")
	inProse = regexp.MustCompile("`[^`]*`")
	inYAML  = regexp.MustCompile(`command: (\["(?:/[a-z/]*/)?ckptsync".*\])$`)
	service = regexp.MustCompile(`^ExecStart=/usr/bin/ckptsync (.*)$`)
	compose = regexp.MustCompile(`command: (\["(?:restore|daemon|run|push)".*\])$`)
)

// commandLines are the command lines of a text: of prose those in backquotes.
func commandLines(t *testing.T, path string) [][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "\\\n", " ")
	if filepath.Ext(path) == ".md" {
		text = inProse.ReplaceAllStringFunc(text, func(s string) string { return strings.ReplaceAll(s, "\n", " ") })
	}
	var out [][]string
	quoted := func(list string, drop int) {
		var args []string
		if err := json.Unmarshal([]byte(list), &args); err != nil {
			t.Fatalf("%s: %s: %v", path, list, err)
		}
		out = append(out, args[drop:])
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch ext := filepath.Ext(path); ext {
		case ".yaml", ".yml":
			if m := inYAML.FindStringSubmatch(line); m != nil {
				quoted(m[1], 1)
			} else if m := compose.FindStringSubmatch(line); m != nil {
				quoted(m[1], 0)
			}
		case ".service":
			if m := service.FindStringSubmatch(line); m != nil {
				out = append(out, words(m[1]))
			}
		default:
			if comment := strings.HasPrefix(strings.TrimSpace(line), "#"); ext != ".md" && comment {
				continue
			}
			code := strings.HasPrefix(line, "    ")
			for _, m := range inShell.FindAllStringSubmatchIndex(line, -1) {
				if ext == ".md" && !code && (m[0] >= len(line) || line[m[0]] != '`') {
					continue // prose
				}
				out = append(out, words(line[m[2]:m[3]]))
			}
		}
	}
	return out
}

// Every command line in what is deployed and documented is one that the program
// knows, with its flags and their values.
func TestDeployedCommandLines(t *testing.T) {
	n := map[string]int{}
	check := func(path string) {
		for _, args := range commandLines(t, path) {
			n[filepath.Ext(path)]++
			if err := parse(args); err != nil {
				t.Errorf("%s: ckptsync %s: %v", path, strings.Join(args, " "), err)
			}
		}
	}
	err := filepath.WalkDir(deployDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		check(path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check("../../README.md")
	for ext, least := range map[string]int{".yaml": 9, ".sbatch": 3, ".sh": 1, ".service": 2, ".md": 15} {
		if n[ext] < least {
			t.Errorf("only %d command lines were found in files of %s", n[ext], ext)
		}
	}
}

func TestParseSeesWhatIsWrong(t *testing.T) {
	for _, line := range []string{"daemno", "daemon --graze=3s", "daemon --grace=3", "restore extra", "run --nodes=auto", "config chekc --x", "--nope"} {
		if parse(words(line)) == nil {
			t.Errorf("ckptsync %s passes", line)
		}
	}
}

// tool returns a program that a check needs, and says loudly if it is not there.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "1" {
			t.Fatalf("%s is missing: apt-get install %s", name, pkg)
		}
		t.Skipf("NOT CHECKED: %s is missing: apt-get install %s", name, pkg)
	}
	return path
}

func TestDeployedScriptsPassShellcheck(t *testing.T) {
	files, err := filepath.Glob(deployDir + "/slurm/*")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	var scripts []string
	for _, f := range files {
		if ext := filepath.Ext(f); ext == ".sh" || ext == ".sbatch" {
			scripts = append(scripts, f)
		}
	}
	if out, err := exec.Command(tool(t, "shellcheck", "shellcheck"), scripts...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDeployedUnitsPassSystemd(t *testing.T) {
	verify := tool(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	bin := filepath.Join(dir, "ckptsync")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, as := range map[string]string{"ckptsync.service": "ckptsync.service", "ckptsync@.service": "ckptsync@demo.service"} {
		data, err := os.ReadFile(filepath.Join(deployDir, "systemd", file))
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(dir, as)
		if err := os.WriteFile(unit, bytes.ReplaceAll(data, []byte("/usr/bin/ckptsync"), []byte(bin)), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(verify, "verify", "--man=no", "--recursive-errors=no", unit)
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("Unknown")) || bytes.Contains(out, []byte("ignoring")) {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// A job of Slurm's that is preempted saves, is requeued, and goes on from its
// newest step: the real script with the real program, and a Slurm that is a
// few lines of shell.
func TestSlurmJobIsPreemptedAndGoesOn(t *testing.T) {
	for _, script := range []string{"train.sbatch", "nodes.sbatch", "array.sbatch"} {
		t.Run(script, func(t *testing.T) { preempt(t, script) })
	}
}

// The trainer saves step after step, the last one on SIGTERM, and notes where it
// begins. It is what the scripts call python, and torchrun.
const fakeTrainer = `#!/bin/bash
out=$CKPTSYNC_ROOT resume=
for arg; do case $arg in --resume_from_checkpoint=*) resume=${arg#*=} ;; esac; done
step=${resume##*-}
echo "begins at ${step:-0}" >>"$LOG"
step=${step:-0}
save() {
  step=$((step + 10))
  mkdir -p "$out/epoch-$step"
  echo "{\"step\": $step}" >"$out/epoch-$step/weights.json"
  echo done >"$out/epoch-$step/DONE"
}
trap 'save; echo "saved $step" >>"$LOG"; exit 0' TERM
save
echo "saved $step" >>"$LOG"
for i in $(seq 400); do [ -e "$FINISH" ] && exit 0; sleep 0.05; done
exit 1
`

func preempt(t *testing.T, script string) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	log, requeued, finish := filepath.Join(dir, "log"), filepath.Join(dir, "requeued"), filepath.Join(dir, "finish")
	for name, text := range map[string]string{
		"bin/python": fakeTrainer, "bin/torchrun": fakeTrainer,
		"bin/srun":     "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0\nexec \"$@\"\n",
		"bin/scontrol": "#!/bin/bash\nif [ \"$1\" = requeue ]; then echo \"$2\" >>'" + requeued + "'; else echo node-0; fi\n",
		"c.yaml":       "settle: 0s\nscan_interval: 100ms\nlayouts:\n- {name: mine, step: 'epoch-{step}', required: [weights.json], marker: DONE, exact: [weights.json]}\n",
		"store/.keep":  "",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(bin, "ckptsync")); err != nil {
		t.Fatal(err)
	}
	start := func(restart int) *exec.Cmd {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, "bash", filepath.Join(deployDir, "slurm", script))
		root := filepath.Join(dir, fmt.Sprintf("node-%d", restart), "out") // a new disk each time
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "LOG="+log, "FINISH="+finish,
			"CKPTSYNC_CONFIG="+filepath.Join(dir, "c.yaml"), "CKPTSYNC_STORE=file://"+filepath.Join(dir, "store"), "CKPTSYNC_ROOT="+root,
			"SLURM_JOB_ID=4711", "SLURM_JOB_NAME=demo", "SLURM_NNODES=1", "SLURM_JOB_NODELIST=node-0", "SLURM_ARRAY_TASK_ID=3",
			fmt.Sprintf("SLURM_RESTART_COUNT=%d", restart))
		var say bytes.Buffer
		cmd.Stdout, cmd.Stderr = &say, &say
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("start %d:\n%s", restart, &say)
			}
		})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	said := func(text string) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if data, err := os.ReadFile(log); err == nil && strings.Contains(string(data), text) {
				return
			}
		}
		t.Fatalf("the trainer never said %q", text)
	}
	first := start(0)
	said("saved 10")
	if err := first.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the preempted job ended with %v", err)
	}
	if data, err := os.ReadFile(requeued); err != nil || string(data) != "4711\n" {
		t.Fatalf("requeued %q, %v", data, err)
	}
	second := start(1)
	said("saved 30")
	if err := os.WriteFile(finish, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("the job ended with %v", err)
	}
	if data, err := os.ReadFile(log); err != nil || string(data) != "begins at 0\nsaved 10\nsaved 20\nbegins at 20\nsaved 30\n" {
		t.Errorf("the trainer said %q, %v", data, err)
	}
	if data, err := os.ReadFile(requeued); err != nil || string(data) != "4711\n" {
		t.Errorf("requeued again: %q, %v", data, err)
	}
}
