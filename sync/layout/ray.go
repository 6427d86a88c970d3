package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of Ray Train.
const (
	rayName     = "ray-train"
	raySnapshot = "checkpoint_manager_snapshot.json"
)

var (
	// rayTime is how Ray Train names a checkpoint: by the controller's clock.
	rayTime = regexp.MustCompile(`\Acheckpoint_([0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2})\.([0-9]{6})\z`)
	// rayIndex is how its first version did.
	rayIndex = regexp.MustCompile(`\Acheckpoint_([0-9]{6})\z`)
)

// ray is the layout of Ray Train, whose checkpoints hold whatever the script
// puts there.
type ray struct{}

// Name implements Layout.
func (ray) Name() string { return rayName }

// Depth implements Layout.
func (ray) Depth() int { return 1 }

// Match implements Layout. Where the name is a time, the number is that of the
// milliseconds since 1970, as if the clock had shown UTC.
func (ray) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	s := Step{Name: name, Dir: true, Layout: rayName}
	if m := rayIndex.FindStringSubmatch(name); m != nil {
		s.Number = digits(m[1])
		return s, true
	}
	m := rayTime.FindStringSubmatch(name)
	if m == nil {
		return Step{}, false
	}
	at, err := time.Parse("2006-01-02_15-04-05", m[1])
	if err != nil || at.Unix() < 0 {
		return Step{}, false
	}
	s.Number = at.UnixMilli() + digits(m[2])/1000
	return s, true
}

// Spec implements Layout.
func (ray) Spec() Spec {
	return Spec{
		Name:        rayName,
		Description: "Ray Train: checkpoints as the controller registers them, with whatever the script saved in them",
		Step:        "checkpoint_{step}",
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: raySnapshot, Content: `{"checkpoint_results": [{"checkpoint_dir_name": "{name}"}]}`}},
		Code: "a name is a time, and its milliseconds since 1970 are the number, or six digits; where checkpoint_manager_snapshot.json lies beside it, the step " +
			"is complete once it is named there, when all workers have reported; on restore the snapshot is cut down to the step, with the " +
			"metrics that it has of it",
	}
}

// Doubts implements Doubter.
func (ray) Doubts(name string) bool { return rayIndex.MatchString(name) }

// Probe implements Prober: what a checkpoint holds tells nothing, so that what
// lies beside it must.
func (ray) Probe(fsys fs.FS, s Step) Likeness {
	switch {
	case exists(fsys, raySnapshot), rayTime.MatchString(s.Name):
		return Surely
	case exists(fsys, path.Join(s.Name, ".metadata.json")), exists(fsys, "result.json"), exists(fsys, "params.pkl"):
		return Maybe
	}
	return Hardly
}

// Judge implements Layout.
func (ray) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	j.checkDCPs()
	if len(j.files) == 0 {
		j.absentf("holds no file")
	}
	j.vouch(nil, nil)
	j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	j.registered()
	return j.verdict(), nil
}

// raySnapshotOf is what the controller wrote of its checkpoints.
type raySnapshotOf struct {
	results []map[string]any
	top     map[string]any // the other members
}

// registered asks the controller's snapshot, if there is one beside the step.
// It names a step once every worker's files are there. Where it cannot be
// seen, as in one node's files, it says nothing.
func (j *judge) registered() {
	snap, err := readRaySnapshot(j.fsys)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		j.reasonf("%s: %s: it is being rewritten", raySnapshot, cause(err))
		return
	}
	for _, r := range snap.results {
		if r["checkpoint_dir_name"] != any(j.step.Name) {
			continue
		}
		j.v.Strength, j.v.Settle = Proof, DefaultSettle
		if metrics, ok := r["metrics"].(map[string]any); ok {
			for k, v := range metrics {
				switch v.(type) {
				case int64, float64, string, bool:
					j.v.meta(k, v)
				}
			}
		}
		if p, err := snap.only(r); err == nil {
			j.v.Pointers = []commit.Pointer{p}
		}
		return
	}
	j.reasonf("%s does not name %s: its workers are not done, or the controller let it go", raySnapshot, j.step.Name)
}

// readRaySnapshot reads the snapshot in the root.
func readRaySnapshot(fsys fs.FS) (*raySnapshotOf, error) {
	v, err := smallJSON(fsys, raySnapshot)
	if err != nil {
		return nil, err
	}
	top, _ := v.(map[string]any)
	list, ok := top["checkpoint_results"].([]any)
	if !ok {
		return nil, fmt.Errorf("says no checkpoint_results")
	}
	snap := &raySnapshotOf{top: top}
	for _, x := range append(list, top["latest_checkpoint_result"]) {
		if m, ok := x.(map[string]any); ok {
			snap.results = append(snap.results, m)
		}
	}
	return snap, nil
}

// only is the snapshot as it is when there is nothing but one checkpoint: Ray
// does not start if one that it names is not there.
func (s *raySnapshotOf) only(result map[string]any) (commit.Pointer, error) {
	top := map[string]any{}
	for k, v := range s.top {
		if !strings.Contains(k, "checkpoint") {
			top[k] = v
		}
	}
	top["checkpoint_results"], top["latest_checkpoint_result"] = []any{result}, result
	b, err := json.Marshal(top)
	return commit.Pointer{Path: raySnapshot, Content: string(b)}, err
}
