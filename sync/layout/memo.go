package layout

import (
	"io/fs"
	"sync"
	"time"
)

// memo remembers, from one look to the next, to which layout a directory
// surely belonged, so that a root with ten thousand quiet steps is not probed
// each time. What it says holds until the directory's own time changes: an
// entry was added to it or taken away.
type memo struct {
	mu sync.Mutex
	of map[string]*known
}

type known struct {
	layout Layout
	mtime  time.Time
	looked bool // in the present look; others are forgotten after it
}

// recall returns the layout of a directory that has not changed, and what the
// directory is like now; nil: ask.
func (m *memo) recall(name string, d fs.DirEntry) (Layout, fs.FileInfo) {
	m.mu.Lock()
	k, ok := m.of[name]
	m.mu.Unlock()
	if !ok {
		return nil, nil
	}
	fi, err := d.Info()
	if err != nil || !fi.ModTime().Equal(k.mtime) {
		return nil, nil
	}
	m.mu.Lock()
	k.looked = true
	m.mu.Unlock()
	return k.layout, fi
}

// remember notes that a directory surely belongs to a layout. d was listed
// before the layout was asked: a change in between shows at the next look. A
// directory so young that its time could hide a change is not remembered.
func (m *memo) remember(name string, d fs.DirEntry, l Layout) {
	fi, err := d.Info()
	if err != nil || time.Since(fi.ModTime()) < memoAge {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[string]*known{}
	}
	m.of[name] = &known{layout: l, mtime: fi.ModTime(), looked: true}
}

// size is how many directories are remembered.
func (m *memo) size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.of)
}

// memoAge is more than the coarsest clock of a file system that is in use.
const memoAge = 5 * time.Second

// sweep forgets what was not looked at since the last sweep.
func (m *memo) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, k := range m.of {
		if !k.looked {
			delete(m.of, name)
			continue
		}
		k.looked = false
	}
}
