package statusd

import (
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ckptsync/ckptsync/sync/status"
)

// collector makes metrics of a snapshot. Its labels are bounded: runs, and the
// operations, classes and stages that there are; never a step or a key.
type collector struct{ d *status.Daemon }

// Collector returns the metrics of a daemon.
func Collector(d *status.Daemon) prometheus.Collector { return collector{d} }

// Describe implements prometheus.Collector. The metrics depend on what is known.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.d.Snapshot()
	m := metrics{ch: ch}
	m.process(&s)
	m.store(&s.Store)
	for i := range s.Runs {
		r := metrics{ch: ch, labels: prometheus.Labels{"run": s.Runs[i].Run}}
		r.lag(&s.Runs[i])
		r.work(&s.Runs[i])
		r.others(&s.Runs[i], s.At)
	}
}

// metrics sends metrics with the labels that all of them have.
type metrics struct {
	ch     chan<- prometheus.Metric
	labels prometheus.Labels
}

func (m metrics) send(kind prometheus.ValueType, name, help string, value float64, pairs ...string) {
	var names, values []string
	for i := 0; i < len(pairs); i += 2 {
		names, values = append(names, pairs[i]), append(values, pairs[i+1])
	}
	desc := prometheus.NewDesc("ckptsync_"+name, help, names, m.labels)
	m.ch <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}

func (m metrics) gauge(name, help string, value float64, pairs ...string) {
	m.send(prometheus.GaugeValue, name, help, value, pairs...)
}

