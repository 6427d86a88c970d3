package config

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// Input is all that a configuration is made of.
type Input struct {
	Dir    string              // working directory, absolute; relative paths of variables and flags begin there
	File   string              // of --config; empty: $CKPTSYNC_CONFIG, else ckptsync.yaml in Dir if it is there
	Getenv func(string) string // an empty variable counts as not set
	Flags  map[string]string   // the flags that were given, by their names without dashes

	Builtin   []string                // names of the built-in layouts; nil: layout names are not checked
	CheckSpec func(layout.Spec) error // says what is wrong with a user's layout; nil: not checked
}

// Setting is one value that the environment or a flag may give.
type Setting struct {
	Key   string // in the file, as log.format
	Env   string // variable
	Flag  string // without dashes
	Arg   string // what stands for the value in help; empty: true, if the flag has no value
	Usage string

	set func(*file, string) error
}

// Settings lists every setting that the environment or a flag may give. The
// first nine are those that every command shares.
func Settings() []Setting {
	text := func(at func(*file) *string) func(*file, string) error {
		return func(f *file, v string) error { *at(f) = v; return nil }
	}
	length := func(at func(*file) *Duration) func(*file, string) error {
		return func(f *file, v string) (err error) { *at(f), err = ParseDuration(v); return err }
	}
	return []Setting{
		{"run", "CKPTSYNC_RUN", "run", "NAME", "the training run", text(func(f *file) *string { return &f.Run })},
		{"store", "CKPTSYNC_STORE", "store", "URL", "where it is kept: s3://bucket/prefix, file:///dir", text(func(f *file) *string { return &f.Store })},
		{"root", "CKPTSYNC_ROOT", "root", "DIR", "the directory that the trainer writes its steps into", text(func(f *file) *string { return &f.Root })},
		{"layout", "CKPTSYNC_LAYOUT", "layout", "NAME", "how steps are laid out: auto, or one of 'ckptsync layouts' (default auto)", text(func(f *file) *string { return &f.Layout })},
		{"state_dir", "CKPTSYNC_STATE_DIR", "state-dir", "DIR", "local state, never inside the root (default <root>.ckptsync)", text(func(f *file) *string { return &f.StateDir })},
		{"log.format", "CKPTSYNC_LOG_FORMAT", "log-format", "FORMAT", "text or json (default text on a terminal, else json)", text(func(f *file) *string { return &f.Log.Format })},
		{"log.level", "CKPTSYNC_LOG_LEVEL", "log-level", "LEVEL", "debug, info, warn or error (default info)", text(func(f *file) *string { return &f.Log.Level })},
		{"age_identity", "CKPTSYNC_AGE_IDENTITY", "age-identity", "FILE", "identities of age: they open encrypted runs, and new runs are encrypted", text(func(f *file) *string { return &f.AgeIdentity })},
		{"age_recipient", "CKPTSYNC_AGE_RECIPIENT", "age-recipient", "KEY", "whom new runs are encrypted for, several with commas between (default whom the identities belong to)", func(f *file, v string) error {
			f.AgeRecipients = strings.Split(v, ",")
			return nil
		}},
		{"settle", "CKPTSYNC_SETTLE", "settle", "DURATION", "how long a step must have been quiet (default what its layout says)", length(func(f *file) *Duration { f.Settle = new(Duration); return f.Settle })},
		{"scan_interval", "CKPTSYNC_SCAN_INTERVAL", "scan-interval", "DURATION", "time between two looks at the root (default 10s)", length(func(f *file) *Duration { return &f.ScanInterval })},
		{"grace", "CKPTSYNC_GRACE", "grace", "DURATION", "time to drain in after SIGTERM (default 25s)", length(func(f *file) *Duration { return &f.Grace })},
		{"listen", "CKPTSYNC_LISTEN", "listen", "ADDR", "serve /metrics, /healthz, /readyz and /status there: a port of the loopback, host:port, or unix:PATH", text(func(f *file) *string { return &f.Listen })},
		{"unready_after", "CKPTSYNC_UNREADY_AFTER", "unready-after", "DURATION", "how long the store may fail until /readyz says no (default 5m)", length(func(f *file) *Duration { return &f.UnreadyAfter })},
		{"concurrency", "CKPTSYNC_CONCURRENCY", "concurrency", "N", "transfers at once (default 8)", func(f *file, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil {
				return fmt.Errorf("%q is not a whole number", v)
			}
			f.Concurrency = n
			return nil
		}},
		{"memory", "CKPTSYNC_MEMORY", "memory", "SIZE", "file content in memory at once (default 128MiB)", func(f *file, v string) (err error) {
			f.Memory, err = ParseSize(v)
			return err
		}},
		{"early_upload", "CKPTSYNC_EARLY_UPLOAD", "early-upload", "BOOL", "send what is quiet of a step while it is still being written (default true)", func(f *file, v string) (err error) {
			if f.EarlyUpload, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		}},
		{"bandwidth", "CKPTSYNC_BANDWIDTH", "bandwidth", "RATE", "bytes a second each way, as 200MB/s (default no limit)", func(f *file, v string) (err error) {
			f.Bandwidth, err = ParseBandwidth(v)
			return err
		}},
		{"nice", "CKPTSYNC_NICE", "nice", "", "yield processor and disk to everybody else", func(f *file, v string) (err error) {
			if f.Nice, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		}},
		{"direct", "CKPTSYNC_DIRECT", "direct", "", "restore past the page cache, where the file system can: for steps that are not read right after", func(f *file, v string) (err error) {
			if f.Direct, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		}},
		{"stop_when_superseded", "CKPTSYNC_STOP_WHEN_SUPERSEDED", "stop-when-superseded", "", "end, with status 8, once a newer attempt of the run leads (default warn)", func(f *file, v string) (err error) {
			if f.StopWhenSuperseded, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		}},
		{"drop_cache", "CKPTSYNC_DROP_CACHE", "drop-cache", "MODE", "drop from the page cache what was sent: auto, true or false (default auto: what was not there before)", text(func(f *file) *string { return &f.DropCache })},
		{"patience", "CKPTSYNC_PATIENCE", "patience", "DURATION", "how long a call of the store is tried again (default about 80s)", length(func(f *file) *Duration { return &f.Patience })},
		{"nodes", "CKPTSYNC_NODES", "nodes", "N", "how many nodes each save a part of a step; auto: as many as the scheduler says (default 1)", text(func(f *file) *string { return &f.Nodes })},
		{"node", "CKPTSYNC_NODE", "node", "I", "which of them this is, from 0 (default what the scheduler says)", text(func(f *file) *string { return &f.Node })},
		{"join", "CKPTSYNC_JOIN", "join", "KEY", "names this start of the job, the same on all its nodes (default the scheduler's job and restart)", text(func(f *file) *string { return &f.Join })},
		{"join_timeout", "CKPTSYNC_JOIN_TIMEOUT", "join-timeout", "DURATION", "how long a restore that is ready waits for the other nodes (default 30m)", length(func(f *file) *Duration { return &f.JoinTimeout })},
		{"crash_loop", "CKPTSYNC_CRASH_LOOP", "crash-loop", "K", "restore the step before, once one was restored K times and nothing was committed after it (default 0: never)", func(f *file, v string) (err error) {
			if f.CrashLoop, err = strconv.Atoi(v); err != nil {
				return fmt.Errorf("%q is not a whole number", v)
			}
			return nil
		}},
		{"sign_key", "CKPTSYNC_SIGN_KEY", "sign-key", "FILE", "sign commits with this minisign secret key", text(func(f *file) *string { return &f.SignKey })},
		{"verify_key", "CKPTSYNC_VERIFY_KEY", "verify-key", "KEY", "take only commits signed by this minisign public key: the key or its file, or several with commas between", func(f *file, v string) error {
			f.VerifyKeys = strings.Split(v, ",")
			return nil
		}},
		{"stall", "CKPTSYNC_STALL", "stall", "DURATION", "give up a connection on which no byte moves for so long (default 30s)", length(func(f *file) *Duration { return &f.Stall })},
		{"until_pid", "CKPTSYNC_UNTIL_PID", "until-pid", "PID", "end, after the drain, once that process has ended: the trainer", func(f *file, v string) (err error) {
			if f.UntilPID, err = strconv.Atoi(v); err != nil {
				return fmt.Errorf("%q is not the number of a process", v)
			}
			return nil
		}},
		{"until_file", "CKPTSYNC_UNTIL_FILE", "until-file", "PATH", "end, after the drain, once that file is there: the trainer has ended", text(func(f *file) *string { return &f.UntilFile })},
		{"notices", "CKPTSYNC_NOTICES", "notices", "CLOUD", "ask the machine's cloud whether it is to be taken away: aws, gcp, azure, auto or off (default off)", text(func(f *file) *string { return &f.Notices })},
		{"notices_endpoint", "CKPTSYNC_NOTICES_ENDPOINT", "notices-endpoint", "URL", "where to ask (default http://169.254.169.254)", text(func(f *file) *string { return &f.NoticesEndpoint })},
	}
}

