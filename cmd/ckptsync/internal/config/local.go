package config

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Local says which committed steps a daemon removes from the root.
type Local struct {
	KeepLast int  // 0: none is ever removed
	MinFree  Free // only while less is free; zero: always
}

// Free is an amount of free space, written as a size or as a share of the file
// system: 200GiB, 15%.
type Free struct {
	Size    Size
	Percent float64
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (f *Free) UnmarshalYAML(n *yaml.Node) error { return scalar(n, f, ParseFree) }

// ParseFree reads an amount of free space.
func ParseFree(s string) (Free, error) {
	share, ok := strings.CutSuffix(strings.TrimSpace(s), "%")
	if !ok {
		size, err := ParseSize(s)
		return Free{Size: size}, err
	}
	p, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
	if err != nil || !(p > 0 && p < 100) {
		return Free{}, fmt.Errorf("%q is no share between 0%% and 100%%", s)
	}
	return Free{Percent: p}, nil
}

type fileLocal struct {
	KeepLast *int `yaml:"keep_last"`
	MinFree  Free `yaml:"min_free"`
}

func (l *loader) local(f *fileLocal, key string) Local {
	if f == nil {
		return Local{}
	}
	out := Local{KeepLast: DefaultKeepLast, MinFree: f.MinFree}
	if f.KeepLast != nil {
		out.KeepLast = *f.KeepLast
	}
	if out.KeepLast < 1 {
		l.ps.add(l.at(key+".keep_last", key), "local keep_last: %d: the newest step always stays; leave local: out to remove nothing", out.KeepLast)
	}
	return out
}

// text is what is done as a person writes it.
func (l Local) text() string {
	switch {
	case l.KeepLast == 0:
		return "no step is removed from the root"
	case l.MinFree == Free{}:
		return fmt.Sprintf("keep_last %d", l.KeepLast)
	}
	return fmt.Sprintf("keep_last %d, min_free %s", l.KeepLast, l.MinFree)
}

// String is the amount as it would be written.
func (f Free) String() string {
	if f.Percent > 0 {
		return strconv.FormatFloat(f.Percent, 'g', -1, 64) + "%"
	}
	return f.Size.String()
}
