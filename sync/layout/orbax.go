package layout

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of Orbax.
const (
	orbaxName     = "orbax"
	orbaxMetadata = "_CHECKPOINT_METADATA"
	orbaxSuccess  = "commit_success.txt"
	orbaxTree     = "_METADATA"
	orbaxStrings  = "_strings.json" // leaves that are strings
	orbaxManifest = "manifest.ocdbt"
	orbaxJSON     = "metadata" // in a JSON item
	orbaxMetrics  = "metrics"  // the item of the manager's metrics, and the file in it
)

// orbaxStep is what Orbax itself takes for a step: digits, or a prefix that
// ends in an underscore and digits.
var orbaxStep = regexp.MustCompile(`\A(?:[^/]*_)?([0-9]{1,18})\z`)

// orbax is the layout of Orbax's CheckpointManager, which Flax, MaxText and
// Keras save by as well.
type orbax struct{}

// Name implements Layout.
func (orbax) Name() string { return orbaxName }

// Depth implements Layout.
func (orbax) Depth() int { return 1 }

// Match implements Layout.
func (orbax) Match(name string, dir bool) (Step, bool) {
	m := orbaxStep.FindStringSubmatch(name)
	if m == nil || !dir {
		return Step{}, false
	}
	return Step{Name: name, Number: digits(m[1]), Dir: true, Layout: orbaxName}, true
}

// Doubts implements Doubter.
func (orbax) Doubts(string) bool { return true }

// Probe implements Prober.
func (orbax) Probe(fsys fs.FS, s Step) Likeness {
	switch {
	case exists(fsys, path.Join(s.Name, orbaxMetadata)):
		return Surely
	case exists(fsys, path.Join(s.Name, orbaxSuccess)), exists(fsys, path.Join(s.Name, orbaxManifest)):
		return Maybe
	}
	return Hardly
}

// Spec implements Layout.
func (orbax) Spec() Spec {
	return Spec{
		Name:        orbaxName,
		Description: "Orbax, and what saves by it: JAX, Flax, MaxText, Keras",
		Step:        "{step}",
		Required:    []string{orbaxMetadata},
		Marker:      orbaxMetadata,
		Late:        []string{orbaxSuccess},
		Settle:      ProofSettle,
		Code: "a prefix that ends in _ may stand before the number; _CHECKPOINT_METADATA says when the step was committed, commit_success.txt is there if " +
			"an item has one; each item that it names is there with what its kind needs; a tree of arrays with a component that begins with " +
			"opt resumes exactly; every data file that OCDBT's manifests and trees lead to is there and reaches as far (what the arrays in them hold is not looked at)",
	}
}

// Judge implements Layout.
func (orbax) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := &orbaxJudge{judge: newJudge(t, nil)}
	j.checkFiles()
	j.v.Strength, j.v.Settle = Proof, ProofSettle
	j.items(j.metadata())
	j.commitFile()
	j.resume()
	var evidence []string
	for _, rel := range []string{orbaxMetadata, orbaxSuccess} {
		if j.files[rel] != nil {
			evidence = append(evidence, rel)
		}
	}
	j.vouch(evidence, nil)
	return j.verdict(), nil
}

type orbaxJudge struct {
	*judge
	trees  int  // items that are trees of arrays
	known  bool // every item is such a tree, or JSON, and could be read
	opt    bool // one has an optimizer's state
	params bool // all trees are named as weights are
}

// metadata reads the step's own metadata: its items and their handlers.
func (j *orbaxJudge) metadata() (items map[string]string) {
	if j.files[orbaxMetadata] == nil {
		j.missing(orbaxMetadata)
		return nil
	}
	if j.broken[orbaxMetadata] {
		return nil
	}
	v, _ := j.jsonValue(orbaxMetadata).(map[string]any)
	if at, ok := v["commit_timestamp_nsecs"].(int64); !ok || at <= 0 {
		j.spoil(orbaxMetadata, "%s has no commit_timestamp_nsecs: the save is under way, or was cut off", orbaxMetadata)
		return nil
	}
	items = map[string]string{}
	switch h := v["item_handlers"].(type) {
	case string:
		items["."] = h
	case map[string]any:
		for name, handler := range h {
			items[name], _ = handler.(string)
		}
	}
	return items
}

