package status

import (
	"maps"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	syncer "github.com/ckptsync/ckptsync/sync"
)

const (
	// sayAfter is how long calls must fail until it is told of: what passes
	// sooner the log has as single calls.
	sayAfter = 30 * time.Second
	// overAfter is how long no call must have failed until it counts as over,
	// though none has succeeded: there was nothing to try. It is longer than any
	// step is left alone.
	overAfter = 15 * time.Minute
)

// The kinds of calls. They are told apart because permissions are, and because
// a store may answer the small ones while the large ones hang.
const (
	kindRead  = "read"
	kindWrite = "write"
)

// store is how the store has behaved.
type store struct {
	retries map[string]int64
	trouble [2]trouble // of reads, writes
	last    *StoreError
}

// trouble is a row of calls of which none has succeeded.
type trouble struct {
	since    time.Time // zero: there is none
	failed   time.Time // the last
	failures int64
	class    string
	err      error
	told     bool
}

// Failed notes a call that failed and will be tried again. It is a
// retryblob.Options.Notify.
func (d *Daemon) Failed(e retryblob.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.store.retries[e.Class]++
	d.store.last = &StoreError{At: d.o.Now().UTC(), Op: e.Op, Class: e.Class, Error: e.Err.Error()}
}

// Called notes a request that is over. It is a listener of package meterblob.
func (d *Daemon) Called(e meterblob.Event) {
	now := d.o.Now()
	d.mu.Lock()
	told := d.store.called(e, now)
	d.mu.Unlock()
	if told != nil {
		d.o.Tell(*told)
	}
}

// failing are the classes of errors that say that the store does not do its
// work. The others are answers, or nobody's fault.
func failing(class string) bool {
	return class == "denied" || class == "throttled" || class == "temporary" || class == "deadline"
}

func (s *store) called(e meterblob.Event, now time.Time) *syncer.StoreTrouble {
	kind, t := kindRead, &s.trouble[0]
	switch e.Op {
	case "put", "upload", "put part", "complete", "abort", "delete", "delete batch":
		kind, t = kindWrite, &s.trouble[1]
	}
	switch {
	case failing(e.Class):
		if t.since.IsZero() || now.Sub(t.failed) > overAfter {
			*t = trouble{since: now.Add(-e.Dur), told: t.told}
		}
		t.failed, t.class, t.err = now, e.Class, e.Err
		t.failures++
		s.last = &StoreError{At: now.UTC(), Op: e.Op, Class: e.Class, Error: errorText(e.Err)}
		if !t.told && now.Sub(t.since) >= sayAfter {
			t.told = true
			return &syncer.StoreTrouble{Kind: kind, Since: t.since, Err: e.Err}
		}
	case e.Class == "ok" || e.Class == "not_exist" || e.Class == "precondition":
		was := *t
		*t = trouble{}
		if was.told {
			return &syncer.StoreTrouble{Kind: kind, Since: was.since, Over: true, Err: was.err}
		}
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *store) snapshot(now time.Time) Store {
	out := Store{Calls: []Calls{}, Retries: []Retries{}, Trouble: []Trouble{}, LastError: s.last}
	for _, class := range slices.Sorted(maps.Keys(s.retries)) {
		out.Retries = append(out.Retries, Retries{Class: class, Count: s.retries[class]})
	}
	for i, kind := range []string{kindRead, kindWrite} {
		t := &s.trouble[i]
		if t.since.IsZero() || now.Sub(t.failed) > overAfter {
			continue
		}
		out.Trouble = append(out.Trouble, Trouble{
			Kind: kind, Since: t.since.UTC(), Seconds: now.Sub(t.since).Seconds(),
			Failures: t.failures, Class: t.class, Error: errorText(t.err),
		})
	}
	return out
}
