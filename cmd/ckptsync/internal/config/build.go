package config

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/nodes"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// build makes the Config of what was gathered and checks all of it.
func (l *loader) build(chosen string) *Config {
	f := &l.raw
	cfg := &Config{
		File:               l.path,
		Layouts:            f.Layouts,
		ScanInterval:       time.Duration(f.ScanInterval),
		Grace:              time.Duration(f.Grace),
		UnreadyAfter:       time.Duration(f.UnreadyAfter),
		Concurrency:        f.Concurrency,
		Memory:             f.Memory,
		EarlyUpload:        f.EarlyUpload,
		Bandwidth:          f.Bandwidth,
		Nice:               f.Nice,
		Direct:             f.Direct,
		DropCache:          f.DropCache,
		Patience:           time.Duration(f.Patience),
		Stall:              time.Duration(f.Stall),
		Nodes:              nodes.Asked{Nodes: f.Nodes, Node: f.Node, Join: f.Join},
		JoinTimeout:        time.Duration(f.JoinTimeout),
		StopWhenSuperseded: f.StopWhenSuperseded,
		CrashLoop:          f.CrashLoop,
	}
	if f.Store != "" {
		var err error
		if cfg.Store, err = ParseStore(f.Store); err != nil {
			l.ps.add(l.at("store"), "%v", err)
		}
	}
	l.checkNumbers(cfg)
	l.checkTrainer(cfg)
	l.checkNotices(cfg)
	cfg.Hooks = l.hooks()
	l.settleKeys(cfg)
	l.settleEncryption(cfg)
	l.checkLog(cfg)
	l.checkLayouts(cfg)
	if len(f.Runs) > 0 {
		l.listedRuns(cfg, chosen)
	} else {
		l.singleRun(cfg)
	}
	l.checkTogether(cfg)
	if len(l.ps.list) == 0 && len(l.patterns) > 0 {
		l.expandPatterns(cfg, chosen)
	}
	return cfg
}

// expandPatterns adds the runs that the patterns stand for, or the chosen one
// if it is among them.
func (l *loader) expandPatterns(cfg *Config, chosen string) {
	cfg.Patterns = l.patterns
	if chosen == "" {
		cfg.Runs = append(cfg.Runs, cfg.Discover(nil).Runs...)
		return
	}
	if len(cfg.Runs) == 0 && !l.choose(cfg, chosen) {
		l.ps.add(l.at("run"), "run %q is not in the configuration, which has %s", chosen, some(cfg.names()))
	}
	cfg.Patterns = nil
}

func (l *loader) checkNumbers(cfg *Config) {
	if cfg.Concurrency < 1 || cfg.Concurrency > 1024 {
		l.ps.add(l.at("concurrency"), "concurrency: %d is not between 1 and 1024", cfg.Concurrency)
	}
	if cfg.Memory < 16<<20 {
		l.ps.add(l.at("memory"), "memory: %v is less than 16 MiB, which one chunk takes", cfg.Memory)
	}
	if cfg.ScanInterval < 100*time.Millisecond {
		l.ps.add(l.at("scan_interval"), "scan_interval: %v is less than 100ms", cfg.ScanInterval)
	}
	if _, given := l.where("patience"); given && cfg.Patience < time.Second {
		l.ps.add(l.at("patience"), "patience: %v is less than 1s", cfg.Patience)
	}
	if _, given := l.where("stall"); given && cfg.Stall < time.Second {
		l.ps.add(l.at("stall"), "stall: %v is less than 1s", cfg.Stall)
	}
	if _, given := l.where("join_timeout"); given && cfg.JoinTimeout < time.Second {
		l.ps.add(l.at("join_timeout"), "join_timeout: %v is less than 1s", cfg.JoinTimeout)
	}
	if cfg.CrashLoop == 1 || cfg.CrashLoop < 0 {
		l.ps.add(l.at("crash_loop"), "crash_loop: %d would give up a step for one bad start; 0 turns it off, else it is 2 at least", cfg.CrashLoop)
	}
	switch cfg.DropCache {
	case DropAuto, DropAlways, DropNever:
	default:
		l.ps.add(l.at("drop_cache"), "drop_cache: %q is none of auto, true, false", cfg.DropCache)
	}
	if cfg.UnreadyAfter < time.Second {
		l.ps.add(l.at("unready_after"), "unready_after: %v is less than 1s", cfg.UnreadyAfter)
	}
	if l.raw.Listen != "" {
		var err error
		if cfg.Listen, err = parseListen(l.raw.Listen, l.base("listen")); err != nil {
			l.ps.add(l.at("listen"), "listen: %v", err)
		}
	}
}

