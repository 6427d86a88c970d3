package layout

import (
	"fmt"
	"slices"
	"strings"
)

// LoudAfter is how many incomplete steps under one layout, and no complete
// one, are too many to be told one by one only.
const LoudAfter = 3

// Standing is how one step stands under its layout.
type Standing struct {
	Layout  string
	Whole   bool     // complete now, or once: committed, or on the way there
	Reasons []string // why not
}

// NeverQualified returns a sentence for each layout, by its name, under which
// at least LoudAfter steps were judged and none was ever complete. Then it is
// more likely that the layout asks for something that this trainer never
// writes than that every save was cut off, and a person has to know: nothing
// is being saved.
func NeverQualified(standings []Standing) map[string]string {
	total, whole, reasons := map[string]int{}, map[string]bool{}, map[string]map[string]int{}
	for _, s := range standings {
		total[s.Layout]++
		whole[s.Layout] = whole[s.Layout] || s.Whole
		if reasons[s.Layout] == nil {
			reasons[s.Layout] = map[string]int{}
		}
		for _, r := range slices.Compact(slices.Sorted(slices.Values(s.Reasons))) {
			reasons[s.Layout][r]++
		}
	}
	var out map[string]string
	for l, n := range total {
		if n < LoudAfter || whole[l] {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[l] = neverSentence(l, n, reasons[l])
	}
	return out
}

func neverSentence(layout string, n int, reasons map[string]int) string {
	var common []string
	most, often := "", 0
	for r, k := range reasons {
		if k == n {
			common = append(common, r)
		}
		if k > often || k == often && r < most {
			most, often = r, k
		}
	}
	slices.Sort(common)
	why := ""
	switch {
	case len(common) > 0:
		why = fmt.Sprintf(" (each: %s)", strings.Join(common[:min(len(common), maxNamed)], "; "))
	case often > 1:
		why = fmt.Sprintf(" (%d of them: %s)", often, most)
	}
	return fmt.Sprintf("no step has ever qualified under layout %s: %d were judged, and none is complete%s. If they are whole, this layout does not "+
		"fit: give another with --layout, or describe what a step holds under \"layouts:\" in the configuration file", layout, n, why)
}
