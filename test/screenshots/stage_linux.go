package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names of the stage: those that the README uses.
const (
	hostName = "node7"
	scratch  = "/scratch"
)

// stage runs this program again, as root of a user namespace, with mounts and a
// host name of its own.
func stage(ctx context.Context, dir string, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stageEnv+"="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd.Run()
}

// setStage makes this process see the machine's file system with a directory
// below dir as /scratch.
func setStage(dir string) error {
	root, disk := filepath.Join(dir, "root"), filepath.Join(dir, "scratch")
	if err := errors.Join(unix.Sethostname([]byte(hostName)), os.Mkdir(root, 0o755), os.Mkdir(disk, 0o755)); err != nil {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := "/"+e.Name(), filepath.Join(root, e.Name())
		switch {
		case from == scratch:
		case e.Type() == os.ModeSymlink:
			target, err := os.Readlink(from)
			if err := errors.Join(err, os.Symlink(target, to)); err != nil {
				return err
			}
		case e.IsDir():
			if err := errors.Join(os.Mkdir(to, 0o755), unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
				return err
			}
		}
	}
	to := filepath.Join(root, scratch)
	return errors.Join(os.Mkdir(to, 0o755), unix.Mount(disk, to, "", unix.MS_BIND, ""), unix.Chroot(root), os.Chdir("/"))
}

// plainEnv is the environment without what may change what is printed.
func plainEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "NO_COLOR" || strings.HasPrefix(name, "CKPTSYNC_") || strings.HasPrefix(name, "AWS_") || strings.HasPrefix(name, "SLURM_") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "TERM=xterm-256color")
}
