package crash

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

var (
	killsFlag = flag.Int("crash.kills", envInt("CKPTSYNC_CRASH_KILLS", 0), "kills of the daemon that must land during an upload, per store (0: a short slice)")
	seedFlag  = flag.Int64("crash.seed", int64(envInt("CKPTSYNC_CRASH_SEED", 0)), "seed of the moments (0: from the clock)")
)

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// program is the binary under test.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ckptsync-crash-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, kv := range stores.Env() { // for the handles of the test's own
		k, v, _ := strings.Cut(kv, "=")
		if err := os.Setenv(k, v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	program = filepath.Join(dir, "ckptsync")
	// Without the race detector: the moments of a kill should be those of the
	// program that people run.
	out, err := exec.Command("go", "build", "-race=false", "-o", program, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	if *seedFlag == 0 {
		*seedFlag = time.Now().UnixNano()
	}
	return m.Run()
}

// kills is how many kills a test wants: share of the full number, or short.
func kills(share float64, short int) int {
	if *killsFlag == 0 {
		return short
	}
	return max(short, int(float64(*killsFlag)*share))
}
