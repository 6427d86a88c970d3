package restore

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// resident is the share of a file that the page cache has, and whether the
// system could tell.
func resident(t *testing.T, path string) (float64, bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	pages := make([]byte, (len(m)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, addressOf(m), uintptr(len(m)), addressOf(pages)); errno != 0 {
		return 0, false
	}
	n := 0
	for _, p := range pages {
		n += int(p & 1)
	}
	return float64(n) / float64(len(pages)), true
}

// TestDirectLeavesThePageCacheAlone, and the default fills it for who reads
// the step next.
func TestDirectLeavesThePageCacheAlone(t *testing.T) {
	for _, direct := range []bool{true, false} {
		_, o := endlessStep(t, 8<<20+5, 4<<20)
		o.To, o.Direct = filepath.Join(t.TempDir(), "ckpts"), direct
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Warnings) > 0 {
			notHere(t, "%s", res.Warnings[0])
			return
		}
		share, ok := resident(t, filepath.Join(o.To, "s"))
		switch {
		case !ok:
			notHere(t, "the system does not say what is in the page cache")
		case direct && share > 0.1, !direct && share < 0.9:
			t.Errorf("direct %v: %.0f %% of the file is in the page cache", direct, 100*share)
		}
	}
}

// TestDirectFallsBack: what the file system refuses goes the usual way, with
// one word.
func TestDirectFallsBack(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		notHere(t, "%v", err)
		return
	}
	defer f.Close()
	words := 0
	d := &direct{file: f, warn: func(error) { words++ }}
	p := newBuffer().p
	for range 3 { // not aligned, which no disk takes
		if n, err := d.writeAt(p[1:1+2*alignment], 0); n != 0 || err != nil {
			if words == 0 {
				notHere(t, "the file system takes what is not aligned")
				return
			}
			t.Errorf("wrote %d, %v", n, err)
		}
	}
	if words != 1 || !d.off.Load() {
		t.Errorf("%d words", words)
	}
	j := &job{out: f, direct: d}
	if n, err := j.WriteAt(p[:0], 0); n != 0 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
}

func TestKernelRelease(t *testing.T) {
	for release, want := range map[string]bool{
		"5.8.0": true, "5.10.0-28-amd64": true, "6.18.44-fc": true, "5.7.19": false, "4.18.0-553.el8": false, "5": false, "": false, "5.8-rc1": true, "x.y": false,
	} {
		if got := atLeast(release, 5, 8); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}
