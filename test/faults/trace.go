//go:build linux && amd64

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kind is what a call of the system does to files.
type kind int

const (
	writes     kind = iota + 1 // changes the content of the file fd
	syncs                      // makes the content of fd, a file or directory, durable
	syncsAll                   // makes everything durable
	attributes                 // changes mode, owner or times
	opens                      // makes or empties a file, if its flags say so
	makesDir
	removes
	renames
	links
	symlinks
)

// spec says where a call has its arguments; -1 means not at all, or, of a
// directory, the working directory.
type spec struct {
	name        string
	kind        kind
	fd          int
	dir, path   int
	dir2, path2 int
}

func onFile(name string, k kind, fd int) spec { return spec{name, k, fd, -1, -1, -1, -1} }
func onName(name string, k kind, dir, path int) spec {
	return spec{name, k, -1, dir, path, -1, -1}
}
func onNames(name string, k kind, dir, path, dir2, path2 int) spec {
	return spec{name, k, -1, dir, path, dir2, path2}
}

// changing are the calls by which a program changes files.
var changing = map[uint64]spec{
	unix.SYS_WRITE: onFile("write", writes, 0), unix.SYS_PWRITE64: onFile("pwrite64", writes, 0),
	unix.SYS_WRITEV: onFile("writev", writes, 0), unix.SYS_PWRITEV: onFile("pwritev", writes, 0), unix.SYS_PWRITEV2: onFile("pwritev2", writes, 0),
	unix.SYS_FTRUNCATE: onFile("ftruncate", writes, 0), unix.SYS_FALLOCATE: onFile("fallocate", writes, 0),
	unix.SYS_SENDFILE: onFile("sendfile", writes, 0), unix.SYS_COPY_FILE_RANGE: onFile("copy_file_range", writes, 2), unix.SYS_SPLICE: onFile("splice", writes, 2),
	unix.SYS_FSYNC: onFile("fsync", syncs, 0), unix.SYS_FDATASYNC: onFile("fdatasync", syncs, 0), unix.SYS_SYNCFS: onFile("syncfs", syncsAll, 0),
	unix.SYS_FCHMOD: onFile("fchmod", attributes, 0), unix.SYS_FCHOWN: onFile("fchown", attributes, 0), unix.SYS_FSETXATTR: onFile("fsetxattr", attributes, 0),
	unix.SYS_OPENAT: onName("openat", opens, 0, 1), unix.SYS_OPEN: onName("open", opens, -1, 0),
	unix.SYS_TRUNCATE: onName("truncate", attributes, -1, 0), unix.SYS_CHMOD: onName("chmod", attributes, -1, 0), unix.SYS_FCHMODAT: onName("fchmodat", attributes, 0, 1),
	unix.SYS_FCHOWNAT: onName("fchownat", attributes, 0, 1), unix.SYS_LCHOWN: onName("lchown", attributes, -1, 0), unix.SYS_UTIMENSAT: onName("utimensat", attributes, 0, 1),
	unix.SYS_MKDIRAT: onName("mkdirat", makesDir, 0, 1), unix.SYS_MKDIR: onName("mkdir", makesDir, -1, 0),
	unix.SYS_UNLINKAT: onName("unlinkat", removes, 0, 1), unix.SYS_UNLINK: onName("unlink", removes, -1, 0), unix.SYS_RMDIR: onName("rmdir", removes, -1, 0),
	unix.SYS_RENAMEAT: onNames("renameat", renames, 0, 1, 2, 3), unix.SYS_RENAMEAT2: onNames("renameat2", renames, 0, 1, 2, 3), unix.SYS_RENAME: onNames("rename", renames, -1, 0, -1, 1),
	unix.SYS_LINKAT: onName("linkat", links, 2, 3), unix.SYS_LINK: onName("link", links, -1, 1),
	unix.SYS_SYMLINKAT: onName("symlinkat", symlinks, 1, 2), unix.SYS_SYMLINK: onName("symlink", symlinks, -1, 1),
}

// call is one call of the system that changes something below the directory
// that is watched.
type call struct {
	spec
	n           int // its number, from 1, of those that a trace has seen
	tid         int // of the thread, which stands for its process in /proc
	args        [6]uint64
	path, other string // absolute; other is where a rename leads to
	ret         int64  // on its way back
	note        any    // what enter left for leave
}

func (c *call) String() string {
	if c.other != "" {
		return fmt.Sprintf("%s %s -> %s", c.name, c.path, c.other)
	}
	return c.name + " " + c.path
}

// verdict is what becomes of a call.
type verdict struct {
	kill bool
	fail syscall.Errno // the call is not made, and returns this
}

// trace is one run of a program under watch.
type trace struct {
	below string // only calls on files below this directory count
	enter func(*call) verdict
	leave func(*call)

	pid    int
	seen   int
	inside map[int]*call         // by thread
	failed map[int]syscall.Errno // by thread, on its way back
	killed bool
}

// errKilled is returned by run for a program that was killed at a call.
var errKilled = errors.New("killed at a call")

// run starts the command and returns when it has ended: nil for status 0,
// errKilled, or an *exitError. started is called with its process id.
func (t *trace) run(cmd *exec.Cmd, started func(pid int)) error {
	runtime.LockOSThread() // the calls of ptrace have to come from one thread
	defer runtime.UnlockOSThread()
	t.inside, t.failed = map[int]*call{}, map[int]syscall.Errno{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.pid = cmd.Process.Pid
	var ws syscall.WaitStatus
	if _, err := wait4(t.pid, &ws); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}
	if started != nil {
		started(t.pid)
	}
	if err := syscall.PtraceSyscall(t.pid, 0); err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}
	ws, err := t.loop()
	_ = cmd.Wait() // the status was taken above; this waits for the pipes
	switch {
	case err != nil:
		return err
	case ws.Signaled() && ws.Signal() == syscall.SIGKILL:
		return errKilled
	case ws.Signaled() || ws.ExitStatus() != 0:
		return &exitError{ws}
	}
	return nil
}

