package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// file is the configuration file as it is written.
type file struct {
	Run      string        `yaml:"run"`
	Store    string        `yaml:"store"`
	Root     string        `yaml:"root"`
	Layout   string        `yaml:"layout"`
	StateDir string        `yaml:"state_dir"`
	Runs     []fileRun     `yaml:"runs"`
	Layouts  []layout.Spec `yaml:"layouts"`

	Settle             *Duration      `yaml:"settle"`
	ScanInterval       Duration       `yaml:"scan_interval"`
	Grace              Duration       `yaml:"grace"`
	Listen             string         `yaml:"listen"`
	UnreadyAfter       Duration       `yaml:"unready_after"`
	Concurrency        int            `yaml:"concurrency"`
	Memory             Size           `yaml:"memory"`
	EarlyUpload        bool           `yaml:"early_upload"`
	Bandwidth          Bandwidth      `yaml:"bandwidth"`
	Nice               bool           `yaml:"nice"`
	Direct             bool           `yaml:"direct"`
	DropCache          string         `yaml:"drop_cache"`
	Patience           Duration       `yaml:"patience"`
	Stall              Duration       `yaml:"stall"`
	Retention          *fileRetention `yaml:"retention"`
	Local              *fileLocal     `yaml:"local"`
	Nodes              string         `yaml:"nodes"`
	Node               string         `yaml:"node"`
	Join               string         `yaml:"join"`
	JoinTimeout        Duration       `yaml:"join_timeout"`
	SignKey            string         `yaml:"sign_key"`
	VerifyKeys         []string       `yaml:"verify_key"`
	AgeIdentity        string         `yaml:"age_identity"`
	AgeRecipients      []string       `yaml:"age_recipient"`
	Log                fileLog        `yaml:"log"`
	StopWhenSuperseded bool           `yaml:"stop_when_superseded"`
	CrashLoop          int            `yaml:"crash_loop"`
	UntilPID           int            `yaml:"until_pid"`
	UntilFile          string         `yaml:"until_file"`
	Notices            string         `yaml:"notices"`
	NoticesEndpoint    string         `yaml:"notices_endpoint"`
	Hooks              []fileHook     `yaml:"hooks"`
}

type fileRun struct {
	Name      string         `yaml:"name"`
	Root      string         `yaml:"root"`
	Roots     string         `yaml:"roots"`
	MaxRuns   *int           `yaml:"max_runs"`
	Layout    string         `yaml:"layout"`
	StateDir  string         `yaml:"state_dir"`
	Settle    *Duration      `yaml:"settle"`
	Retention *fileRetention `yaml:"retention"`
	Local     *fileLocal     `yaml:"local"`
}

type fileLog struct {
	Format string `yaml:"format"`
	Level  string `yaml:"level"`
}

// readFile returns the content of a configuration file.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is larger than %d bytes; is it a configuration?", maxFile)
	}
	return data, err
}

// decode reads a file's content into *into, strictly. It returns where each
// key stands, by its path ("runs[0].root").
func decode(data []byte, into *file, ps *problems) map[string]int {
	lines := map[string]int{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	err := dec.Decode(into)
	if errors.Is(err, io.EOF) {
		return lines // nothing but comments
	}
	addYAML(err, ps)
	var typed *yaml.TypeError
	if err != nil && !errors.As(err, &typed) {
		return lines // not YAML at all: there is nothing more to say
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		ps.add(place{}, "it holds more than one YAML document; only one is read")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err == nil {
		index(&doc, "", lines)
	}
	return lines
}

// index records the line of every key below n.
func index(n *yaml.Node, path string, lines map[string]int) {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			index(c, path, lines)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			lines[at] = c.Line
			index(c, at, lines)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := strings.TrimPrefix(path+"."+n.Content[i].Value, ".")
			lines[at] = n.Content[i].Line
			index(n.Content[i+1], at, lines)
		}
	}
}