// loader carries one Load.
type loader struct {
	in    Input
	path  string // of the file
	raw   file
	lines map[string]int   // where keys stand in the file
	from  map[string]place // settings that came from the environment or a flag
	ps    problems

	patterns []Pattern
}

// Load reads and checks everything. Its error is an *Error that lists every
// problem.
func Load(in Input) (*Config, error) {
	_, cfg, err := gather(in)
	return cfg, err
}

// gather is Load, with what it knows besides.
func gather(in Input) (*loader, *Config, error) {
	l := &loader{in: in, lines: map[string]int{}, from: map[string]place{}}
	l.raw = file{
		ScanInterval: Duration(DefaultScanInterval),
		Grace:        Duration(DefaultGrace),
		Concurrency:  DefaultConcurrency,
		UnreadyAfter: Duration(DefaultUnreadyAfter),
		Memory:       DefaultMemory,
		EarlyUpload:  true,
		DropCache:    DropAuto,
	}
	l.readFile()
	chosen := l.overrides()
	cfg := l.build(chosen)
	if err := l.ps.err(l.path); err != nil {
		return nil, nil, err
	}
	return l, cfg, nil
}

func (l *loader) readFile() {
	named, at := l.in.File, "--config"
	if named == "" {
		named, at = l.in.Getenv("CKPTSYNC_CONFIG"), "$CKPTSYNC_CONFIG"
	}
	l.path = find(l.in.Dir, named)
	if l.path == "" {
		return
	}
	data, err := readFile(l.path)
	if err != nil {
		if named == "" {
			at = ""
		}
		l.ps.add(place{name: at}, "cannot read it: %v", err)
		return
	}
	l.lines = decode(data, &l.raw, &l.ps)
}