// exitError is the end of a program that did not end well.
type exitError struct{ ws syscall.WaitStatus }

func (e *exitError) Error() string {
	if e.ws.Signaled() {
		return "ended by " + e.ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", e.ws.ExitStatus())
}

// wait4 waits for what this thread watches. Other programs are the business of
// others, also those that were started when another goroutine had this thread: so
// a negative pid names the process group of the one that is watched.
func wait4(pid int, ws *syscall.WaitStatus) (int, error) {
	for {
		tid, err := syscall.Wait4(pid, ws, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, syscall.EINTR) {
			return tid, err
		}
	}
}

// loop lets the threads run from call to call until the program has ended.
func (t *trace) loop() (syscall.WaitStatus, error) {
	for {
		var ws syscall.WaitStatus
		tid, err := wait4(-t.pid, &ws)
		if err != nil {
			return ws, fmt.Errorf("wait for pid %d: %w", t.pid, err)
		}
		pass := 0
		switch {
		case ws.Exited() || ws.Signaled():
			if tid == t.pid {
				return ws, nil
			}
			continue
		case !ws.Stopped():
			continue
		case ws.StopSignal() == syscall.SIGTRAP|0x80:
			t.stop(tid)
		case ws.StopSignal() == syscall.SIGTRAP, ws.StopSignal() == syscall.SIGSTOP: // a new thread, or of one
		default:
			pass = int(ws.StopSignal())
		}
		if err := syscall.PtraceSyscall(tid, pass); err != nil && !errors.Is(err, syscall.ESRCH) {
			return ws, fmt.Errorf("ptrace: go on: %w", err)
		}
	}
}

// syscallInfo is struct ptrace_syscall_info.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	data [7]uint64 // at the entry its number and arguments, at the exit the result
}

// stop handles a thread that stands at the begin or the end of a call.
func (t *trace) stop(tid int) {
	var info syscallInfo
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || t.killed {
		return
	}
	if info.op == unix.PTRACE_SYSCALL_INFO_EXIT {
		t.exit(tid, int64(info.data[0]))
		return
	}
	sp, ok := changing[info.data[0]]
	if !ok {
		return
	}
	c := &call{spec: sp, tid: tid}
	copy(c.args[:], info.data[1:])
	if !c.resolve() || !t.counts(c) {
		return
	}
	t.seen++
	c.n = t.seen
	v := t.enter(c)
	switch {
	case v.kill:
		t.killed = true
		t.skip(tid)
		_ = syscall.Kill(t.pid, syscall.SIGKILL)
	case v.fail != 0:
		t.failed[tid] = v.fail
		t.skip(tid)
	default:
		t.inside[tid] = c
	}
}

// counts reports whether a call changes something below the directory.
func (t *trace) counts(c *call) bool {
	if c.kind == opens {
		flags := c.args[c.spec.path+1]
		if flags&(unix.O_CREAT|unix.O_TRUNC) == 0 && flags&unix.O_TMPFILE != unix.O_TMPFILE {
			return false
		}
	}
	return strings.HasPrefix(c.path, t.below+"/")
}

// skip has the call that a thread is about to make not happen.
func (t *trace) skip(tid int) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		regs.Orig_rax = ^uint64(0)
		_ = syscall.PtraceSetRegs(tid, &regs) // fails where the thread is gone
	}
}

func (t *trace) exit(tid int, ret int64) {
	if errno, ok := t.failed[tid]; ok {
		delete(t.failed, tid)
		var regs syscall.PtraceRegs
		if syscall.PtraceGetRegs(tid, &regs) == nil {
			regs.Rax = uint64(-int64(errno))
			_ = syscall.PtraceSetRegs(tid, &regs)
		}
		return
	}
	if c := t.inside[tid]; c != nil {
		delete(t.inside, tid)
		c.ret = ret
		if t.leave != nil {
			t.leave(c)
		}
	}
}

// resolve finds the paths that a call is about.
func (c *call) resolve() bool {
	if c.fd >= 0 {
		p, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[c.fd])))
		c.path = p
		return err == nil
	}
	ok := true
	at := func(dir, path int) string {
		name, err := readString(c.tid, uintptr(c.args[path]))
		if err != nil {
			ok = false
		}
		if filepath.IsAbs(name) {
			return filepath.Clean(name)
		}
		base := fmt.Sprintf("/proc/%d/cwd", c.tid)
		if dir >= 0 && int32(c.args[dir]) != unix.AT_FDCWD {
			base = fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[dir]))
		}
		at, err := os.Readlink(base)
		if err != nil {
			ok = false
		}
		return filepath.Join(at, name)
	}
	c.path = at(c.dir, c.spec.path)
	if c.path2 >= 0 {
		c.other = at(c.dir2, c.path2)
	}
	return ok
}

// readString reads a C string of another process.
func readString(pid int, addr uintptr) (string, error) {
	if addr == 0 {
		return "", nil
	}
	var out []byte
	for len(out) < unix.PathMax {
		buf := make([]byte, 256)
		n := min(len(buf), 4096-int(addr%4096)) // not into a page that may not be there
		got, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &buf[0], Len: uint64(n)}}, []unix.RemoteIovec{{Base: addr, Len: n}}, 0)
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(buf[:got], 0); i >= 0 {
			return string(append(out, buf[:i]...)), nil
		}
		out, addr = append(out, buf[:got]...), addr+uintptr(got)
	}
	return "", io.ErrUnexpectedEOF
}