func (l *loader) checkLog(cfg *Config) {
	switch f := l.raw.Log.Format; f {
	case "", "text", "json":
		cfg.Log.Format = f
	default:
		l.ps.add(l.at("log.format"), "log format: %q is neither text nor json", f)
	}
	switch v := strings.ToLower(l.raw.Log.Level); v {
	case "", "info":
		cfg.Log.Level = slog.LevelInfo
	case "debug":
		cfg.Log.Level = slog.LevelDebug
	case "warn", "warning":
		cfg.Log.Level = slog.LevelWarn
	case "error":
		cfg.Log.Level = slog.LevelError
	default:
		l.ps.add(l.at("log.level"), "log level: %q is none of debug, info, warn, error", l.raw.Log.Level)
	}
}

// checkLayouts checks the user's own layouts.
func (l *loader) checkLayouts(cfg *Config) {
	seen := map[string]bool{}
	for i, s := range cfg.Layouts {
		key := fmt.Sprintf("layouts[%d]", i)
		at := l.at(key+".name", key)
		switch {
		case s.Name == "":
			l.ps.add(at, "layout: it has no name")
			continue
		case commit.CheckRun(s.Name) != nil:
			l.ps.add(at, "layout: %q is no name; use letters, digits, . _ -", s.Name)
		case s.Name == AutoLayout, slices.Contains(l.in.Builtin, s.Name):
			l.ps.add(at, "layout: %q is built in; give yours another name", s.Name)
		case seen[s.Name]:
			l.ps.add(at, "layout: there are two of the name %q", s.Name)
		}
		seen[s.Name] = true
		if s.Cumulative {
			l.ps.add(l.at(key+".cumulative", key), "layout %s: cumulative is for built-in layouts, which know where in such a directory its step's number stands", s.Name)
		}
		if s.Step == "" {
			l.ps.add(at, "layout %s: it has no step pattern, as step: \"checkpoint-{step}\"", s.Name)
			continue
		}
		if l.in.CheckSpec == nil {
			continue
		}
		if err := l.in.CheckSpec(s); err != nil {
			l.ps.add(at, "%v", err)
		}
	}
}

func (l *loader) singleRun(cfg *Config) {
	f := &l.raw
	r := Run{Name: f.Run, Root: f.Root, StateDir: f.StateDir, Layout: f.Layout, Settle: (*time.Duration)(f.Settle)}
	if r.Name != "" {
		if err := commit.CheckRun(r.Name); err != nil {
			l.ps.add(l.at("run"), "%v", err)
		}
	}
	l.checkLayoutName(cfg, &r, "layout")
	r.Retention = l.retention(f.Retention, "retention", cfg)
	r.Local = l.local(f.Local, "local")
	settlePaths(&r, l.base("root"), l.base("state_dir"), l.at("root"), l.at("state_dir", "root"), &l.ps)
	cfg.Runs = []Run{r}
	cfg.listed, cfg.everyListed = cfg.Runs, cfg.Runs
}

// listedRuns makes the runs of the runs: list, or the chosen one alone.
func (l *loader) listedRuns(cfg *Config, chosen string) {
	f := &l.raw
	for _, key := range []string{"run", "root", "state_dir"} {
		if n, ok := l.lines[key]; ok {
			l.ps.add(place{line: n}, "%s: it cannot stand beside runs:; write it in the list", key)
		}
	}
	patterns := slices.ContainsFunc(f.Runs, func(r fileRun) bool { return r.Roots != "" })
	several := (len(f.Runs) > 1 || patterns) && chosen == ""
	for _, key := range []string{"root", "state_dir", "layout"} {
		if p, ok := l.from[key]; ok && several {
			l.ps.add(p, "the configuration lists several runs; say which is meant with --run")
		}
	}
	var names []string
	for i, fr := range f.Runs {
		names = append(names, fr.Name)
		if fr.Roots != "" {
			l.pattern(i, l.commonOf(i, cfg))
			continue
		}
		r := l.listedRun(i, cfg)
		cfg.everyListed = append(cfg.everyListed, r)
		if chosen == "" || r.Name == chosen {
			cfg.Runs = append(cfg.Runs, r)
		}
	}
	cfg.listed = slices.Clone(cfg.Runs)
	if len(cfg.Runs) == 0 && !patterns {
		l.ps.add(l.at("run"), "run %q is not in the configuration, which lists %s", chosen, strings.Join(names, ", "))
	}
}

// commonOf is what entry i of runs: says of a run beside its name and its place.
func (l *loader) commonOf(i int, cfg *Config) Run {
	f, fr := &l.raw, l.raw.Runs[i]
	key := fmt.Sprintf("runs[%d]", i)
	r := Run{Layout: fr.Layout, Settle: l.settleOf(fr), entry: key}
	if _, given := l.from["layout"]; given || r.Layout == "" {
		r.Layout = f.Layout
	}
	l.checkLayoutName(cfg, &r, key+".layout")
	ret, retKey := fr.Retention, key+".retention"
	if ret == nil {
		ret, retKey = f.Retention, "retention"
	}
	r.Retention = l.retention(ret, retKey, cfg)
	loc, locKey := fr.Local, key+".local"
	if loc == nil {
		loc, locKey = f.Local, "local"
	}
	r.Local = l.local(loc, locKey)
	return r
}

