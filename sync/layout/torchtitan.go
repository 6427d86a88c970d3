package layout

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

const (
	dcpName     = "dcp"
	titanName   = "torchtitan"
	dcpMetadata = ".metadata"
	hfIndex     = "model.safetensors.index.json"
)

var (
	dcpPattern   = mustCompile("*{step}")
	titanPattern = mustCompile("step-{step}")
	// dcpStepName are the names that people give such directories: a word and a
	// number, or a number alone; after an epoch's perhaps, which something other
	// than a digit parts from it.
	dcpStepName = regexp.MustCompile(`\A(?i)(?:(?:(?:epoch|ep)[-_=]?[0-9]{1,9}[-_]?)?` +
		`(?:checkpoints?|ckpt|global_?steps?|steps?|iteration|iter|it|epoch|ep|ba|batch|save|state|update)[-_=]?|` +
		`(?:(?:epoch|ep)[-_=]?[0-9]{1,9}[-_])?)([0-9]{1,18})\z`)
	// hfShardName is what DCP's writer of Hugging Face files calls one: the
	// number of the rank's shard, of the file, and of all files.
	hfShardName = regexp.MustCompile(`\Ashard-([0-9]{1,9})-model-([0-9]{1,9})-of-([0-9]{1,9})\.safetensors\z`)
)

// dcp is the layout of torch.distributed.checkpoint, written by the user's own
// trainer.
type dcp struct{}

// Name implements Layout.
func (dcp) Name() string { return dcpName }

// Depth implements Layout.
func (dcp) Depth() int { return dcpPattern.depth }

// Match implements Layout.
func (dcp) Match(name string, dir bool) (Step, bool) {
	m := dcpStepName.FindStringSubmatch(name)
	if !dir || m == nil {
		return Step{}, false
	}
	return Step{Name: name, Number: digits(m[1]), Dir: true, Layout: dcpName}, true
}

// Doubts implements Doubter.
func (dcp) Doubts(string) bool { return true }

// Spec implements Layout.
func (dcp) Spec() Spec {
	return Spec{
		Name:        dcpName,
		Description: "PyTorch distributed checkpoint (torch.distributed.checkpoint), saved by a trainer of one's own",
		Step:        dcpPattern.text,
		AnyOf:       [][]string{{dcpMetadata, "__*.metadata", "shard-*.safetensors", hfIndex}},
		Settle:      DefaultSettle,
		Code: "a directory is a step if its name is a word such as step, iter or checkpoint and a number, or a number alone, and it holds such a " +
			"checkpoint; every file that .metadata names (or every rank's own, where there is no common one) is there and exactly as long as it " +
			"says; none is newer; names of the items tell whether an optimizer is in it",
	}
}

// Probe implements Prober. Of a step that is called as torchtitan's are, what
// torchtitan's own look did not find to be its is surely this one's.
func (dcp) Probe(fsys fs.FS, s Step) Likeness {
	like, done := Hardly, false
	var index, sharded bool
	for _, base := range namesIn(fsys, s.Name) {
		switch {
		case base == dcpMetadata, rankMetadata.MatchString(base):
			like, done = Maybe, true
		case distcpName.MatchString(base), hfShardName.MatchString(base):
			like = Maybe
		case base == hfIndex:
			index = true
		case base == "sharded":
			sharded = true
		case foreignToDCP[base]:
			return Hardly
		}
	}
	if index && sharded {
		like, done = Maybe, true
	}
	if _, ok := (torchtitan{}).Match(s.Name, true); ok && done {
		return Surely
	}
	return like
}

// foreignToDCP are files that say that a directory with a distributed
// checkpoint is another framework's.
var foreignToDCP = map[string]bool{
	"metadata.json": true, "common.pt": true, "train_state.pt": true, "run_config.yaml": true, "meta.pt": true, hfState: true,
}

// namesIn are the names in a directory; none if it cannot be listed.
func namesIn(fsys fs.FS, dir string) []string {
	entries, _ := fs.ReadDir(fsys, dir)
	out := make([]string, len(entries))
	for i, d := range entries {
		out[i] = d.Name()
	}
	return out
}

