package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// clock is a clock that a test moves.
type clock struct{ now time.Time }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func newDaemon(o Options) (*Daemon, syncer.Reporter, *clock) {
	c := &clock{time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)}
	o.Now = func() time.Time { return c.now }
	d := New(o)
	return d, d.Run(About{Run: "exp1", Root: "/out", StateDir: "/out.ckptsync"}), c
}

func stage(n int64, s syncer.Stage, reasons ...string) syncer.StageChanged {
	return syncer.StageChanged{Step: fmt.Sprint("checkpoint-", n), Number: n, Stage: s, Reasons: reasons, Files: 2, Bytes: 100}
}

func committed(n int64) syncer.StageChanged {
	e := stage(n, syncer.Committed)
	e.ID, e.Fresh = commit.ID{Step: n, Attempt: 1}, true
	return e
}

func only(t *testing.T, d *Daemon) Run {
	t.Helper()
	s := d.Snapshot()
	if len(s.Runs) != 1 {
		t.Fatalf("%d runs", len(s.Runs))
	}
	return s.Runs[0]
}

func find(t *testing.T, r Run, n int64) Step {
	t.Helper()
	i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Step == n })
	if i < 0 {
		t.Fatalf("no step %d in %+v", n, r.Steps)
	}
	return r.Steps[i]
}

func TestAStepOnItsWay(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(syncer.Under{Attempt: 1, Declared: true})
	r.Report(stage(10, syncer.Incomplete, "missing optimizer.pt"))
	if s := find(t, only(t, d), 10); s.Stage != "incomplete" || s.Reasons[0] != "missing optimizer.pt" || !s.Whole.IsZero() {
		t.Errorf("%+v", s)
	}
	c.pass(5 * time.Second)
	r.Report(stage(10, syncer.Settling, "has to be quiet"))
	if l := only(t, d).Lag; l.Steps != 0 || l.Uncommitted != 0 {
		t.Errorf("what is not proven whole counts: %+v", l)
	}
	c.pass(5 * time.Second)
	r.Report(stage(10, syncer.Held))
	c.pass(10 * time.Second)
	r.Report(syncer.Moved{Step: "checkpoint-10", Reused: 20, Total: 100})
	c.pass(10 * time.Second)
	r.Report(syncer.Moved{Step: "checkpoint-10", Sent: 30, Total: 100})
	got := only(t, d)
	s := find(t, got, 10)
	if s.Stage != StageUploading || s.Sent != 30 || s.Reused != 20 || s.Bytes != 100 || s.Rate != 3 {
		t.Errorf("%+v", s)
	}
	want := Lag{Steps: 1, Training: 10, Seconds: 20, LastCommitAge: -1, Uncommitted: 1, OldestSeconds: 20, Oldest: &Ref{Step: 10, Name: "checkpoint-10"}}
	if diff := cmp.Diff(want, got.Lag); diff != "" {
		t.Error(diff)
	}
	r.Report(stage(10, syncer.Uploaded))
	r.Report(stage(10, syncer.Sealed))
	c.pass(time.Second)
	r.Report(committed(10))
	c.pass(3 * time.Second)
	got = only(t, d)
	if got.Lag.Steps != 0 || got.Lag.LastCommitAge != 3 || got.Lag.Oldest != nil || got.Committed.Commit != "10-a1-r0" && got.Committed.Step != 10 {
		t.Errorf("%+v %+v", got.Lag, got.Committed)
	}
	if got.Counts.Commits != 1 || got.Counts.Sent != 30 || got.Counts.Reused != 20 || got.Latency.Count != 1 || got.Latency.Sum != 21 {
		t.Errorf("%+v %+v", got.Counts, got.Latency)
	}
	if i := slices.Index(got.Latency.Bounds, 30); got.Latency.Counts[i] != 1 || got.Latency.Counts[i-1] != 0 {
		t.Errorf("%+v", got.Latency)
	}
}

// TestLagCountsWhatWouldBeLost: an older step that fails is uncommitted, but no
// lag once a newer one is committed.
func TestLagCountsWhatWouldBeLost(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(stage(10, syncer.Held))
	c.pass(time.Minute)
	r.Report(stage(10, syncer.Failed, "cannot read it"))
	r.Report(stage(20, syncer.Held))
	r.Report(committed(20))
	c.pass(time.Minute)
	r.Report(stage(30, syncer.Held))
	r.Report(stage(40, syncer.Held))
	c.pass(time.Minute)
	l := only(t, d).Lag
	if l.Steps != 2 || l.Training != 20 || l.Seconds != 60 || l.Uncommitted != 3 || l.OldestSeconds != 180 || l.Oldest.Step != 10 {
		t.Errorf("%+v", l)
	}
	if s := find(t, only(t, d), 10); !s.Superseded || s.Failures != 1 {
		t.Errorf("%+v", s)
	}
}