// items judges each item that the metadata names.
func (j *orbaxJudge) items(items map[string]string) {
	j.known, j.params = len(items) > 0, true
	for name, handler := range items {
		if name != "." && (!fs.ValidPath(name) || !j.hasDir(name)) {
			j.absentf("missing item %s, which %s names", name, orbaxMetadata)
			j.known = false
			continue
		}
		switch lower := strings.ToLower(handler); {
		case strings.Contains(lower, "pytree"), strings.Contains(lower, "standard"):
			j.arrays(name)
		case strings.Contains(lower, "json"):
			j.json(name)
		default:
			j.known = false
			if len(j.below(name)) == 0 {
				j.absentf("item %s holds no file", name)
			}
		}
	}
}

// json judges an item that is a JSON file, whose name the script may choose.
func (j *orbaxJudge) json(item string) {
	found := false
	for _, rel := range j.below(item) {
		if path.Base(rel) != orbaxSuccess {
			found = true
			j.wholeJSON(rel)
		}
	}
	if found {
		return
	}
	rel := path.Join(item, orbaxJSON)
	if path.Base(item) == orbaxMetrics {
		rel = path.Join(item, orbaxMetrics)
	}
	j.missing(rel)
}

// below are the files of an item.
func (j *orbaxJudge) below(name string) []string {
	if name == "." {
		return j.sorted
	}
	return slices.DeleteFunc(slices.Clone(j.sorted), func(rel string) bool { return !strings.HasPrefix(rel, name+"/") })
}

// arrays judges an item that is a tree of arrays.
func (j *orbaxJudge) arrays(item string) {
	j.trees++
	base := path.Base(item)
	j.params = j.params && (base == "params" || base == "model" || base == "variables" || base == "weights")
	j.opt = j.opt || strings.HasPrefix(base, "opt")
	tree := orbaxLeaves{ocdbt: true, arrays: true}
	if rel := path.Join(item, orbaxTree); j.files[rel] == nil {
		j.missing(rel)
		j.known = false
	} else if !j.broken[rel] {
		tree = j.tree(rel)
	}
	if rel := path.Join(item, orbaxStrings); tree.strings && j.files[rel] == nil {
		j.missing(rel)
	}
	if !tree.ocdbt || !tree.arrays {
		return // zarr: files without a list; or nothing to keep in such files
	}
	known, data := j.database(item), 0
	processes := map[string]bool{}
	for _, rel := range j.below(item) {
		inner := strings.TrimPrefix(rel, item+"/")
		first, rest, _ := strings.Cut(inner, "/")
		if strings.HasPrefix(first, "ocdbt.process_") {
			processes[first] = processes[first] || rest == orbaxManifest
		}
		if path.Base(path.Dir(rel)) == "d" {
			data++
		}
	}
	if data == 0 && !known {
		j.missing(path.Join(item, "d"))
	}
	for p := range processes {
		j.database(path.Join(item, p))
	}
	j.processes(item, processes)
	j.wholeJSON(path.Join(item, "_sharding"))
}

// wholeJSON checks a file that is JSON without saying so in its name.
func (j *orbaxJudge) wholeJSON(rel string) {
	if j.files[rel] == nil || j.broken[rel] {
		return
	}
	f, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return
	}
	defer f.Close()
	r := format.NewJSON(io.NewSectionReader(f, 0, f.size))
	if err = r.Skip(); err == nil {
		err = r.End()
	}
	if err != nil {
		j.spoil(rel, "%s: not valid JSON: %v", rel, err)
	}
}

// processes holds the directories of the processes that wrote arrays against
// the descriptions that each left of its arrays.
func (j *orbaxJudge) processes(item string, wrote map[string]bool) {
	dir := path.Join(item, "array_metadatas")
	for _, rel := range j.sorted {
		if n, ok := numbered(path.Base(rel), "process_", ""); ok && path.Dir(rel) == dir {
			p := fmt.Sprintf("ocdbt.process_%d", n)
			j.wholeJSON(rel)
			if _, there := wrote[p]; !there && len(wrote) > 0 {
				j.missing(path.Join(item, p))
			}
		}
	}
}

// commitFile asks for the step's commit_success.txt where its items have one.
func (j *orbaxJudge) commitFile() {
	if j.files[orbaxSuccess] != nil {
		return
	}
	for _, rel := range j.sorted {
		if path.Base(rel) == orbaxSuccess {
			j.missing(orbaxSuccess)
			return
		}
	}
}

// resume tells by names alone: what is in a step is the user's own.
func (j *orbaxJudge) resume() {
	switch {
	case j.opt:
		j.v.Resume = commit.ResumeExact
	case j.known && j.trees > 0 && j.params:
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"opt_state"}
	}
}
