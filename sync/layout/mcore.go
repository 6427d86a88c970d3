package layout

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of Megatron core's checkpoints.
const (
	mcoreMetadata  = "metadata.json"
	mcoreCommon    = "common.pt"
	mcoreIntegrity = "integrity.json"
	mcoreTracker   = "latest_checkpointed_iteration.txt"
)

// mcoreDir is one Megatron core checkpoint in a step, as it is being judged.
type mcoreDir struct {
	*judge
	dir     string // relative to the step
	backend string // sharded_backend of metadata.json; "" if there is none
	dcp     *dcpDir
}

// checkMCore judges a directory that Megatron core wrote: torch_dist, whose
// metadata.json comes last, or torch_dcp, which is a distributed checkpoint
// and no more. It returns what vouches for it, and for which files.
func (j *judge) checkMCore(dir string) (m *mcoreDir) {
	m = &mcoreDir{judge: j, dir: dir}
	config := path.Join(dir, mcoreMetadata)
	if j.files[config] != nil {
		m.backend = m.config(config)
	}
	if m.backend == "zarr" {
		j.warnf("%s says zarr: what its arrays hold was not checked", config)
		m.common(true)
		return m
	}
	if m.dcp = j.dcps[dir]; m.dcp == nil {
		j.checkDCP(dir)
		m.dcp = j.dcps[dir]
	}
	switch {
	case j.files[config] != nil:
	case m.dcp.known && !m.plain():
		j.missing(config) // it says that torch_dist is complete
	case !m.dcp.known && len(m.dcp.evidence) == 0:
		j.missing(config)
	}
	m.common(m.dcp.known && !m.plain() && !m.dcp.has("common_state"))
	m.integrity()
	return m
}

// plain reports whether the metadata is torch's alone: then the state lies in
// the checkpoint under the names that the trainer gives it, and there is no
// metadata.json.
func (m *mcoreDir) plain() bool {
	for _, k := range m.dcp.keys {
		if k.MCore {
			return false
		}
	}
	return m.backend == "" && (m.dcp.has("iteration") || m.dcp.has("checkpoint_version") || m.dcp.has("args") || m.dcp.has("model"))
}

// config reads sharded_backend from metadata.json.
func (m *mcoreDir) config(rel string) string {
	if m.broken[rel] {
		return ""
	}
	v := m.jsonValue(rel)
	d, ok := v.(map[string]any)
	backend, ok2 := d["sharded_backend"].(string)
	if !ok || !ok2 || backend == "" {
		m.spoil(rel, "%s says no sharded_backend", rel)
	}
	return backend
}

// maxJSON bounds a JSON file that is read whole, in bytes of its values.
const maxJSON = 4 << 20

// jsonValue reads a small JSON file; nil if it cannot be read.
func (j *judge) jsonValue(rel string) any {
	f, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return nil
	}
	defer f.Close()
	v, err := format.NewJSON(io.NewSectionReader(f, 0, f.size)).Value(maxJSON)
	if err != nil {
		return nil // which has a reason already
	}
	return v
}

// common judges common.pt, which newer releases keep among the items.
func (m *mcoreDir) common(wanted bool) {
	if rel := path.Join(m.dir, mcoreCommon); wanted && m.files[rel] == nil {
		if m.dcp == nil {
			m.missing(rel)
			return
		}
		m.absentf("missing %s, as no item common_state is in %s", rel, list(m.dcp.evidence))
	}
}

// integrity looks whether the files that integrity.json has hashes of are
// there. Their hashes are for the trainer to verify.
func (m *mcoreDir) integrity() {
	rel := path.Join(m.dir, mcoreIntegrity)
	if m.files[rel] == nil || m.broken[rel] {
		return
	}
	v, _ := m.jsonValue(rel).(map[string]any)
	for _, key := range []string{"files", "hashes"} { // or the names at the top
		if inner, ok := v[key].(map[string]any); ok {
			v = inner
		}
	}
	for name, x := range v {
		hash, ok := x.(string)
		if ok = ok && len(hash) == 64 && strings.Trim(hash, "0123456789abcdefABCDEF") == ""; !ok {
			continue
		}
		if p := path.Join(m.dir, name); fs.ValidPath(name) && m.files[p] == nil && !slices.Contains(m.skip, p) {
			m.absentf("%s names missing %s", rel, p)
		}
	}
}

// evidence is what is written last of it.
func (m *mcoreDir) evidence() []string {
	if rel := path.Join(m.dir, mcoreMetadata); m.files[rel] != nil {
		return []string{rel}
	}
	if m.dcp != nil {
		return m.dcp.evidence
	}
	return nil
}

// covers reports whether its evidence vouches for a file.
func (m *mcoreDir) covers(rel string) bool {
	switch {
	case rel == path.Join(m.dir, mcoreCommon), slices.Contains(m.evidence(), rel):
		return true
	case m.dcp != nil:
		return m.dcp.covers(rel)
	}
	return m.dir == "." || strings.HasPrefix(rel, m.dir+"/")
}

// resume says what it resumes: Megatron keeps optimizer and random states
// among the items.
func (m *mcoreDir) resume() {
	if m.dcp == nil || !m.dcp.known {
		return
	}
	m.v.Resume = commit.ResumeExact
	if !m.dcp.hasPart("optimizer") && !m.dcp.hasPart("exp_avg") {
		m.v.Resume, m.v.Missing = commit.ResumeWeights, append(m.v.Missing, "an optimizer in "+list(m.dcp.evidence))
	}
	if !m.dcp.has("rng_state") && !m.dcp.hasPart("rng_state") {
		m.v.Resume, m.v.Missing = commit.ResumeWeights, append(m.v.Missing, "rng_state in "+list(m.dcp.evidence))
	}
	if m.dcp.world > 0 {
		m.v.meta("world_size", int64(m.dcp.world))
	}
}

// maxTracker bounds a tracker file, in bytes.
const maxTracker = 64

// tracker reads a tracker file below the root: a number, or "release". ok is
// false if there is none or it cannot be read, as while it is being rewritten.
func tracker(fsys fs.FS, name string) (text string, n int64, ok bool) {
	f, err := fsys.Open(name)
	if err != nil {
		return "", 0, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTracker))
	if err != nil {
		return "", 0, false
	}
	text = strings.TrimSpace(string(b))
	n, err = strconv.ParseInt(text, 10, 64)
	return text, n, err == nil || text == "release"
}

// trackerReached reports whether the tracker in the root of the step says that
// the step, or a later one, was saved.
func trackerReached(fsys fs.FS, s Step) bool {
	text, n, ok := tracker(fsys, path.Join(path.Dir(s.Name), mcoreTracker))
	return ok && (text == path.Base(s.Name) || text != "release" && n >= s.Number)
}

// trackerOf is what the tracker says when it names the step.
func trackerOf(s Step) commit.Pointer {
	content := fmt.Sprint(s.Number)
	if path.Base(s.Name) == megatronRelease {
		content = megatronRelease
	}
	return commit.Pointer{Path: path.Join(path.Dir(s.Name), mcoreTracker), Content: content}
}