func TestCommitsOfOtherAttemptsAreNotOurs(t *testing.T) {
	d, r, _ := newDaemon(Options{})
	base := commit.ID{Step: 300, Attempt: 1}
	r.Report(syncer.Under{Attempt: 2, Base: &base, Declared: true})
	old := stage(500, syncer.Committed)
	old.ID = commit.ID{Step: 500, Attempt: 1}
	r.Report(old)
	at := time.Date(2026, 11, 30, 2, 0, 0, 0, time.UTC)
	r.Report(syncer.Listed{Mine: &base, MineAt: at, Head: &old.ID, Commits: 7, Damaged: 1, Regressed: 2})
	r.Report(stage(400, syncer.Held))
	got := only(t, d)
	if got.Committed.Step != 300 || got.Head.Step != 500 || got.Lag.Steps != 1 || got.Lag.Training != 100 || got.Local.Step != 400 {
		t.Errorf("%+v %+v %+v %+v", got.Committed, got.Head, got.Lag, got.Local)
	}
	if got.Lag.LastCommitAge != 3600 || got.Counts.Damaged != 1 || got.Counts.Regressed != 2 || got.Counts.Listed != 7 {
		t.Errorf("%+v %+v", got.Lag, got.Counts)
	}
}

func TestWhoIsAwaited(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(syncer.Awaited{Attempt: 1, Nodes: 4, Absent: []int{3}, Restores: []int{1}})
	c.pass(time.Minute)
	a := only(t, d).Awaited
	if a.Restore == nil || a.Seconds != 60 || !slices.Equal(a.Nodes, []int{1, 3}) || !strings.Contains(a.Restore.Reason, "node 3 not there") {
		t.Errorf("%+v", a)
	}
	r.Report(syncer.Looked{At: c.now})
	if a := only(t, d).Awaited; a.Restore != nil || len(a.Nodes) != 0 {
		t.Errorf("%+v", a)
	}
	r.Report(stage(10, syncer.Held))
	r.Report(stage(10, syncer.Sealed, "waits for the part of nodes 2, 3"))
	r.Report(syncer.Waits{Step: "checkpoint-10", Number: 10, Nodes: []int{2, 3}, Since: c.now, Reason: "waits for the part of nodes 2, 3"})
	c.pass(90 * time.Second)
	got := only(t, d)
	if s := find(t, got, 10); s.Awaits == nil || s.Awaits.Seconds != 90 {
		t.Errorf("%+v", s)
	}
	if a := got.Awaited; a.Seconds != 90 || !slices.Equal(a.Nodes, []int{2, 3}) {
		t.Errorf("%+v", a)
	}
	c.pass(time.Hour) // to wait for others is not the store's fault
	r.Report(syncer.Looked{At: c.now})
	if v := d.Snapshot().Ready; !v.OK {
		t.Errorf("%+v", v)
	}
	r.Report(committed(10))
	if a := only(t, d).Awaited; a.Seconds != 0 || len(a.Nodes) != 0 {
		t.Errorf("%+v", a)
	}
}

