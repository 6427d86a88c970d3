// Command promql runs unit tests of Prometheus alert rules: files of the form
// that `promtool test rules` takes, of which it knows rule_files,
// evaluation_interval, and tests with interval, input_series and
// alert_rule_test. The expressions are evaluated by Prometheus itself; promtool
// does the same, and takes six times as long to build.
//
//	promql FILE
//
// It also fails if an alert of the rule files is expected to fire in no test, or
// if no test expects all of them to be silent.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"go.yaml.in/yaml/v3"
)

// file is a test file.
type file struct {
	RuleFiles []string       `yaml:"rule_files"`
	Every     model.Duration `yaml:"evaluation_interval"`
	Tests     []test         `yaml:"tests"`
}

type test struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []series       `yaml:"input_series"`
	Alerts   []alertTest    `yaml:"alert_rule_test"`
}

type series struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

type alertTest struct {
	At    model.Duration `yaml:"eval_time"`
	Alert string         `yaml:"alertname"`
	Want  []struct {
		Labels map[string]string `yaml:"exp_labels"`
	} `yaml:"exp_alerts"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: promql FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	rules, err := load(filepath.Dir(path), f.RuleFiles)
	if err != nil {
		return err
	}
	var errs []error
	fired := map[string]bool{}
	silent := map[string]bool{}
	for _, t := range f.Tests {
		if err := t.run(time.Duration(f.Every), rules); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.Name, err))
		}
		for _, a := range t.Alerts {
			if len(a.Want) > 0 {
				fired[a.Alert] = true
			} else {
				silent[a.Alert] = true
			}
		}
	}
	for _, r := range rules {
		if !fired[r.Alert] || !silent[r.Alert] {
			errs = append(errs, fmt.Errorf("%s: some test must see it fire, and some must see it silent", r.Alert))
		}
	}
	if len(errs) == 0 {
		fmt.Printf("%d alerts, %d tests\n", len(rules), len(f.Tests))
	}
	return errors.Join(errs...)
}

// load returns the alerts of rule files.
func load(dir string, files []string) ([]rulefmt.Rule, error) {
	var rules []rulefmt.Rule
	for _, name := range files {
		groups, errs := rulefmt.ParseFile(filepath.Join(dir, name), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
		for _, g := range groups.Groups {
			rules = append(rules, g.Rules...)
		}
	}
	return rules, nil
}

// fatal stands in for a test's *testing.T where the library wants one.
type fatal struct{ testing.TB }

func (fatal) Helper()                   {}
func (fatal) Cleanup(func())            {}
func (fatal) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (fatal) FailNow()                  { panic("failed") }

// run evaluates every rule at every interval, as Prometheus does, and compares
// what fires.
func (t test) run(every time.Duration, rules []rulefmt.Rule) error {
	var load strings.Builder
	fmt.Fprintf(&load, "load %s\n", t.Interval)
	for _, s := range t.Series {
		fmt.Fprintf(&load, "  %s %s\n", s.Series, s.Values)
	}
	store := promqltest.LoadedStorage(fatal{}, load.String())
	defer store.Close()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	var errs []error
	for _, a := range t.Alerts {
		i := slices.IndexFunc(rules, func(r rulefmt.Rule) bool { return r.Alert == a.Alert })
		if i < 0 {
			errs = append(errs, fmt.Errorf("there is no alert %s", a.Alert))
			continue
		}
		got, err := firing(engine, store, &rules[i], every, time.Duration(a.At))
		if err != nil {
			return err
		}
		var want []string
		for _, w := range a.Want {
			want = append(want, labels.FromMap(w.Labels).String())
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			errs = append(errs, fmt.Errorf("%s at %s: fires for %v, want %v", a.Alert, a.At, got, want))
		}
	}
	return errors.Join(errs...)
}

// firing are the label sets for which a rule fires at a time: its expression has
// had them at every evaluation for as long as the rule says.
func firing(engine *promql.Engine, store storage.Queryable, r *rulefmt.Rule, every, at time.Duration) ([]string, error) {
	since := map[string]time.Duration{}
	var now map[string]bool
	for ts := time.Duration(0); ts <= at; ts += every {
		q, err := engine.NewInstantQuery(context.Background(), store, nil, r.Expr, time.Unix(0, 0).Add(ts))
		if err != nil {
			return nil, err
		}
		v, err := q.Exec(context.Background()).Vector()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Alert, err)
		}
		now = map[string]bool{}
		for _, s := range v {
			b := labels.NewBuilder(s.Metric).Del(labels.MetricName)
			for k, l := range r.Labels {
				b.Set(k, l)
			}
			key := b.Labels().String()
			now[key] = true
			if _, ok := since[key]; !ok {
				since[key] = ts
			}
		}
		q.Close()
		for key := range since {
			if !now[key] {
				delete(since, key)
			}
		}
	}
	var out []string
	for key := range now {
		if at-since[key] >= time.Duration(r.For) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out, nil
}
