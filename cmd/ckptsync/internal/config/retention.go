package config

import (
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/sync/retain"
)

// Retention says which commits stay.
type Retention struct {
	Enabled bool // false: every commit stays
	Policy  retain.Policy
	Grace   time.Duration // how long the data of a retired commit stays
}

// The defaults of retention, where it is enabled.
const (
	DefaultKeepLast       = 2
	DefaultKeepAbandoned  = 7 * 24 * time.Hour
	DefaultRetentionGrace = 24 * time.Hour
)

// NoRetention keeps every commit.
func NoRetention() Retention {
	return Retention{Policy: retain.Policy{All: true, Aside: DefaultKeepAbandoned}, Grace: DefaultRetentionGrace}
}

type fileRetention struct {
	KeepLast      *int      `yaml:"keep_last"`
	KeepEvery     int64     `yaml:"keep_every"`
	KeepFor       Duration  `yaml:"keep_for"`
	KeepBest      *fileBest `yaml:"keep_best"`
	KeepAbandoned *Duration `yaml:"keep_abandoned"`
	Grace         *Duration `yaml:"grace"`
}

type fileBest struct {
	Metric string `yaml:"metric"`
	Mode   string `yaml:"mode"`
	Count  *int   `yaml:"count"`
}

func (l *loader) retention(f *fileRetention, key string, cfg *Config) Retention {
	r := NoRetention()
	if f == nil {
		return r
	}
	r.Enabled = true
	r.Policy = retain.Policy{KeepLast: DefaultKeepLast, KeepEvery: f.KeepEvery, KeepFor: time.Duration(f.KeepFor), Aside: DefaultKeepAbandoned}
	if f.KeepLast != nil {
		r.Policy.KeepLast = *f.KeepLast
	}
	if f.KeepAbandoned != nil {
		r.Policy.Aside = time.Duration(*f.KeepAbandoned)
	}
	if f.Grace != nil {
		r.Grace = time.Duration(*f.Grace)
	}
	if f.KeepBest != nil {
		r.Policy.KeepBest = l.best(f.KeepBest, key+".keep_best")
	}
	switch {
	case r.Policy.KeepLast < 1:
		l.ps.add(l.at(key+".keep_last", key), "keep_last: %d would keep nothing; leave retention: out to keep everything", r.Policy.KeepLast)
	case r.Policy.KeepLast == 1:
		w := "retention keep_last 1: a head that turns out damaged just as its predecessor is retired has nothing to fall back to; 2 is safer"
		if !slices.Contains(cfg.Warnings, w) {
			cfg.Warnings = append(cfg.Warnings, w)
		}
	}
	if r.Policy.KeepEvery < 0 {
		l.ps.add(l.at(key+".keep_every"), "keep_every: %d is negative", r.Policy.KeepEvery)
	}
	return r
}

func (l *loader) best(f *fileBest, key string) retain.Best {
	b := retain.Best{Metric: f.Metric, Count: 1}
	if f.Count != nil {
		b.Count = *f.Count
	}
	if b.Metric == "" {
		l.ps.add(l.at(key+".metric", key), "keep_best: metric says by which number of a commit's metadata; `ckptsync list --json` shows what there is")
	}
	if b.Count < 1 {
		l.ps.add(l.at(key+".count"), "keep_best: count %d keeps nothing; leave keep_best out for that", b.Count)
	}
	switch f.Mode {
	case "max":
		b.Max = true
	case "min":
	default:
		l.ps.add(l.at(key+".mode", key), "keep_best: mode %q is not min (the lowest is the best) or max", f.Mode)
	}
	return b
}
