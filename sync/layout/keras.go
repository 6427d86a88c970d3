package layout

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of Keras's BackupAndRestore.
const (
	kerasName     = "keras"
	kerasWeights  = "latest.weights.h5"
	kerasMetadata = "training_metadata.json"
	kerasEpoch    = "epoch"
)

// kerasBackups are what BackupAndRestore copies the last save to, by release.
var kerasBackups = []string{"_" + kerasWeights, "_" + kerasMetadata, kerasWeights + ".bkp", kerasMetadata + ".bkp"}

// keras is the layout of keras.callbacks.BackupAndRestore: one directory in
// which every save overwrites two files.
type keras struct{}

// Name implements Layout.
func (keras) Name() string { return kerasName }

// Depth implements Layout.
func (keras) Depth() int { return 1 }

// Match implements Layout. The number is for Number to find.
func (keras) Match(name string, dir bool) (Step, bool) {
	if !dir || strings.Contains(name, "/") {
		return Step{}, false
	}
	return Step{Name: name, Dir: true, Layout: kerasName}, true
}

// Doubts implements Doubter.
func (keras) Doubts(string) bool { return true }

// Probe implements Prober.
func (keras) Probe(fsys fs.FS, s Step) Likeness {
	if exists(fsys, path.Join(s.Name, kerasMetadata)) || exists(fsys, path.Join(s.Name, kerasWeights)) {
		return Surely
	}
	return Hardly
}

// Spec implements Layout.
func (keras) Spec() Spec {
	return Spec{
		Name:        kerasName,
		Description: "keras.callbacks.BackupAndRestore: one directory, overwritten by every save",
		Step:        "*",
		Required:    []string{kerasWeights, kerasMetadata},
		Marker:      kerasMetadata,
		Ignore:      append([]string(nil), kerasBackups...),
		Settle:      DefaultSettle,
		Cumulative:  true,
		Code: "any directory with these files is a step, also the root itself; its number is the epoch in training_metadata.json, and a save within the " +
			"epoch is a revision; the copies that Keras keeps of the save before are left out; a weights file with the group optimizer resumes exactly",
	}
}

// Number implements Numberer.
func (keras) Number(fsys fs.FS, s Step) (int64, error) {
	v, err := smallJSON(fsys, path.Join(s.Name, kerasMetadata))
	if err != nil {
		if !exists(fsys, path.Join(s.Name, kerasMetadata)) {
			return 0, fmt.Errorf("%s is not there yet", kerasMetadata)
		}
		return 0, err
	}
	m, _ := v.(map[string]any)
	n, ok := m[kerasEpoch].(int64)
	if !ok || n < 0 {
		return 0, fmt.Errorf("%s says no %s", kerasMetadata, kerasEpoch)
	}
	return n, nil
}

// Judge implements Layout.
func (k keras) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, kerasBackups)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	if j.files[kerasWeights] == nil {
		j.missing(kerasWeights)
	}
	if j.files[kerasMetadata] == nil {
		j.missing(kerasMetadata)
		j.vouch(nil, nil)
		return j.verdict(), nil
	}
	j.vouchFor([]string{kerasMetadata}, func(rel string) bool { return rel == kerasWeights })
	if j.broken[kerasMetadata] {
		return j.verdict(), nil
	}
	switch n, err := k.Number(fsys, s); {
	case err != nil:
		j.spoil(kerasMetadata, "%s", strings.TrimPrefix(cause(err), ErrNoStep.Error()+": "))
	case n != s.Number:
		j.spoil(kerasMetadata, "%s says epoch %d, where the step was found to be %d: it is being saved again", kerasMetadata, n, s.Number)
	}
	if v, _ := j.jsonValue(kerasMetadata).(map[string]any); v != nil {
		j.v.meta(kerasEpoch, v[kerasEpoch])
		j.v.meta("batch", v["batch"])
	}
	j.kerasOptimizer()
	return j.verdict(), nil
}

// kerasOptimizer looks for the group of the optimizer's variables, which the
// weights file of a compiled model has beside that of the layers: the names of
// its outermost groups lie near the file's beginning.
func (j *judge) kerasOptimizer() {
	if j.files[kerasWeights] == nil || j.broken[kerasWeights] {
		return
	}
	f, err := j.open(kerasWeights)
	if err != nil {
		return
	}
	defer f.Close()
	b := make([]byte, min(f.size, 64<<10))
	if n, _ := f.ReadAt(b, 0); bytes.Contains(b[:n], []byte("\x00optimizer\x00")) {
		j.v.Resume = commit.ResumeExact
	}
}
