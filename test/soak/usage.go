package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// usage is what a process takes over its life.
type usage struct {
	every time.Duration

	mu    sync.Mutex
	rss   []int // MiB
	files []int // open
}

// watch looks at the process until ctx is done, or the process is gone.
func (u *usage) watch(ctx context.Context, pid int) {
	for pause(ctx, u.every) {
		rss, err := resident(pid)
		if err != nil {
			return
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return
		}
		u.mu.Lock()
		u.rss, u.files = append(u.rss, rss), append(u.files, len(fds))
		u.mu.Unlock()
	}
}

// resident is the resident memory of a process, MiB.
func resident(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(data, []byte("\nVmRSS:"))
	fields := bytes.Fields(after)
	if len(fields) == 0 {
		return 0, fmt.Errorf("pid %d has ended", pid)
	}
	kib, err := strconv.Atoi(string(fields[0]))
	return kib >> 10, err
}

// median of the samples between two shares of the whole time.
func median(samples []int, from, to float64) int {
	s := slices.Clone(samples[int(from*float64(len(samples))):int(to*float64(len(samples)))])
	slices.Sort(s)
	return s[len(s)/2]
}

// grown fails if the last quarter of the life took more than the second: the
// first is for warming up.
func (u *usage) grown() (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.rss) < 8 {
		return "", fmt.Errorf("%d looks at the daemon are too few to tell whether it grows", len(u.rss))
	}
	r1, r2 := median(u.rss, 0.25, 0.5), median(u.rss, 0.75, 1)
	f1, f2 := median(u.files, 0.25, 0.5), median(u.files, 0.75, 1)
	told := fmt.Sprintf("daemon that lived through it: memory %d MiB in the second quarter, %d in the last, %d at most; open files %d, %d, %d",
		r1, r2, slices.Max(u.rss), f1, f2, slices.Max(u.files))
	if r2 > r1+max(16, r1/4) {
		return told, fmt.Errorf("its memory grew from %d to %d MiB", r1, r2)
	}
	if f2 > f1+8 {
		return told, fmt.Errorf("its open files grew from %d to %d", f1, f2)
	}
	return told, nil
}