func TestTheStoreFails(t *testing.T) {
	var told []syncer.StoreTrouble
	d, r, c := newDaemon(Options{UnreadyAfter: 2 * time.Minute, Tell: func(e syncer.Event) { told = append(told, e.(syncer.StoreTrouble)) }})
	if v := d.Snapshot().Ready; v.OK {
		t.Error("ready before the first look")
	}
	r.Report(syncer.Looked{At: c.now})
	if v := d.Snapshot().Ready; !v.OK {
		t.Errorf("%+v", v)
	}
	fail := func() {
		d.Called(meterblob.Event{Op: "put", Class: "temporary", Dur: 10 * time.Second, Err: errors.New("stalled")})
	}
	fail()
	d.Failed(retryblob.Event{Op: "put", Class: "temporary", Err: errors.New("stalled")})
	if tr := d.Snapshot().Store.Trouble; len(tr) != 1 || tr[0].Kind != kindWrite || tr[0].Seconds != 10 || len(told) != 0 {
		t.Fatalf("%+v, told %+v", tr, told)
	}
	d.Called(meterblob.Event{Op: "list", Class: "ok"}) // small calls are answered
	c.pass(time.Minute)
	fail()
	if s := d.Snapshot(); !s.Ready.OK || s.Store.Trouble[0].Seconds != 70 || s.Store.Retries[0] != (Retries{"temporary", 1}) || len(told) != 1 || told[0].Over || told[0].Kind != kindWrite {
		t.Fatalf("%+v, told %+v", s.Store, told)
	}
	c.pass(time.Minute)
	fail()
	s := d.Snapshot()
	if s.Ready.OK || !strings.Contains(s.Ready.Reasons[0], "failing to write for 2m10s: stalled") || s.Store.Trouble[0].Failures != 3 {
		t.Fatalf("%+v", s)
	}
	if !s.Healthy.OK {
		t.Error("it is alive")
	}
	d.Called(meterblob.Event{Op: "put", Class: "ok"})
	if s := d.Snapshot(); !s.Ready.OK || len(s.Store.Trouble) != 0 || len(told) != 2 || !told[1].Over || s.Store.LastError == nil {
		t.Fatalf("%+v, told %+v", s, told)
	}
	fail()
	c.pass(overAfter + time.Second) // nothing was tried since
	if s := d.Snapshot(); len(s.Store.Trouble) != 0 {
		t.Fatalf("%+v", s.Store)
	}
}

// TestTheStoreHangs: no call has failed, because none has ended.
func TestTheStoreHangs(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(stage(10, syncer.Held))
	for range 61 {
		c.pass(5 * time.Second)
		r.Report(syncer.Looked{At: c.now})
	}
	v := d.Snapshot().Ready
	if v.OK || !strings.Contains(v.Reasons[0], "nothing new of checkpoint-10 for 5m5s") {
		t.Fatalf("%+v", v)
	}
	r.Report(syncer.Moved{Step: "checkpoint-10", Sent: 1, Total: 100})
	if v := d.Snapshot().Ready; !v.OK {
		t.Fatalf("%+v", v)
	}
}

func TestLooksThatStop(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(syncer.Looked{At: c.now, Took: time.Second, Err: errors.New("root /out: it is not there")})
	c.pass(time.Minute)
	r.Report(syncer.Looked{At: c.now, Took: time.Second, Err: errors.New("root /out: it is not there")})
	if l := only(t, d).Look; l.Seconds != 1 || l.Error == "" || c.now.Sub(l.Failing) != time.Minute {
		t.Errorf("%+v", l)
	}
	c.pass(minLookPatience)
	if v := d.Snapshot().Healthy; !v.OK {
		t.Errorf("%+v", v)
	}
	c.pass(time.Second)
	if v := d.Snapshot().Healthy; v.OK || !strings.Contains(v.Reasons[0], "no look at /out") {
		t.Errorf("%+v", v)
	}
	r.Report(syncer.Draining{Plan: "step 7, 3 GiB to send"}) // the trainer has ended, or a notice came
	if v := d.Snapshot(); !v.Healthy.OK || v.Runs[0].Draining != "step 7, 3 GiB to send" {
		t.Errorf("%+v", v)
	}
	if d.Run(About{Run: "exp1", Root: "/out", StateDir: "/out.ckptsync"}); d.Snapshot().Healthy.OK {
		t.Error("it is served anew, and looks stay out")
	}
	d.Drain() // then there are no looks, and it must not be killed for that
	if v := d.Snapshot().Healthy; !v.OK {
		t.Errorf("%+v", v)
	}
}

// TestWhatIsKeptIsBounded: a run of weeks, with a warning for each step.
func TestWhatIsKeptIsBounded(t *testing.T) {
	d, r, c := newDaemon(Options{})
	for i := range int64(5000) {
		r.Report(stage(i, syncer.Held))
		r.Report(committed(i))
		r.Report(syncer.Noticed{Path: fmt.Sprint("x", i), Text: "is none"})
		r.Report(syncer.Beside{Other: commit.Attempt{Attempt: int(i)}})
		c.pass(10 * time.Second)
		r.Report(syncer.Looked{At: c.now})
	}
	for i := range int64(1000) {
		r.Report(stage(10_000+i, syncer.Incomplete, "half"))
	}
	got := only(t, d)
	if n := len(got.Steps); n != keepFinished+showSteps || got.Omitted != 1000-showSteps || got.Steps[0].Step != 10_999 {
		t.Errorf("%d steps, %d omitted, first %+v", n, got.Omitted, got.Steps[0])
	}
	if len(got.Notices) != keepNotices || got.Notices[0].Path != "x4999" || len(got.Others.Beside) != keepBeside {
		t.Errorf("%d notices, %d beside", len(got.Notices), len(got.Others.Beside))
	}
	h := got.History
	if len(h) > maxSamples || len(h) < maxSamples/2 || h[0].At != c.now.Add(-4999*10*time.Second) || c.now.Sub(h[len(h)-1].At) > 10*time.Minute {
		t.Errorf("%d samples from %v to %v", len(h), h[0].At, h[len(h)-1].At)
	}
	r.Report(syncer.Noticed{Path: "x4999"})
	if got := only(t, d); got.Notices[0].Path != "x4998" {
		t.Error("a warning that is over is shown")
	}
}