func (m metrics) count(name, help string, value int64, pairs ...string) {
	m.send(prometheus.CounterValue, name, help, float64(value), pairs...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// moment sends a time, if it is known.
func (m metrics) moment(name, help string, t time.Time) {
	if !t.IsZero() {
		m.gauge(name, help, float64(t.UnixMilli())/1000)
	}
}

func (m metrics) process(s *status.Snapshot) {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, b := range info.Settings {
			if b.Key == "vcs.revision" {
				revision = b.Value
			}
		}
	}
	m.gauge("build_info", "The version that runs; always 1.", 1, "version", s.Version, "revision", revision, "goversion", runtime.Version(), "command", s.Command)
	m.gauge("ready", "Whether /readyz says yes: the store has not been failing for too long.", truth(s.Ready.OK))
	m.gauge("healthy", "Whether /healthz says yes: looks at the roots happen.", truth(s.Healthy.OK))
	m.gauge("draining", "Whether it was told to end.", truth(s.Draining))
}

func (m metrics) store(s *status.Store) {
	m.count("store_sent_bytes_total", "Bytes that the store has acknowledged.", s.Sent)
	m.count("store_read_bytes_total", "Bytes that were read from the store.", s.Read)
	m.gauge("store_calls_in_flight", "Calls of the store that are under way.", float64(s.InFlight))
	for _, c := range s.Calls {
		m.count("store_calls_total", "Calls of the store, by how they ended.", c.Count, "op", c.Op, "class", c.Class)
	}
	for _, r := range s.Retries {
		m.count("store_retries_total", "Calls that failed and were tried again, by why.", r.Count, "class", r.Class)
	}
	trouble := map[string]float64{"read": 0, "write": 0}
	for _, t := range s.Trouble {
		trouble[t.Kind] = t.Seconds
	}
	for _, kind := range []string{"read", "write"} {
		m.gauge("store_trouble_seconds", "For how long calls have been failing without one that succeeded; 0: they succeed.", trouble[kind], "kind", kind)
	}
}

func (m metrics) lag(r *status.Run) {
	l := &r.Lag
	m.gauge("lag_steps", "Whole steps on this disk above the newest commit: what would be lost with the disk.", float64(l.Steps))
	m.gauge("lag_training_steps", "How far the newest of those is above the newest commit, in training steps.", float64(l.Training))
	m.gauge("lag_seconds", "For how long the oldest of those has been whole.", l.Seconds)
	m.gauge("uncommitted_steps", "Whole steps that are not committed, also below the newest commit.", float64(l.Uncommitted))
	m.gauge("oldest_uncommitted_seconds", "For how long the oldest of those has been whole.", l.OldestSeconds)
	m.moment("last_commit_timestamp_seconds", "When this run was last committed to.", l.LastCommit)
	if l.LastCommitAge >= 0 {
		m.gauge("last_commit_age_seconds", "Time since this run was last committed to.", l.LastCommitAge)
	}
	for name, ref := range map[string]*status.Ref{"newest_local_step": r.Local, "newest_whole_step": r.Whole, "newest_committed_step": r.Committed} {
		if ref != nil {
			m.gauge(name, "Number of a step; absent: there is none.", float64(ref.Step))
		}
	}
	buckets := map[float64]uint64{}
	for i, b := range r.Latency.Bounds {
		buckets[b] = r.Latency.Counts[i]
	}
	desc := prometheus.NewDesc("ckptsync_commit_latency_seconds", "From when a step was whole to its commit.", nil, m.labels)
	m.ch <- prometheus.MustNewConstHistogram(desc, r.Latency.Count, r.Latency.Sum, buckets)
}

func (m metrics) work(r *status.Run) {
	c := &r.Counts
	m.count("sent_bytes_total", "Bytes of steps that were sent.", c.Sent)
	m.count("sent_ahead_bytes_total", "Those of them that were sent while the step was not complete yet.", c.Ahead)
	m.count("reused_bytes_total", "Bytes of steps that were in the store already.", c.Reused)
	m.count("commits_total", "Steps that were committed.", c.Commits)
	m.count("failures_total", "Tries to commit a step that failed.", c.Failures)
	m.count("looks_total", "Looks at the root.", c.Looks)
	m.gauge("look_duration_seconds", "How long the last look at the root took.", r.Look.Seconds)
	m.moment("last_look_timestamp_seconds", "When the root was last looked at.", r.Look.At)
	m.gauge("root_unreadable", "Whether the root could not be looked at.", truth(r.Look.Error != ""))
	stages := map[string]int{}
	var left int64
	for _, s := range r.Steps {
		stages[s.Stage]++
		if s.Stage == status.StageUploading {
			left += max(0, s.Bytes-s.Sent-s.Reused)
		}
	}
	for _, stage := range []string{"incomplete", "settling", "held", status.StageUploading, "uploaded", "sealed", "failed", "skipped"} {
		m.gauge("steps", "Steps on this disk that are not committed, by stage; skipped: among the last ones.", float64(stages[stage]), "stage", stage)
	}
	m.gauge("in_flight_steps", "Steps that are being sent.", float64(stages[status.StageUploading]))
	m.gauge("in_flight_bytes", "What is left to send of them.", float64(left))
}

func (m metrics) others(r *status.Run, at time.Time) {
	m.gauge("served", "Whether the run is served; if not it failed, and is tried again.", truth(r.Ended == ""))
	m.gauge("attempt", "Number of the attempt; 0: none yet.", float64(r.Attempt))
	m.gauge("node", "Which node of the job this is.", float64(r.Node))
	m.gauge("nodes", "How many nodes save a part of each step.", float64(r.Nodes))
	m.gauge("awaited_nodes", "Nodes that a step, or a restore, is known to wait for.", float64(len(r.Awaited.Nodes)))
	m.gauge("awaited_seconds", "The longest wait for other nodes that is going on.", r.Awaited.Seconds)
	m.gauge("listed_commits", "Commits of the run, as of the last listing.", float64(r.Counts.Listed))
	m.gauge("damaged_commits", "Commits of the run that are marked damaged, as of the last listing.", float64(r.Counts.Damaged))
	m.gauge("regressed_commits", "Commits of this attempt that a restore does not take, as it began below what the run had reached.", float64(r.Counts.Regressed))
	o := r.Others.Superseded
	m.gauge("superseded", "Whether a newer attempt of the run was declared elsewhere.", truth(o != nil))
	m.gauge("overtaken", "Whether that one leads: what is committed here is not what a restore takes.", truth(o != nil && o.Leads))
	m.gauge("beside_attempts", "Other attempts that were seen committing to the run beside this one.", float64(len(r.Others.Beside)))
	m.gauge("warnings", "Warnings that a person should see; status has them.", float64(len(r.Notices)))
	if !r.Look.Failing.IsZero() {
		m.gauge("root_unreadable_seconds", "For how long the root could not be looked at.", at.Sub(r.Look.Failing).Seconds())
	}
}