func (l *loader) listedRun(i int, cfg *Config) Run {
	f, fr := &l.raw, l.raw.Runs[i]
	key := fmt.Sprintf("runs[%d]", i)
	r := l.commonOf(i, cfg)
	r.Name, r.Root, r.StateDir = fr.Name, fr.Root, fr.StateDir
	switch err := commit.CheckRun(r.Name); {
	case r.Name == "":
		l.ps.add(l.at(key+".name", key), "runs: entry %d has no name", i+1)
	case err != nil:
		l.ps.add(l.at(key+".name"), "%v", err)
	}
	if fr.MaxRuns != nil {
		l.ps.add(l.at(key+".max_runs"), "max_runs: it goes with roots:, which stands for several runs")
	}
	atRoot, atState := l.at(key+".root", key), l.at(key+".state_dir", key+".root", key)
	rootDir, stateDir := l.base(key), l.base(key)
	if p, ok := l.from["root"]; ok {
		r.Root, rootDir, atRoot = f.Root, l.in.Dir, p
	}
	if p, ok := l.from["state_dir"]; ok {
		r.StateDir, stateDir, atState = f.StateDir, l.in.Dir, p
	}
	settlePaths(&r, rootDir, stateDir, atRoot, atState, &l.ps)
	return r
}

func (l *loader) checkLayoutName(cfg *Config, r *Run, key string) {
	if r.Layout == "" {
		r.Layout = AutoLayout
	}
	if r.Layout == AutoLayout || l.in.Builtin == nil || slices.Contains(l.in.Builtin, r.Layout) {
		return
	}
	for _, s := range cfg.Layouts {
		if s.Name == r.Layout {
			return
		}
	}
	hint := "'ckptsync layouts' lists them"
	if r.Layout == layout.Generic {
		hint = "describe what a step is under layouts:, and give that one's name"
	} else if near := nearest(r.Layout, l.in.Builtin); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	at := l.at("layout", key)
	if n, ok := l.lines[key]; ok && l.from["layout"] == (place{}) {
		at = place{line: n}
	}
	l.ps.add(at, "layout: there is none of the name %q; %s", r.Layout, hint)
}

// checkTogether checks what concerns several runs, or a run and the store.
func (l *loader) checkTogether(cfg *Config) {
	for i, r := range cfg.Runs {
		key := fmt.Sprintf("runs[%d]", i)
		for j, o := range cfg.Runs {
			l.checkPair(r, o, j < i, l.at(key+".name", key), l.at(key+".root", "root", key))
		}
		if dir := cfg.Store.dirOrEmpty(); dir != "" && r.realRoot != "" {
			if real, err := resolve(dir); err == nil {
				l.checkApart(cfg, dir, real, r)
			}
		}
	}
}

// checkApart checks that neither a directory that is the store, nor what it holds
// of a run, is inside the root of r.
func (l *loader) checkApart(cfg *Config, dir, real string, r Run) {
	if within(real, r.realRoot) {
		l.ps.add(l.at("store"), "store: %s is inside the root %s; trainers trip over entries that they did not write", dir, r.Root)
		return
	}
	for _, o := range cfg.Runs {
		if kept := filepath.Join(real, o.Name); o.Name != "" && within(kept, r.realRoot) {
			l.ps.add(l.at("store"), "store: what it holds of run %q would be in %s, which is inside the root %s; trainers trip over entries that they did not write, so name another directory, or another run",
				o.Name, filepath.Join(dir, o.Name), r.Root)
		}
	}
}

// checkPair checks run r against another one; earlier says that o stands
// before r, so that what is equal is said once.
func (l *loader) checkPair(r, o Run, earlier bool, atName, atRoot place) {
	if earlier && r.Name != "" && r.Name == o.Name {
		l.ps.add(atName, "runs: there are two of the name %q", r.Name)
	}
	if r.realRoot == "" || o.realRoot == "" {
		return
	}
	switch {
	case earlier && r.realRoot == o.realRoot:
		l.ps.add(atRoot, "root: run %q has the same root as run %q", r.Name, o.Name)
	case earlier && r.realState == o.realState:
		l.ps.add(atRoot, "state_dir: run %q has the same state directory as run %q", r.Name, o.Name)
	case r.realRoot != o.realRoot && within(r.realState, o.realRoot):
		l.ps.add(atRoot, "state_dir: that of run %q, %s, is inside the root of run %q", r.Name, r.StateDir, o.Name)
	}
}

func (s Store) dirOrEmpty() string {
	if s.IsZero() {
		return ""
	}
	return s.Dir()
}