var (
	yamlLine    = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	yamlUnknown = regexp.MustCompile(`^field (.+) not found in type (\S+)$`)
	yamlTwice   = regexp.MustCompile(`^mapping key "(.*)" already defined at line (\d+)$`)
	yamlSetTwo  = regexp.MustCompile(`^field (.+) already set in type \S+$`)
	yamlKind    = regexp.MustCompile("^cannot unmarshal !!(\\S+)(?: `(.*)`)? into (\\S+)$")
)

// addYAML says in a user's words what the decoder says in Go's.
func addYAML(err error, ps *problems) {
	if err == nil {
		return
	}
	var typed *yaml.TypeError
	if !errors.As(err, &typed) {
		typed = &yaml.TypeError{Errors: []string{err.Error()}}
	}
	for _, e := range typed.Errors {
		at, text := place{}, strings.TrimPrefix(e, "yaml: ")
		if m := yamlLine.FindStringSubmatch(e); m != nil {
			at.line, _ = strconv.Atoi(m[1])
			text = m[2]
		}
		ps.add(at, "%s", reword(text))
	}
}

func reword(text string) string {
	if m := yamlUnknown.FindStringSubmatch(text); m != nil {
		switch near := nearest(m[1], keysOf(m[2])); {
		case secretName(m[1]):
			return fmt.Sprintf("unknown key %q; secrets come from the environment or from files that the store's client reads, never from the configuration", m[1])
		case near != "":
			return fmt.Sprintf("unknown key %q; did you mean %q?", m[1], near)
		}
		return fmt.Sprintf("unknown key %q; here the keys are: %s", m[1], strings.Join(keysOf(m[2]), ", "))
	}
	if m := yamlTwice.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("key %q stands twice; first at line %s", m[1], m[2])
	}
	if m := yamlSetTwo.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("key %q stands twice", m[1])
	}
	if m := yamlKind.FindStringSubmatch(text); m != nil {
		got := map[string]string{"map": "a group of keys", "seq": "a list"}[m[1]]
		if got == "" {
			got = strconv.Quote(m[2])
		}
		return fmt.Sprintf("%s stands where %s is wanted", got, wanted(m[3]))
	}
	return text
}

// wanted names a Go type for people.
func wanted(goType string) string {
	switch {
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case goType == "string":
		return "a text"
	case goType == "bool":
		return "true or false"
	case goType == "time.Duration":
		return "a duration with its unit, as 5s,"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	}
	return "a group of keys"
}

// keysOf lists the keys of one of the structs that the file is decoded into.
func keysOf(goType string) []string {
	for _, v := range []any{file{}, fileRun{}, fileRetention{}, fileBest{}, fileLocal{}, fileLog{}, fileHook{}, fileValue{}, layout.Spec{}, layout.Pointer{}} {
		t := reflect.TypeOf(v)
		if t.String() != goType {
			continue
		}
		var keys []string
		for i := range t.NumField() {
			key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			keys = append(keys, key)
		}
		return keys
	}
	return nil
}

// nearest returns the key that a typing error away from got, if there is one.
func nearest(got string, keys []string) string {
	norm := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best, dist := "", 3
	for _, k := range keys {
		if d := distance(norm(got), norm(k)); d < dist && d < len(k) {
			best, dist = k, d
		}
	}
	return best
}

// distance is how many letters must be changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			next := diag
			if a[i-1] != b[j-1] {
				next = 1 + min(diag, row[j], row[j-1])
			}
			diag, row[j] = row[j], next
		}
	}
	return row[len(b)]
}

// EncodeLayouts writes layouts as they would stand in a configuration file.
func EncodeLayouts(specs []layout.Spec) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(map[string][]layout.Spec{"layouts": specs}); err != nil {
		return nil, fmt.Errorf("encode layouts: %w", err)
	}
	return b.Bytes(), enc.Close()
}

// find returns the file to read: the one that was named, or ckptsync.yaml in
// dir if there is one, or none.
func find(dir, named string) string {
	if named != "" {
		if !filepath.IsAbs(named) {
			named = filepath.Join(dir, named)
		}
		return named
	}
	if def := filepath.Join(dir, "ckptsync.yaml"); isThere(def) {
		return def
	}
	return ""
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