// Judge implements Layout.
func (dcp) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	d := j.dcpStep()
	switch {
	case d == nil, !d.known:
	case !d.hasPart(optimizerParts...):
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"an optimizer in " + list(d.evidence)}
	}
	return j.verdict(), nil
}

// optimizerParts are names that trainers give an optimizer's state.
var optimizerParts = []string{
	"optimizer", "optim", "optimizers", "opt", "optimizer_state", "optim_state", "optimizer_states", "opt_state",
	"optimizer_state_dict", "optim_state_dict", "exp_avg", "momentum_buffer",
}

// dcpStep judges a step that is a distributed checkpoint itself, in torch's
// own format or as Hugging Face files; it returns nil for the latter.
func (j *judge) dcpStep() *dcpDir {
	j.v.Strength, j.v.Settle = Proof, DefaultSettle
	j.checkDCPs() // those further down too
	files := len(j.hfShards(".")) > 0 || len(j.hfShards("sharded")) > 0 || j.files[hfIndex] != nil
	if files && j.dcps["."] == nil && j.files[dcpMetadata] == nil {
		j.hfWriter()
		return nil
	}
	if j.dcps["."] == nil {
		j.checkDCP(".")
	}
	d := j.dcps["."]
	j.vouchFor(d.evidence, d.covers)
	if j.files[dcpMetadata] == nil { // each rank's own say nothing of how many there are
		j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	}
	if d.world > 0 {
		j.v.meta("world_size", int64(d.world))
	}
	return d
}

// hfShards are the files in a directory that DCP's writer of Hugging Face
// files wrote for single ranks.
func (j *judge) hfShards(dir string) []string {
	var out []string
	for _, rel := range j.sorted {
		if path.Dir(rel) == dir && hfShardName.MatchString(path.Base(rel)) {
			out = append(out, rel)
		}
	}
	return out
}

// hfWriter judges a step in Hugging Face files: whole ones with an index,
// which is written last, and each rank's shards, beside which nothing is.
func (j *judge) hfWriter() {
	j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"an optimizer"}
	sharded := "."
	if j.hasDir("sharded") {
		sharded = "sharded"
	}
	if files := j.hfShards(sharded); len(files) > 0 {
		j.checkHFShards(sharded, files)
	}
	if j.files[hfIndex] == nil {
		if sharded != "." {
			j.missing(hfIndex)
			j.vouch(nil, nil)
			return
		}
		j.counted()
		return
	}
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	j.vouchFor([]string{hfIndex}, func(rel string) bool { return path.Ext(rel) == ".safetensors" })
}

// checkHFShards looks whether the ranks' shards are there together: numbers
// without a gap, and every file that they speak of in at least one of them.
func (j *judge) checkHFShards(dir string, files []string) {
	var shards, parts []int
	of, width := 0, 5
	for _, rel := range files {
		m := hfShardName.FindStringSubmatch(path.Base(rel))
		shards, parts = append(shards, atoi(m[1])), append(parts, atoi(m[2]))
		of, width = max(of, atoi(m[3])), len(m[1])
	}
	pad := func(n int) string { return strings.Repeat("0", max(0, width-len(strconv.Itoa(n)))) + strconv.Itoa(n) }
	for k := range slices.Max(shards) {
		if !slices.Contains(shards, k+1) {
			j.absentf("missing %s", path.Join(dir, "shard-"+pad(k+1)+"-model-*-of-"+pad(of)+".safetensors"))
		}
	}
	for i := range of {
		if !slices.Contains(parts, i+1) {
			j.absentf("missing %s", path.Join(dir, "shard-*-model-"+pad(i+1)+"-of-"+pad(of)+".safetensors"))
		}
	}
}

// torchtitan is the layout of torchtitan's trainer.
type torchtitan struct{}

// Name implements Layout.
func (torchtitan) Name() string { return titanName }