// overrides applies the environment and then the flags to l.raw. Where the
// file lists several runs, the name among them chooses one and is returned.
func (l *loader) overrides() (chosen string) {
	top := l.raw.Run
	for _, s := range Settings() {
		value, at := l.in.Getenv(s.Env), place{name: "$" + s.Env}
		if v, ok := l.in.Flags[s.Flag]; ok {
			value, at = v, place{name: "--" + s.Flag}
			if v == "" && s.Key != "listen" {
				l.ps.add(at, "it is empty")
				continue
			}
		}
		if value == "" {
			continue
		}
		l.from[s.Key] = at
		if err := s.set(&l.raw, value); err != nil {
			l.ps.add(at, "%v", err)
		}
	}
	if _, given := l.from["run"]; given && len(l.raw.Runs) > 0 {
		chosen, l.raw.Run = l.raw.Run, top
	}
	return chosen
}

// at says where the setting of that path came from. For a setting of a listed
// run, key is its path in the file and shared the same setting's at the top.
func (l *loader) at(keys ...string) place {
	p, _ := l.where(keys...)
	return p
}

// where is at, and whether the setting came from anywhere.
func (l *loader) where(keys ...string) (p place, given bool) {
	for _, k := range keys {
		if p, ok := l.from[k]; ok {
			return p, true
		}
		if n, ok := l.lines[k]; ok {
			return place{line: n}, true
		}
	}
	return place{}, false
}

// base is the directory that a relative path of the setting begins at: that of
// the file if it stands there, else the working directory.
func (l *loader) base(key string) string {
	if _, ok := l.from[key]; ok || l.path == "" {
		return l.in.Dir
	}
	return filepath.Dir(l.path)
}
