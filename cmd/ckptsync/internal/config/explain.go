package config

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/sync/retain"
)

// Effective is one setting as it holds.
type Effective struct {
	Key   string `json:"key"`             // in the file
	Value string `json:"value,omitempty"` // as it is written; empty: not set
	From  string `json:"from"`            // "line 12", "$CKPTSYNC_GRACE", "--grace" or "default"
}

// EffectiveRun is one run as it is served.
type EffectiveRun struct {
	Name     string      `json:"name,omitempty"`
	Settings []Effective `json:"settings"`
}

// Explained is a whole configuration with where each setting comes from. It
// holds no secret.
type Explained struct {
	File     string         `json:"file,omitempty"`
	Settings []Effective    `json:"settings"`
	Runs     []EffectiveRun `json:"runs"`
	Patterns []string       `json:"patterns,omitempty"` // what runs are discovered by
	Layouts  []string       `json:"layouts,omitempty"`  // the user's own
}

// Explain is Load, and says where each setting comes from.
func Explain(in Input) (*Explained, *Config, error) {
	l, cfg, err := gather(in)
	if err != nil {
		return nil, nil, err
	}
	x := &Explained{File: l.path, Settings: []Effective{}, Runs: []EffectiveRun{}}
	l.explain(reflect.ValueOf(l.raw), "", x)
	for _, r := range cfg.Runs {
		x.Runs = append(x.Runs, l.explainRun(r))
	}
	for _, p := range cfg.Patterns {
		x.Patterns = append(x.Patterns, p.Roots)
	}
	for _, s := range cfg.Layouts {
		x.Layouts = append(x.Layouts, s.Name)
	}
	return x, cfg, nil
}

// explain adds what stands at the top of the file; what each run has is in its own.
func (l *loader) explain(v reflect.Value, prefix string, x *Explained) {
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		key = prefix + key
		switch f := v.Field(i); {
		case key == "run" || key == "root" || key == "layout" || key == "state_dir" || key == "runs" || key == "layouts" || key == "settle" || key == "retention":
		case key == "store":
			st, _ := ParseStore(f.String()) // it was checked
			x.Settings = append(x.Settings, Effective{key, st.String(), l.origin(key)})
		case f.Kind() == reflect.Struct:
			l.explain(f, key+".", x)
		case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
			if !f.IsNil() {
				l.explain(f.Elem(), key+".", x)
			}
		default:
			x.Settings = append(x.Settings, Effective{key, written(f), l.origin(key)})
		}
	}
}

// origin says where the setting of the first of these paths that is set comes from.
func (l *loader) origin(keys ...string) string {
	if p, ok := l.where(keys...); ok {
		return p.String()
	}
	return "default"
}

func (l *loader) explainRun(r Run) EffectiveRun {
	key := r.entry + "."
	if r.entry == "" {
		key = ""
	}
	settle := "what its layout says"
	if r.Settle != nil {
		settle = r.Settle.String()
	}
	at := func(name string) string { return l.origin(key+name, name) }
	return EffectiveRun{Name: r.Name, Settings: []Effective{
		{"name", r.Name, l.origin(key+"name", "run")},
		{"root", r.Root, l.origin("root", key+"root", key+"roots")},
		{"state_dir", r.StateDir, l.origin("state_dir", key+"state_dir")},
		{"layout", r.Layout, at("layout")},
		{"settle", settle, at("settle")},
		{"retention", r.Retention.text(), at("retention")},
		{"local", r.Local.text(), at("local")},
	}}
}

// text is a retention as a person writes it.
func (r Retention) text() string {
	if !r.Enabled {
		return "every commit stays"
	}
	p := r.Policy
	parts := []string{fmt.Sprintf("keep_last %d", p.KeepLast)}
	if p.KeepEvery > 0 {
		parts = append(parts, fmt.Sprintf("keep_every %d", p.KeepEvery))
	}
	if p.KeepFor > 0 {
		parts = append(parts, "keep_for "+p.KeepFor.String())
	}
	if p.KeepBest != (retain.Best{}) {
		parts = append(parts, fmt.Sprintf("keep_best %d by %s", p.KeepBest.Count, p.KeepBest.Metric))
	}
	return strings.Join(append(parts, "keep_abandoned "+p.Aside.String(), "grace "+r.Grace.String()), ", ")
}

// written is a value as it may stand in the file; empty if it is not set.
func written(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case Bandwidth:
		return x.text()
	case Duration:
		if x == 0 {
			return ""
		}
		return x.String()
	case fmt.Stringer:
		return x.String()
	case string:
		return withoutSecrets(x)
	}
	switch {
	case v.Kind() == reflect.Slice && v.Len() == 0, v.Kind() == reflect.Map && v.Len() == 0:
		return ""
	case v.Kind() == reflect.Slice:
		var parts []string
		for i := range v.Len() {
			parts = append(parts, cmp.Or(written(v.Index(i)), "{}"))
		}
		return strings.Join(parts, ", ")
	case v.Kind() == reflect.Struct:
		var parts []string
		for i := range v.NumField() {
			if text := written(v.Field(i)); text != "" {
				key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
				parts = append(parts, key+" "+text)
			}
		}
		return strings.Join(parts, " ")
	}
	return fmt.Sprint(v.Interface())
}

// withoutSecrets hides what of a URL may be a secret: everything after the host,
// because the address of a webhook is its password.
func withoutSecrets(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return s
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return u.Scheme + "://" + u.Host + "/redacted"
	}
	return s
}

// text is a schedule as a person reads it.
func (b Bandwidth) text() string {
	rate := func(n int64) string {
		if n == 0 {
			return "none"
		}
		return Size(n).String() + "/s"
	}
	clock := func(d time.Duration) string { return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60) }
	var parts []string
	for _, w := range b {
		when := ""
		if w.From != 0 || w.To != 24*time.Hour || len(w.Days) > 0 {
			when = fmt.Sprintf("%s-%s ", clock(w.From), clock(w.To))
			for _, d := range w.Days {
				when += weekdays[d] + " "
			}
		}
		parts = append(parts, fmt.Sprintf("%sup %s, down %s", when, rate(w.Limit.Up), rate(w.Limit.Down)))
	}
	return strings.Join(parts, "; ")
}
