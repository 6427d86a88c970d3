package stores

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/gofrs/flock"
)

// versitygwPkg is the command that test/servers pins.
const (
	versitygwModule = "github.com/versity/versitygw"
	versitygwPkg    = versitygwModule + "/cmd/versitygw"
)

// fakeGCSModule is the command that test/servers pins.
const fakeGCSModule = "github.com/fsouza/fake-gcs-server"

// BuildVersitygw returns the path of the pinned versitygw binary, building it
// if the cache does not hold it yet. It may be called by any number of
// processes at once.
func BuildVersitygw(ctx context.Context) (string, error) {
	return buildPinned(ctx, versitygwModule, versitygwPkg)
}

// BuildFakeGCS is [BuildVersitygw] for fake-gcs-server.
func BuildFakeGCS(ctx context.Context) (string, error) {
	return buildPinned(ctx, fakeGCSModule, fakeGCSModule)
}

// buildPinned returns the path of the binary of pkg, of a module that
// test/servers pins, building it if the cache does not hold it yet.
func buildPinned(ctx context.Context, module, pkg string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	version, err := pinned(filepath.Join(root, "test", "servers", "go.mod"), module)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, path.Base(pkg)+"-"+version+"-"+runtime.GOOS+"-"+runtime.GOARCH)
	return once(ctx, bin, func() error { return build(ctx, filepath.Join(root, "test", "servers"), pkg, bin) })
}

// once returns target, which make makes, whole or not at all, unless it is
// there.
func once(ctx context.Context, target string, make func() error) (string, error) {
	if ok, err := exists(target); ok || err != nil {
		return target, err
	}
	lock := flock.New(target + ".lock")
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	if ok, err := exists(target); ok || err != nil { // another process made it meanwhile
		return target, err
	}
	return target, make()
}

// build compiles pkg of the module in dir, with further flags, to the file bin,
// which appears whole or not at all.
func build(ctx context.Context, dir, pkg, bin string, flags ...string) error {
	tmp := fmt.Sprintf("%s.%d.tmp", bin, os.Getpid())
	defer os.Remove(tmp)
	var out bytes.Buffer
	args := append([]string{"build", "-C", dir, "-o", tmp}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	// The tests' own flags (-mod, -tags, GOOS of a cross build) are not the server's.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, lastLine(out.Bytes()))
	}
	return os.Rename(tmp, bin)
}

// moduleRoot finds the directory of the product's go.mod above the working
// directory, which for a test is its package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module github.com/ckptsync/ckptsync\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("the working directory is outside the module github.com/ckptsync/ckptsync, whose test/servers pins the servers")
		}
		dir = up
	}
}

// pinned returns the version of module that the go.mod file requires.
func pinned(gomod, module string) (string, error) {
	data, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s does not require %s", gomod, module)
	}
	return string(m[1]), nil
}

func cacheDir() (string, error) {
	dir := os.Getenv("CKPTSYNC_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory (set CKPTSYNC_CACHE): %w", err)
		}
		dir = filepath.Join(user, "ckptsync")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}
