package status

import (
	"slices"
	"time"
)

// A history holds at most this many samples. When it is full it keeps every
// second one, and from then on half as many.
const (
	maxSamples  = 360
	firstSpan   = 5 * time.Second
	sampleTwice = 2
)

// history is the lag in the past. A sample is the worst of the time that it
// stands for.
type history struct {
	list []Sample
	span time.Duration // that a sample stands for
}

func (h *history) add(s Sample) {
	if h.span == 0 {
		h.span = firstSpan
	}
	if n := len(h.list); n > 0 && s.At.Sub(h.list[n-1].At) < h.span {
		last := &h.list[n-1]
		last.Seconds, last.Steps = max(last.Seconds, s.Seconds), max(last.Steps, s.Steps)
		return
	}
	if len(h.list) == maxSamples {
		half := h.list[:0]
		for pair := range slices.Chunk(h.list, sampleTwice) {
			worst := pair[0]
			for _, o := range pair[1:] {
				worst.Seconds, worst.Steps = max(worst.Seconds, o.Seconds), max(worst.Steps, o.Steps)
			}
			half = append(half, worst)
		}
		h.list, h.span = half, sampleTwice*h.span
	}
	h.list = append(h.list, s)
}

func (h *history) samples() []Sample { return append([]Sample{}, h.list...) }
