package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// settings are the flags of all commands.
type settings struct {
	Size   bytesFlag // of the large cases
	Rounds int
	Dir    string
	Bin    string // of ckptsync; empty: built
	JSON   string
	Check  bool

	// move
	Files    int // of the small case
	Cases    listFlag
	Ways     listFlag
	Schemes  listFlag
	Stores   listFlag
	Only     listFlag
	Peers    bool
	Profiles string
	Direct   bool // move: down

	Threads     int           // trainer
	Quads       int           // trainer
	Slice       time.Duration // trainer: a window
	Loads       listFlag      // trainer
	Window      time.Duration // shaped: what a measurement should take
	Connections listFlag      // shaped
	Rate        bytesFlag     // shaped: per connection and second
	RoundTrip   time.Duration // shaped
	StepSize    bytesFlag     // lag
	Settle      time.Duration // lag
	Outage      time.Duration // restart
	Huge        bytesFlag     // memory
}

func commonFlags(s *settings, f *flag.FlagSet) {
	s.Size = 8 << 30
	f.Var(&s.Size, "size", "`bytes` of the large cases: of the one file, and of the 16 together")
	f.IntVar(&s.Rounds, "rounds", 5, "how often each is measured")
	f.StringVar(&s.Dir, "dir", "", "where files are made: a disk with four times -size free (default: a temporary directory)")
	f.StringVar(&s.Bin, "bin", "", "the ckptsync to measure (default: built from this tree)")
	f.StringVar(&s.JSON, "json", "", "write every sample and the verdicts to `FILE`")
	f.BoolVar(&s.Check, "check", false, "end with status 1 if a target was missed")
}

// bytesFlag is a size such as 8GiB.
type bytesFlag int64

func (b *bytesFlag) String() string { return humanize.IBytes(uint64(*b)) }

// Set implements flag.Value.
func (b *bytesFlag) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err == nil && (n == 0 || n > 1<<62) {
		err = fmt.Errorf("%q is no size to measure with", text)
	}
	*b = bytesFlag(n)
	return err
}

// listFlag is a list with commas between.
type listFlag []string

func (l *listFlag) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *listFlag) Set(text string) error {
	*l = nil
	for w := range strings.SplitSeq(text, ",") {
		if w = strings.TrimSpace(w); w != "" {
			*l = append(*l, w)
		}
	}
	return nil
}

// numbers reads a list of positive numbers.
func (l listFlag) numbers() ([]int, error) {
	var ns []int
	for _, w := range l {
		n, err := strconv.Atoi(w)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a positive number", w)
		}
		ns = append(ns, n)
	}
	return ns, nil
}
