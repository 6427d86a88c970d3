package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ckptsync/ckptsync/blob/rateblob"
)

// Bandwidth is how many bytes a second may be moved, and when; nil is no limit.
// It is written as one rate, for each way and always, or as a list of windows.
type Bandwidth rateblob.Schedule

// minRate is the least rate in bytes a second. Below, a store would take the
// parts that are under way for abandoned.
const minRate = 100_000

// ParseRate reads a number of bytes a second, written as 200MB/s or 1.5GiB/s, or
// "none", which is 0.
func ParseRate(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "none" {
		return 0, nil
	}
	number, ok := strings.CutSuffix(s, "/s")
	size, err := ParseSize(number)
	switch {
	case !ok || err != nil:
		return 0, fmt.Errorf("%q is not a rate; write bytes a second as 200MB/s, or none", s)
	case size < minRate:
		return 0, fmt.Errorf("%q is less than 100kB/s", s)
	}
	return int64(size), nil
}

// ParseBandwidth reads a plain rate.
func ParseBandwidth(s string) (Bandwidth, error) {
	rate, err := ParseRate(s)
	if err != nil || rate == 0 {
		return nil, err
	}
	return Bandwidth(rateblob.Always(rateblob.Limit{Up: rate, Down: rate})), nil
}

// UnmarshalYAML implements yaml.Unmarshaler. It collects every problem.
func (b *Bandwidth) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return scalar(n, b, ParseBandwidth)
	}
	var out Bandwidth
	problems := &yaml.TypeError{}
	if n.Kind != yaml.SequenceNode {
		fail(problems, n, "a rate, as 200MB/s, or a list of windows is wanted here")
	}
	for _, w := range n.Content {
		if n.Kind == yaml.SequenceNode {
			out = append(out, window(w, problems))
		}
	}
	if len(problems.Errors) > 0 {
		return problems
	}
	*b = out
	return nil
}

func fail(to *yaml.TypeError, n *yaml.Node, format string, args ...any) {
	to.Errors = append(to.Errors, fmt.Sprintf("line %d: %s", n.Line, fmt.Sprintf(format, args...)))
}

func window(n *yaml.Node, to *yaml.TypeError) rateblob.Window {
	w := rateblob.Window{To: 24 * time.Hour}
	if n.Kind != yaml.MappingNode {
		fail(to, n, `a window is wanted here, as {from: "08:00", to: "20:00", up: 100MB/s}`)
		return w
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			fail(to, key, "key %q stands twice", key.Value)
		}
		seen[key.Value] = true
		if err := setWindow(&w, key.Value, value); err != nil {
			fail(to, value, "%v", err)
		}
	}
	if !seen["up"] && !seen["down"] {
		fail(to, n, "the window has neither up nor down")
	}
	return w
}

func setWindow(w *rateblob.Window, key string, value *yaml.Node) (err error) {
	switch key {
	case "from":
		w.From, err = clock(value)
	case "to":
		w.To, err = clock(value)
	case "days":
		w.Days, err = days(value)
	case "up":
		w.Limit.Up, err = ParseRate(value.Value)
	case "down":
		w.Limit.Down, err = ParseRate(value.Value)
	default:
		err = fmt.Errorf("unknown key %q; here the keys are: from, to, days, up, down", key)
	}
	return err
}

// clock reads a time of the day, as 08:00.
func clock(n *yaml.Node) (time.Duration, error) {
	if n.Value == "24:00" {
		return 24 * time.Hour, nil
	}
	t, err := time.Parse("15:04", n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return 0, fmt.Errorf(`%q is not a time of the day; write it as "08:00"`, n.Value)
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// days reads days of the week: mon-fri, or a list of such.
func days(n *yaml.Node) ([]time.Weekday, error) {
	items := n.Content
	if n.Kind != yaml.SequenceNode {
		items = []*yaml.Node{n}
	}
	var out []time.Weekday
	for _, item := range items {
		from, to, ranged := strings.Cut(strings.ToLower(item.Value), "-")
		if !ranged {
			to = from
		}
		first, last := slices.Index(weekdays, from), slices.Index(weekdays, to)
		if first < 0 || last < 0 {
			return nil, fmt.Errorf("%q is no day of the week; write mon, tue, … sun, or mon-fri", item.Value)
		}
		for d := first; ; d = (d + 1) % 7 {
			if !slices.Contains(out, time.Weekday(d)) {
				out = append(out, time.Weekday(d))
			}
			if d == last {
				break
			}
		}
	}
	return out, nil
}
