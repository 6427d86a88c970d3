package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob/rateblob"
)

func TestParseBandwidth(t *testing.T) {
	for in, want := range map[string]int64{"200MB/s": 200e6, "1.5GiB/s": 3 << 29, "100kB/s": 100e3, "none": 0} {
		got, err := ParseBandwidth(in)
		var limits Bandwidth
		if want > 0 {
			limits = Bandwidth(rateblob.Always(rateblob.Limit{Up: want, Down: want}))
		}
		if err != nil || !cmp.Equal(got, limits) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "200MB", "MB/s", "0/s", "99kB/s", "-1MB/s", "1MB/h", "None"} {
		if got, err := ParseBandwidth(in); err == nil {
			t.Errorf("%q is %v", in, got)
		}
	}
}

// TestMannersFromOutside: the same settings from the environment and flags, one
// of which needs no value.
func TestMannersFromOutside(t *testing.T) {
	cfg := mustLoad(t, "/", "", map[string]string{"CKPTSYNC_BANDWIDTH": "1MB/s", "CKPTSYNC_NICE": "1", "CKPTSYNC_DROP_CACHE": "false"},
		map[string]string{"bandwidth": "2MB/s", "patience": "1m", "stall": "5s"})
	want := defaults(func(c *Config) {
		c.Bandwidth = Bandwidth(rateblob.Always(rateblob.Limit{Up: 2e6, Down: 2e6}))
		c.Nice, c.DropCache, c.Patience, c.Stall = true, DropNever, 60e9, 5e9
	})
	if d := diff(want, cfg); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	_, err := load("/", "", map[string]string{"CKPTSYNC_NICE": "very", "CKPTSYNC_BANDWIDTH": "fast"}, map[string]string{"stall": "0"})
	for _, w := range []string{`$CKPTSYNC_NICE: "very" is neither true nor false`, `$CKPTSYNC_BANDWIDTH: "fast" is not a rate`, "--stall: stall: 0s is less than 1s"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("not said: %s\nin: %v", w, err)
		}
	}
}
