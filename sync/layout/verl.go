package layout

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of verl.
const (
	verlName   = "verl"
	verlData   = "data.pt"
	verlConfig = "fsdp_config.json"
	verlDist   = "dist_ckpt"
	verlActor  = "actor"
)

var (
	verlPattern = mustCompile("global_step_{step}")
	verlShard   = regexp.MustCompile(`\A(model|optim|extra_state)_world_size_([0-9]{1,9})_rank_([0-9]{1,9})\.pt\z`)
)

// verlKinds are what every rank saves of a role.
var verlKinds = []string{"model", "optim", "extra_state"}

// verl is the layout of verl's trainers: a directory for each role, and what
// the driver writes when all ranks are done.
type verl struct{}

// Name implements Layout.
func (verl) Name() string { return verlName }

// Depth implements Layout.
func (verl) Depth() int { return verlPattern.depth }

// Match implements Layout.
func (verl) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return verlPattern.step(name, dir, verlName)
}

// Spec implements Layout.
func (verl) Spec() Spec {
	return Spec{
		Name:        verlName,
		Description: "verl: PPO and its kin, and SFT; FSDP shards or Megatron's dist_ckpt",
		Step:        verlPattern.text,
		AnyOf: [][]string{
			{"actor/model_world_size_*_rank_0.pt", "model_world_size_*_rank_0.pt", "actor/dist_ckpt/metadata.json", "dist_ckpt/metadata.json"},
			{verlData, "data_*.pt"},
		},
		Exact:    []string{"**/optim_world_size_*_rank_0.pt", "**/extra_state_world_size_*_rank_0.pt"},
		Settle:   DefaultSettle,
		Pointers: []Pointer{{Path: mcoreTracker, Content: "{step}"}},
		Code: "of each role (actor, critic) there are the shards of all ranks that their names count, of one world size, which fsdp_config.json repeats, or " +
			"a complete dist_ckpt; optimizer and extra state are there both, or neither (weights only); data.pt, which comes last, is the " +
			"evidence; a directory with nothing else is what verl leaves of a step that it removed",
	}
}

// Probe implements Prober.
func (verl) Probe(fsys fs.FS, s Step) Likeness {
	if exists(fsys, path.Join(s.Name, verlActor)) || exists(fsys, path.Join(s.Name, verlData)) {
		return Surely
	}
	for _, name := range namesIn(fsys, s.Name) {
		if verlShard.MatchString(name) {
			return Surely
		}
	}
	return Maybe
}

// Judge implements Layout.
func (verl) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := &verlJudge{judge: newJudge(t, nil), mcore: map[string]*mcoreDir{}}
	j.checkFiles()
	j.checkIndexes()
	roles := j.roles()
	for _, role := range roles {
		j.role(role)
	}
	if len(roles) == 0 {
		j.noRole()
	}
	j.data(roles)
	j.resume()
	j.v.Pointers = []commit.Pointer{trackerOf(s)}
	return j.verdict(), nil
}

type verlJudge struct {
	*judge
	world int
	gone  []string // what exact resume lacks
	mcore map[string]*mcoreDir
}

