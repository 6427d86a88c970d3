package statusd

import (
	"fmt"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/sync/status"
)

// The sizes of the drawings, in their own units.
const (
	drawWidth  = 960.0
	nameWidth  = 90.0
	rowHeight  = 22.0
	maxBars    = 20
	graphTop   = 10.0
	graphBase  = 110.0
	axisHeight = 20.0
)

// timeline shows when steps were seen, whole, sent and committed: a row for
// each, newest first, from the first time among them to now.
type timeline struct {
	Height float64
	Axis   float64 // where its line is
	Bars   []bar
	Ticks  []tick
}

// bar is one step's row.
type bar struct {
	status.Step
	Y        float64
	Segments []segment
	Done     float64 // where the mark of the commit is; 0: none
}

// segment is a time that a step was in one state.
type segment struct {
	X, Width float64
	Class    string // saving, waiting, sending, sealing
	Title    string
}

type tick struct {
	X    float64
	Text string
}

func newTimeline(steps []status.Step, now time.Time) timeline {
	var shown []status.Step
	begin := now
	for _, s := range steps {
		if s.Seen.IsZero() || s.Stage == "skipped" || s.Stage == "committed" && s.At.IsZero() || len(shown) == maxBars {
			continue
		}
		shown = append(shown, s)
		if s.Seen.Before(begin) {
			begin = s.Seen
		}
	}
	if len(shown) == 0 {
		return timeline{}
	}
	sc := scale{begin: begin, end: now, left: nameWidth, right: drawWidth - 10}
	t := timeline{Ticks: sc.ticks()}
	for i, s := range shown {
		b := bar{Step: s, Y: float64(i) * rowHeight}
		add := func(class, what string, from, to time.Time) {
			if from.IsZero() {
				return
			}
			x := sc.x(from)
			b.Segments = append(b.Segments, segment{X: x, Width: max(1.5, sc.x(to)-x), Class: class, Title: what + " " + span(to.Sub(from).Seconds())})
		}
		end := now
		if !s.At.IsZero() {
			end = s.At
			b.Done = sc.x(end)
		}
		add("saving", "saved for", s.Seen, first(s.Whole, end))
		add("waiting", "whole, waited for", s.Whole, first(s.Uploading, s.Uploaded, end))
		add("sending", "sent for", s.Uploading, first(s.Uploaded, end))
		add("sealing", "in the store, waited for its commit", s.Uploaded, end)
		t.Bars = append(t.Bars, b)
	}
	t.Axis = float64(len(shown))*rowHeight + 4
	t.Height = t.Axis + axisHeight
	return t
}

// first is the first of the times that is known.
func first(times ...time.Time) time.Time {
	for _, t := range times {
		if !t.IsZero() {
			return t
		}
	}
	return time.Time{}
}

// scale maps times to places.
type scale struct {
	begin, end  time.Time
	left, right float64
}

func (s scale) x(t time.Time) float64 {
	all := max(s.end.Sub(s.begin).Seconds(), 1)
	at := min(max(t.Sub(s.begin).Seconds(), 0), all)
	return s.left + (s.right-s.left)*at/all
}

// ticks are a few round times.
func (s scale) ticks() (out []tick) {
	const about = 6
	all := s.end.Sub(s.begin)
	step, form := 24*time.Hour, "Jan 2"
	for _, d := range []time.Duration{
		time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	} {
		if all/d <= about {
			step, form = d, "15:04"
			if d < time.Minute {
				form = "15:04:05"
			}
			break
		}
	}
	for step > 0 && all/step > about {
		step *= 2
	}
	for t := s.begin.Truncate(step).Add(step); !t.After(s.end); t = t.Add(step) {
		if x := s.x(t); x < s.right-20 {
			out = append(out, tick{X: x, Text: t.UTC().Format(form)})
		}
	}
	return out
}

// graph shows the lag in the past.
type graph struct {
	Area, Line string // SVG path data; empty: there is nothing to show
	Base       float64
	Top        float64
	Max        string
	Ticks      []tick
	Height     float64
}

func newGraph(r status.Run, now time.Time) graph {
	if len(r.History) < 2 {
		return graph{}
	}
	h := append(r.History[:len(r.History):len(r.History)], status.Sample{At: now, Seconds: r.Lag.Seconds, Steps: r.Lag.Steps})
	most := 1.0
	for _, s := range h {
		most = max(most, s.Seconds)
	}
	sc := scale{begin: h[0].At, end: now, left: nameWidth, right: drawWidth - 10}
	var line strings.Builder
	for i, s := range h {
		cmd := "L"
		if i == 0 {
			cmd = "M"
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", cmd, sc.x(s.At), graphBase-(graphBase-graphTop)*s.Seconds/most)
	}
	return graph{
		Line: line.String(), Area: fmt.Sprintf("%sL%.1f %.1fL%.1f %.1fZ", line.String(), sc.right, graphBase, sc.left, graphBase),
		Base: graphBase, Top: graphTop, Max: span(most), Ticks: sc.ticks(), Height: graphBase + axisHeight,
	}
}
