package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"go.yaml.in/yaml/v3"
)

// Size is a number of bytes, written as 128MiB, 1.5 GB or 4096.
type Size int64

// String is the size as a person writes it, as 128 MiB.
func (s Size) String() string { return humanize.IBytes(uint64(max(s, 0))) }

// ParseSize reads a size: a number with an optional unit, where kB, MB, GB are
// powers of 1000 and KiB, MiB, GiB of 1024. Zero and less is an error.
func ParseSize(s string) (Size, error) {
	n, err := humanize.ParseBytes(strings.TrimSpace(s))
	if err != nil || strings.HasPrefix(strings.TrimSpace(s), "-") {
		return 0, fmt.Errorf("%q is not a size; write it as 128MiB, 2GB or 4096", s)
	}
	if n == 0 || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no usable size", s)
	}
	return Size(n), nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, s, ParseSize)
}

// Duration is a length of time, written as 5s, 10m, 24h or 7d.
type Duration time.Duration

// String is the duration as it is written, as 1m30s.
func (d Duration) String() string { return time.Duration(d).String() }

// Std is the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// ParseDuration reads what time.ParseDuration does, and whole days (7d). A
// number without a unit is an error, and so is a negative one.
func ParseDuration(s string) (Duration, error) {
	wrong := fmt.Errorf("%q is not a duration; write it with its unit, as 500ms, 5s, 10m, 24h or 7d", s)
	s = strings.TrimSpace(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, wrong
		}
		return Duration(n) * Duration(24*time.Hour), nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, wrong
	case s == "0":
		return 0, nil
	case d < 0:
		return 0, fmt.Errorf("%q is negative", s)
	}
	return Duration(d), nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, d, ParseDuration)
}

// parseListen reads an address to listen on: host:port, a port of the loopback
// alone, as 9464 or :9464, or unix:PATH, relative to dir.
func parseListen(s, dir string) (string, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path == "" {
			return "", fmt.Errorf("%q names no path", s)
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		return "unix:" + filepath.Clean(path), nil
	}
	addr := s
	if !strings.Contains(s, ":") {
		addr = ":" + s
	}
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return "", fmt.Errorf("%q is not 9464, host:9464 or unix:PATH; a port alone is one of the loopback, and 0.0.0.0:9464 is reachable from everywhere", s)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// scalar parses a node into *to. Its error is the kind that the decoder
// collects, so that the problems after it are found as well.
func scalar[T any](n *yaml.Node, to *T, parse func(string) (T, error)) error {
	var v T
	err := errors.New("a single value is wanted here")
	if n.Kind == yaml.ScalarNode {
		v, err = parse(n.Value)
	}
	if err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", n.Line, err)}}
	}
	*to = v
	return nil
}
