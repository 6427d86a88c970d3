package restore

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob/blobtest"
)

const mountEnv = "RESTORE_TEST_MOUNTS"

// mayMount reports whether the test goes on in this process, which may mount.
// A user who may not runs it again as the root of a user namespace.
func mayMount(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mountEnv) != "" {
		return true
	}
	probe := t.TempDir()
	denied := unix.Mount("restore-test", probe, "tmpfs", 0, "size=4k")
	if denied == nil {
		if err := unix.Unmount(probe, 0); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mountEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		notHere(t, "nothing can be mounted: %v; in a user namespace: %v", denied, err)
	case err != nil:
		t.Errorf("in a user namespace: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("in a user namespace the test did not run:\n%s", out)
	}
	return false
}

// mount mounts a small file system in memory at dir.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("restore-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

func TestO51FullDisk(t *testing.T) {
	if !mayMount(t) {
		return
	}
	disk := filepath.Join(t.TempDir(), "disk")
	mount(t, disk, "size=1m")
	f := newFixture(t)
	name := "checkpoint-1"
	at := f.step(1, dir(name), file(name+"/a", noise(1, 12*testChunk)), file(name+"/b", noise(2, 12*testChunk)))
	o := f.options(at)
	o.To = filepath.Join(disk, "ckpts")
	write(t, o.To, []node{dir("checkpoint-0"), file("checkpoint-0/w", []byte("w"))})
	_, err := Run(t.Context(), o)
	var s *SpaceError
	if !errors.As(err, &s) || s.Need < 24*testChunk || s.Free <= 0 || s.Free >= 1<<20 || f.fetched() > 0 {
		t.Errorf("error %v, %d bytes fetched; want a refusal with numbers", err, f.fetched())
	}
	wantNoLeftovers(t, o.To, "checkpoint-0")
	// Another program fills the disk after the check.
	o.test.free = func(string) (space, error) { return space{bytes: 1 << 40, files: -1}, nil }
	_, err = Run(t.Context(), o)
	if !errors.As(err, &s) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want that the disk is full", err)
	}
	if got := listing(t, o.To); !slices.Equal(got, []string{"checkpoint-0"}) {
		t.Errorf("root holds %q", got)
	}
	// Once there is room it goes on: what it has already needs none.
	o.test.free = nil
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT, "size=1700k"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Statfs(disk, &unix.Statfs_t{}); err != nil {
		t.Fatal(err)
	}
	f.faulty.ResetLog()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.fetched(); n >= 24*testChunk/2 || res.Fetched != n {
		t.Errorf("fetched %d of %d bytes, the rest was there", n, res.Bytes)
	}
	wantNoLeftovers(t, o.To, "checkpoint-0", name, "latest")
}

// TestRootIsAMountPoint: the state directory beside it is on another file
// system, truly.
func TestRootIsAMountPoint(t *testing.T) {
	if !mayMount(t) {
		return
	}
	root := filepath.Join(t.TempDir(), "ckpts")
	mount(t, root, "size=8m")
	f := newFixture(t)
	at := f.step(100)
	o := f.options(at)
	o.To = root
	var staged []string
	o.test.at = func(op string) {
		if op == "chunk" {
			staged = append(staged, listing(t, root)...)
		}
	}
	o.Concurrency = 1
	write(t, root, []node{dir("checkpoint-100"), file("checkpoint-100/mine", []byte("m"))})
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(staged, StagingName) {
		t.Errorf("was not staged under the root: %q", staged)
	}
	wantTree(t, root, "checkpoint-100", sample("checkpoint-100"))
	if got := listing(t, root); !slices.Equal(got, []string{QuarantineName, "checkpoint-100", "latest"}) {
		t.Errorf("root holds %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(root, QuarantineName, "checkpoint-100.1", "mine")); err != nil || string(b) != "m" {
		t.Errorf("the old entry: %q, %v", b, err)
	}
	moved, err := Quarantine(root, "", "checkpoint-100")
	if err != nil || len(moved) != 1 || moved[0].To != filepath.Join(root, QuarantineName, "checkpoint-100.2") {
		t.Errorf("moved %v, %v", moved, err)
	}
	o.ID = f.step(7, dir("checkpoint-7"), file("checkpoint-7/w", noise(7, testChunk)))
	f.faulty.Add(dataRule("w", blobtest.Flip(1)))
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no error")
	}
	if got := listing(t, root); !slices.Equal(got, []string{QuarantineName, "latest"}) {
		t.Errorf("after a failure the root holds %q", got)
	}
}

// TestBindMount: one device, and yet a rename cannot lead across.
func TestBindMount(t *testing.T) {
	if !mayMount(t) {
		return
	}
	base := t.TempDir()
	root, device := filepath.Join(base, "ckpts"), filepath.Join(base, "device")
	if err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(device, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(device, root, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	f := newFixture(t)
	o := f.options(f.step(100))
	o.To = root
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, root, "checkpoint-100", sample("checkpoint-100"))
	if got := listing(t, root); !slices.Equal(got, []string{"checkpoint-100", "latest"}) {
		t.Errorf("root holds %q", got)
	}
}

func TestMountInsideTheRoot(t *testing.T) {
	if !mayMount(t) {
		return
	}
	root := filepath.Join(t.TempDir(), "ckpts")
	mount(t, filepath.Join(root, "inner"), "size=1m")
	f := newFixture(t)
	o := f.options(f.commit(f.manifest(id(1), 0, "inner/s", []node{dir("inner/s"), file("inner/s/f", []byte("x"))})))
	o.To = root
	f.faulty.ResetLog()
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--root") || f.fetched() > 0 {
		t.Errorf("error %v", err)
	}
}

func TestReadOnlyTarget(t *testing.T) {
	if !mayMount(t) {
		return
	}
	root := filepath.Join(t.TempDir(), "ckpts")
	mount(t, root, "size=8m")
	f := newFixture(t)
	at := f.step(100)
	o := f.options(at)
	o.To = root
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(root, "checkpoint-100/run.sh"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	// What is there can be used; what is not cannot be brought.
	res, err := Run(t.Context(), o)
	if err != nil || !res.Unchanged || len(res.Warnings) != 1 {
		t.Errorf("result %+v, %v", res, err)
	}
	o.ID = f.step(200)
	f.faulty.ResetLog()
	if _, err := Run(t.Context(), o); !errors.Is(err, unix.EROFS) || f.fetched() > 0 {
		t.Errorf("error %v", err)
	}
}