// TestHistoryKeepsTheWorst: what gets coarser does not lose a peak.
func TestHistoryKeepsTheWorst(t *testing.T) {
	var h history
	at := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	for i := range 4 * maxSamples {
		s := Sample{At: at.Add(time.Duration(i) * firstSpan)}
		if i == 7 {
			s.Seconds, s.Steps = 99, 3
		}
		h.add(s)
	}
	if !slices.ContainsFunc(h.samples(), func(s Sample) bool { return s.Seconds == 99 && s.Steps == 3 }) {
		t.Error("the peak is gone")
	}
}

// TestSavedAgain: a step that changes begins anew, and one that was committed
// too.
func TestSavedAgain(t *testing.T) {
	d, r, c := newDaemon(Options{})
	r.Report(stage(10, syncer.Held))
	r.Report(syncer.Moved{Step: "checkpoint-10", Sent: 50, Total: 100})
	r.Report(stage(10, syncer.Seen))
	c.pass(time.Minute)
	r.Report(stage(10, syncer.Held))
	if s := find(t, only(t, d), 10); s.Sent != 0 || s.Stage != "held" || s.Whole != c.now {
		t.Errorf("%+v", s)
	}
	r.Report(committed(10))
	c.pass(time.Minute)
	r.Report(stage(10, syncer.Held))
	got := only(t, d)
	if s := find(t, got, 10); s.Whole != c.now || got.Lag.Uncommitted != 1 {
		t.Errorf("%+v", s)
	}
	r.Report(stage(10, syncer.Vanished, "gone"))
	if got := only(t, d); got.Lag.Uncommitted != 0 || got.Local != nil {
		t.Errorf("%+v", got)
	}
}

// TestJSONOfASnapshot: no list is null, a name that is not UTF-8 survives, and a
// time that is not known is absent.
func TestJSONOfASnapshot(t *testing.T) {
	d, r, _ := newDaemon(Options{})
	e := stage(1, syncer.Incomplete, "half")
	e.Step = "odd-\xff"
	r.Report(e)
	data, err := json.Marshal(d.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{`"name":"odd-%FF","encoding":"percent"`, `"reasons":["half"]`, `"trouble":[]`, `"beside":[]`, `"format":"ckptsync/status/v1"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	for _, never := range []string{`0001-01-01`, `"calls":null`, `"nodes":null`, `"history":null`, `"steps":null`} {
		if strings.Contains(text, never) {
			t.Errorf("%s is in %s", never, text)
		}
	}
}

func TestOneRunOnce(t *testing.T) {
	d, r, _ := newDaemon(Options{})
	r.Report(stage(10, syncer.Held))
	d.Run(About{Run: "exp1", Root: "/out", StateDir: "/out.ckptsync", Nodes: 2}) // the store could not be opened at first
	if got := only(t, d); got.Nodes != 2 || got.Lag.Steps != 1 {
		t.Errorf("%+v", got)
	}
	d.Run(About{Run: "exp2", Root: "/out2", StateDir: "/out2.ckptsync"})
	if n := len(d.Snapshot().Runs); n != 2 {
		t.Errorf("%d runs", n)
	}
	d.Ended("exp2", "/out2.ckptsync", errors.New("the disk is full"))
	s := d.Snapshot()
	if !strings.Contains(strings.Join(s.Ready.Reasons, "\n"), "run exp2 is not served: the disk is full") || s.Runs[1].Ended == "" || s.Runs[1].Watching {
		t.Errorf("%+v", s)
	}
	d.Run(About{Run: "exp2", Root: "/out2", StateDir: "/out2.ckptsync"})
	if s := d.Snapshot(); s.Runs[1].Ended != "" {
		t.Errorf("%+v", s.Runs[1])
	}
	d.Ended("exp2", "/out2.ckptsync", nil)
	if n := len(d.Snapshot().Runs); n != 1 {
		t.Errorf("%d runs", n)
	}
}