// roles are the directories that hold shards, "." for those of SFT.
func (j *verlJudge) roles() []string {
	found := map[string]bool{}
	for _, rel := range j.sorted {
		dir, base := path.Dir(rel), path.Base(rel)
		switch {
		case verlShard.MatchString(base):
			found[dir] = true
		case path.Base(dir) == verlDist:
			found[path.Dir(dir)] = true
		}
	}
	for _, d := range []string{verlActor, "critic"} { // a directory is there as soon as a rank begins
		found[d] = found[d] || j.hasDir(d)
	}
	var out []string
	for d, ok := range found {
		if ok {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	if !slices.Contains(out, verlActor) && len(out) > 0 && out[0] != "." {
		j.missing(verlActor)
	}
	return out
}

// role judges what one role saved.
func (j *verlJudge) role(dir string) {
	dist := path.Join(dir, verlDist)
	if j.hasDir(dist) {
		m := j.checkMCore(dist)
		j.mcore[dist] = m
		j.world = max(j.world, worldOf(m))
		return
	}
	ranks, world := map[string][]int{}, 0
	worlds := map[int]string{}
	for _, rel := range j.sorted {
		m := verlShard.FindStringSubmatch(path.Base(rel))
		if m == nil || path.Dir(rel) != dir {
			continue
		}
		w := atoi(m[2])
		ranks[m[1]] = append(ranks[m[1]], atoi(m[3]))
		world = max(world, w)
		if worlds[w] == "" {
			worlds[w] = rel
		}
	}
	if len(worlds) > 1 {
		j.reasonf("%s holds the shards of worlds of several sizes (%s): some are left over from another save", dir, list(sortedValues(worlds)))
		return
	}
	world = max(world, j.config(dir, world))
	for _, kind := range verlKinds {
		if have := ranks[kind]; len(have) > 0 || kind == "model" {
			name := func(r int) string {
				return path.Join(dir, fmt.Sprintf("%s_world_size_%d_rank_%d.pt", kind, max(world, 1), r))
			}
			j.contiguous(have, max(world, 1), name)
		}
	}
	j.both(dir, world, len(ranks["optim"]) > 0, len(ranks["extra_state"]) > 0)
	j.world = max(j.world, world)
}

// both asks for the optimizer's and the extra state both, or for neither.
func (j *verlJudge) both(dir string, world int, optim, extra bool) {
	for kind, has := range map[string]bool{"optim": optim, "extra_state": extra} {
		name := path.Join(dir, fmt.Sprintf("%s_world_size_%d_rank_0.pt", kind, max(world, 1)))
		if has {
			continue
		}
		j.gone = append(j.gone, name)
		if optim || extra {
			j.missing(name)
		}
	}
}

func worldOf(m *mcoreDir) int {
	if m.dcp == nil {
		return 0
	}
	return m.dcp.world
}

func sortedValues(m map[int]string) []string {
	var out []string
	for _, v := range m {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// config holds the shards' world against fsdp_config.json, which rank 0 writes
// after its shards.
func (j *verlJudge) config(dir string, world int) int {
	rel := path.Join(dir, verlConfig)
	if j.files[rel] == nil || j.broken[rel] {
		return world
	}
	v, _ := j.jsonValue(rel).(map[string]any)
	n, ok := v["world_size"].(int64)
	if ok && n > 0 && n < 1<<24 && world > 0 && int(n) != world {
		j.spoil(rel, "%s says world_size %d, where the shards beside it say %d: they are of different saves", rel, n, world)
	}
	if ok && n > 0 && n < 1<<24 {
		return int(n)
	}
	return world
}

// noRole says what a step without a role is.
func (j *verlJudge) noRole() {
	if len(j.files) > 0 {
		j.absentf("missing %s: only %s is there, which is what verl leaves of a step that it removed", verlActor, list(j.sorted))
		return
	}
	j.missing(verlActor)
}

// data asks for the data loader's state, the last file of a save: the driver's
// data.pt, or a file of every data-parallel rank of SFT.
func (j *verlJudge) data(roles []string) {
	var evidence []string
	var ranks []int
	for _, rel := range j.sorted {
		if r, ok := numbered(rel, "data_", ".pt"); ok {
			ranks, evidence = append(ranks, r), append(evidence, rel)
		}
	}
	switch {
	case j.files[verlData] != nil:
		evidence = []string{verlData}
	case len(ranks) > 0:
		j.contiguous(ranks, 0, func(r int) string { return fmt.Sprintf("data_%d.pt", r) })
	case slices.Contains(roles, ".") && !slices.Contains(roles, verlActor):
		j.missing("data_0.pt")
	default:
		j.missing(verlData)
	}
	j.v.Strength, j.v.Settle = Proof, DefaultSettle
	if len(j.mcore) > 0 || len(ranks) > 0 {
		j.v.Strength = Strong // an asynchronous save goes on after it; ranks do not wait for each other
	}
	if len(evidence) > 0 {
		for _, m := range j.mcore {
			evidence = append(evidence, m.evidence()...)
		}
	}
	j.vouch(unique(evidence), nil)
}

// resume says what the step resumes.
func (j *verlJudge) resume() {
	j.v.Resume = commit.ResumeExact
	for _, m := range j.mcore {
		m.resume()
	}
	if j.v.Missing = unique(append(j.v.Missing, j.gone...)); len(j.v.Missing) > 0 {
		j.v.Resume = commit.ResumeWeights
	}
	if j.world > 0 {
		j.v.meta("world_size", int64(j.world))
	}
}
