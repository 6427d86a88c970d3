package status

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob/meterblob"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// DefaultUnreadyAfter is Options.UnreadyAfter, if that is 0.
const DefaultUnreadyAfter = 5 * time.Minute

// Options are what a Daemon is told of itself.
type Options struct {
	Command  string // daemon or run
	Version  string
	StoreURL string // without secrets

	UnreadyAfter time.Duration      // how long the store may fail until Ready says no; default DefaultUnreadyAfter
	ScanInterval time.Duration      // between looks at a root; default 10 s
	Tell         func(syncer.Event) // of trouble with the store; nil: nobody
	Now          func() time.Time   // default time.Now
}

// Daemon is the state of a process that serves runs. Its methods may be called
// concurrently.
type Daemon struct {
	o       Options
	host    string
	started time.Time

	mu       sync.Mutex
	draining bool
	meter    func() meterblob.Stats
	store    store
	runs     []*run
}

// New returns the state of a process that serves no run yet.
func New(o Options) *Daemon {
	o.UnreadyAfter = cmp.Or(o.UnreadyAfter, DefaultUnreadyAfter)
	o.ScanInterval = cmp.Or(o.ScanInterval, 10*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Tell == nil {
		o.Tell = func(syncer.Event) {}
	}
	host, _ := os.Hostname() // for people only; empty is fine
	return &Daemon{o: o, host: host, started: o.Now(), store: store{retries: map[string]int64{}}}
}

// About is what does not change of a run.
type About struct {
	Run, Root, StateDir string
	Node, Nodes         int // 0 and 1, or 0, if there is one node
}

// Run returns the listener for the events of a run. A run that is served anew
// keeps its state.
func (d *Daemon) Run(a About) syncer.Reporter {
	d.mu.Lock()
	defer d.mu.Unlock()
	a.Nodes = max(a.Nodes, 1)
	for _, r := range d.runs {
		if r.about.Run == a.Run && r.about.StateDir == a.StateDir {
			r.about, r.ended, r.draining = a, "", ""
			return r
		}
	}
	r := newRun(d, a)
	d.runs = append(d.runs, r)
	return r
}

// Ended notes that a run is served no more. With an error it stays, as one that
// should be served; without one it is gone.
func (d *Daemon) Ended(name, stateDir string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, r := range d.runs {
		if r.about.Run != name || r.about.StateDir != stateDir {
			continue
		}
		if r.ended = errorText(err); err == nil && !d.draining {
			d.runs = slices.Delete(d.runs, i, i+1)
		}
		return
	}
}

// Meter says where the numbers of the store's calls come from.
func (d *Daemon) Meter(stats func() meterblob.Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter = stats
}

// Drain notes that the process was told to end.
func (d *Daemon) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
}

// Snapshot returns all that is known now.
func (d *Daemon) Snapshot() Snapshot {
	var stats meterblob.Stats
	d.mu.Lock()
	meter := d.meter
	d.mu.Unlock()
	if meter != nil {
		stats = meter()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.o.Now()
	s := Snapshot{
		Format: Format, At: now.UTC(), Version: d.o.Version, Command: d.o.Command, PID: os.Getpid(), Host: d.host, Started: d.started.UTC(),
		Draining: d.draining, Store: d.store.snapshot(now), Runs: []Run{},
	}
	s.Store.URL = d.o.StoreURL
	s.Store.Sent, s.Store.Read, s.Store.InFlight = stats.Up, stats.Down, stats.InFlight
	for _, k := range slices.SortedFunc(maps.Keys(stats.Calls), func(a, b meterblob.Calls) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Class, b.Class))
	}) {
		s.Store.Calls = append(s.Store.Calls, Calls{Op: k.Op, Class: k.Class, Count: stats.Calls[k]})
	}
	for _, r := range d.runs {
		s.Runs = append(s.Runs, r.snapshot(now))
	}
	slices.SortStableFunc(s.Runs, func(a, b Run) int { return cmp.Compare(a.Run, b.Run) })
	s.Ready, s.Healthy = d.ready(&s), d.healthy(&s)
	return s
}
