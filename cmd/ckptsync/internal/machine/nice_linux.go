package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	lowest = 19 // priority of the processor

	ioWho        = 1 // IOPRIO_WHO_PROCESS, which means a thread
	ioClassShift = 13
	ioBestEffort = 2
	ioLast       = 7 // within that class
)

// yield lowers every thread of the process. Priorities are a thread's own; a new
// one has those of the thread that made it, so it looks again until it finds
// none that it does not know.
func yield() error {
	done := map[int]bool{}
	failed := map[string]error{}
	for again := true; again; {
		again = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list the threads: %w", err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			done[id], again = true, true
			lower(id, failed)
		}
	}
	var errs []error
	for what, err := range failed {
		errs = append(errs, fmt.Errorf("%s: %w", what, err))
	}
	return errors.Join(errs...)
}

// lower lowers one thread and notes what failed. A thread that has ended is no
// failure.
func lower(id int, failed map[string]error) {
	note := func(what string, err error) {
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrNotExist) {
			failed[what] = err
		}
	}
	note("set the priority", unix.Setpriority(unix.PRIO_PROCESS, id, lowest))
	note("set the scheduling policy", unix.SchedSetAttr(id, &unix.SchedAttr{Size: uint32(unsafe.Sizeof(unix.SchedAttr{})), Policy: unix.SCHED_IDLE, Nice: lowest}, 0))
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioWho, uintptr(id), ioBestEffort<<ioClassShift|ioLast); errno != 0 {
		note("set the disk's priority", errno)
	}
}
