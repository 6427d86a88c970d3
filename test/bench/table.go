package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// sample is one trip of one mover.
type sample struct {
	usage
	Commit float64 `json:",omitempty"` // ckptsync up: seconds, as it says itself
	Sent   int64   `json:",omitempty"` // ckptsync up: bytes, as it says itself
	DataIn int64   `json:",omitempty"` // on the sink: bytes of a run's data that arrived
}

// row is one mover in a table.
type row struct {
	Name    string
	Samples []sample
	Failed  string `json:",omitempty"`
}

// table is one case, one way, on one store.
type table struct {
	Case   string
	Files  int
	Bytes  int64
	Way    string
	Store  string
	Scheme string
	Rows   []*row
	Notes  []string `json:",omitempty"`
}

func (t *table) title() string {
	size := "" // of what is moved
	if t.Files > 1 {
		size = fmt.Sprintf("%s × ", humanize.Comma(int64(t.Files)))
	}
	return fmt.Sprintf("%s %s, %s over %s: %s%s", t.Case, t.Way, t.Store, t.Scheme, size, humanize.IBytes(uint64(t.Bytes/int64(t.Files))))
}

// row finds a mover that was measured; nil if it was not.
func (t *table) row(name string) *row {
	if t == nil {
		return nil
	}
	i := slices.IndexFunc(t.Rows, func(r *row) bool { return r.Name == name && len(r.Samples) > 0 && r.Failed == "" })
	if i < 0 {
		return nil
	}
	return t.Rows[i]
}

// wall, cpu and peak are the spreads of a row.
func (r *row) wall() spread { return r.spread(func(s sample) float64 { return s.Wall }) }
func (r *row) cpu() spread  { return r.spread(func(s sample) float64 { return s.CPU }) }
func (r *row) peak() spread { return r.spread(func(s sample) float64 { return s.Peak }) }

func (r *row) spread(of func(sample) float64) spread {
	var vs []float64
	for _, s := range r.Samples {
		vs = append(vs, of(s))
	}
	return spreadOf(vs)
}

// spread is a median with its bounds.
type spread struct{ median, least, greatest float64 }

func spreadOf(vs []float64) spread {
	if len(vs) == 0 {
		return spread{}
	}
	vs = slices.Sorted(slices.Values(vs))
	mid := vs[len(vs)/2]
	if len(vs)%2 == 0 {
		mid = (vs[len(vs)/2-1] + mid) / 2
	}
	return spread{median: mid, least: vs[0], greatest: vs[len(vs)-1]}
}

func (s spread) String() string {
	return fmt.Sprintf("%s (%s–%s)", number(s.median), number(s.least), number(s.greatest))
}

// scaled is the spread of all values times f.
func (s spread) scaled(f float64) spread { return spread{s.median * f, s.least * f, s.greatest * f} }

// rate is the spread of n divided by the values.
func (s spread) rate(n float64) spread { return spread{n / s.median, n / s.greatest, n / s.least} }

// number prints three digits or so.
func number(f float64) string {
	switch {
	case f >= 100:
		return humanize.Comma(int64(f + 0.5))
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// print shows the table. The ratios are of medians: "× floor" is this row
// over the floor with digests, "ckptsync ×" is ckptsync over this row.
func (t *table) print(b *bench) {
	b.say("\n%s", t.title())
	small := t.Bytes/int64(t.Files) < 1<<20
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	unit := "GB/s\tCPU s/GiB"
	if small {
		unit = "objects/s\tCPU ms/object"
	}
	fmt.Fprintf(w, "mover\twall s\t%s\tpeak MiB\twall × floor\tCPU × floor\tckptsync wall ×\tckptsync CPU ×\t\n", unit)
	floor, own := t.row(nameDigests), t.row(nameProgram)
	for _, r := range t.Rows {
		if r.Failed != "" {
			t.Notes = append(t.Notes, r.Name+": not measured: "+r.Failed)
		}
		if len(r.Samples) == 0 {
			continue
		}
		rate, cost := r.wall().rate(float64(t.Bytes)/1e9), r.cpu().scaled(float64(1<<30)/float64(t.Bytes))
		if small {
			rate, cost = r.wall().rate(float64(t.Files)), r.cpu().scaled(1000/float64(t.Files))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.wall(), rate, cost, number(r.peak().greatest),
			ratio(r, floor, (*row).wall), ratio(r, floor, (*row).cpu), ratio(own, r, (*row).wall), ratio(own, r, (*row).cpu), r.marks())
	}
	w.Flush()
	t.notes(b.out)
}

func (t *table) notes(w io.Writer) {
	for _, n := range t.Notes {
		fmt.Fprintln(w, n)
	}
}

// ratio of the medians of a over those of b; "-" if either is missing.
func ratio(a, b *row, of func(*row) spread) string {
	if a == nil || b == nil || of(b).median == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", of(a).median/of(b).median)
}

// marks say what is odd about a row.
func (r *row) marks() string {
	var marks []string
	given := 0
	for _, s := range r.Samples {
		if s.Given {
			given++
		}
	}
	if given > 0 {
		marks = append(marks, fmt.Sprintf("pages were given back in %d of %d", given, len(r.Samples)))
	}
	return strings.Join(marks, "; ")
}