// Depth implements Layout.
func (torchtitan) Depth() int { return titanPattern.depth }

// Match implements Layout.
func (torchtitan) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return titanPattern.step(name, dir, titanName)
}

// Spec implements Layout.
func (torchtitan) Spec() Spec {
	return Spec{
		Name:        titanName,
		Description: "torchtitan: a distributed checkpoint for each step, the last one weights only by default",
		Step:        titanPattern.text,
		AnyOf:       [][]string{{dcpMetadata, "__*.metadata", hfIndex}},
		Settle:      DefaultSettle,
		Code: "a step is torchtitan's if dataloader and train_state are among its items, or another step beside it is, else dcp's; judged as dcp is; exact resume needs optimizer, lr_scheduler, dataloader and train_state among the items that .metadata names, and with an " +
			"optimizer, but without others, what it resumes is not known; a last step in Hugging Face files is weights only",
	}
}

// Probe implements Prober. The name says little, since others use it too; what
// is torchtitan's alone is what it keeps beside the model and the optimizer.
func (torchtitan) Probe(fsys fs.FS, s Step) Likeness {
	var files []string
	for _, base := range namesIn(fsys, s.Name) {
		switch {
		case foreignToDCP[base]:
			return Hardly
		case base == dcpMetadata, rankMetadata.MatchString(base) && len(files) < maxRanksAsked:
			files = append(files, base)
		}
	}
	var loader, state bool
	for _, base := range files {
		l, s := titanItems(fsys, s, base)
		if loader, state = loader || l, state || s; loader && state {
			return Surely
		}
	}
	return Hardly
}

// maxRanksAsked bounds how many ranks' own metadata are read to tell whose a
// step is.
const maxRanksAsked = 64

// titanItems reports whether items that torchtitan keeps are among those that
// a metadata file names.
func titanItems(fsys fs.FS, s Step, base string) (loader, state bool) {
	h, err := (&tree{fsys: fsys, step: s}).open(base)
	if err != nil {
		return false, false
	}
	defer h.Close()
	meta, err := format.ReadDCP(h, h.size)
	if err != nil {
		return false, false
	}
	return meta.Has("dataloader"), meta.Has("train_state")
}

// surely notes for kin that a step's content is its layout's.
func (w *walk) surely(l Layout, name string) {
	if l == Layout(torchtitan{}) {
		w.sure[name] = true
	}
}

// kin gives all steps that are called as torchtitan's are to one layout: its
// own, if one of them is surely its (the last may hold the model alone, by
// which nobody can tell), else to dcp, if one is that.
func (w *walk) kin() {
	var titan, own bool
	called := func(s Step) bool {
		_, ok := (torchtitan{}).Match(s.Name, s.Dir)
		return ok && (s.Layout == titanName || s.Layout == dcpName)
	}
	for _, s := range w.found.Steps {
		titan = titan || s.Layout == titanName && w.sure[s.Name]
		own = own || s.Layout == dcpName && called(s)
	}
	if !titan && !own {
		return
	}
	for i, s := range w.found.Steps {
		if called(s) && titan {
			w.found.Steps[i].Layout = titanName
		} else if called(s) {
			w.found.Steps[i].Layout = dcpName
		}
	}
}

// titanState are the items besides the model that torchtitan saves.
var titanState = []string{"optimizer", "lr_scheduler", "dataloader", "train_state"}

// Judge implements Layout.
func (torchtitan) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	d := j.dcpStep()
	if j.v.Strength == Proof && len(j.v.Late) == 0 {
		j.v.Settle = ProofSettle // torchtitan writes nothing else into it
	}
	if d != nil && d.known {
		for _, item := range titanState {
			if !d.has(item) {
				j.v.Missing = append(j.v.Missing, item)
			}
		}
		switch { // others than torchtitan may keep the rest elsewhere
		case len(j.v.Missing) == 0:
			j.v.Resume = commit.ResumeExact
		case !d.hasPart(optimizerParts...):
			j.v.Resume = commit.ResumeWeights
		}
	}
	return j.verdict(), nil
}
