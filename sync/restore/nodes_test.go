package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// shards are the parts of a step that four nodes saved: the same config on all,
// a state of its own under one name on each, a shard of its own, and on node 0
// what only the main node writes.
func (f *fixture) shards(step int64) ([][]node, commit.ID) {
	f.t.Helper()
	name := stepName(step)
	var parts [][]node
	var ms []*commit.Manifest
	for i := range 4 {
		p := []node{
			dir(name), file(name+"/config.json", []byte("{}")), file(name+"/rng.pt", fmt.Appendf(nil, "rng of node %d", i)),
			dir(name + "/shards"), file(fmt.Sprintf("%s/shards/__%d_0.distcp", name, i), noise(uint64(step)+uint64(i), 2*testChunk+i)),
		}
		if i == 0 {
			p = append(p, file(name+"/.metadata", []byte("extents")), file(name+"/train_state.pt", []byte("state of step "+name)))
		}
		parts = append(parts, p)
		m := f.manifest(commit.ID{Step: step, Attempt: 1}, i, name, p)
		if i == 0 {
			m.Pointers = []commit.Pointer{{Path: "latest", Content: name}}
			m.Copies = []commit.Copy{{Path: "latest_train_state.pt", Of: name + "/train_state.pt"}}
		}
		ms = append(ms, m)
	}
	return parts, f.commit(ms...)
}

// whole is what node i has of all parts: its own versions, else the lowest
// node's.
func whole(parts [][]node, i int) []node {
	order := slices.Clone(parts)
	if i < len(parts) {
		order = append([][]node{parts[i]}, order...)
	}
	var out []node
	for _, n := range slices.Concat(order...) {
		if !slices.ContainsFunc(out, func(o node) bool { return o.Path == n.Path }) {
			out = append(out, n)
		}
	}
	return out
}

// wantBeside fails unless the files beside the step are there, as on any node.
func wantBeside(t *testing.T, root, name string) {
	t.Helper()
	for p, want := range map[string]string{"latest": name, "latest_train_state.pt": "state of step " + name} {
		if b, err := os.ReadFile(filepath.Join(root, p)); err != nil || string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", p, b, err, want)
		}
	}
}

// A step of four nodes is restored on one, two, four and eight: everywhere
// whole, with a node's own version where the nodes' differ.
func TestWholeStepOnMoreAndFewerNodes(t *testing.T) {
	f := newFixture(t)
	parts, at := f.shards(500)
	for _, n := range []int{0, 1, 3, 5, 7} {
		o := f.options(at)
		o.To, o.Node = filepath.Join(scratch(t), "ckpts"), n
		res, err := Run(t.Context(), o)
		if err != nil || res.OwnPart || res.Partial {
			t.Fatalf("node %d: %+v, %v", n, res, err)
		}
		wantTree(t, o.To, stepName(500), whole(parts, n))
		wantBeside(t, o.To, stepName(500))
	}
}

func TestWholeStepBesideTheOwnPart(t *testing.T) {
	f := newFixture(t)
	parts, at := f.shards(500)
	write(t, f.root, parts[2])
	o := f.options(at)
	o.Node = 2
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, stepName(500), whole(parts, 2))
	own := int64(len("{}") + len("rng of node 2") + 2*testChunk + 2)
	if res.Reused != own {
		t.Errorf("%d bytes of this node's part were reused, want %d", res.Reused, own)
	}
}

func TestOwnPart(t *testing.T) {
	f := newFixture(t)
	parts, at := f.shards(500)
	for n := range parts {
		o := f.options(at)
		o.To = filepath.Join(scratch(t), "ckpts")
		o.Selection = Selection{Node: n, Nodes: 4, OwnPart: true}
		f.faulty.ResetLog()
		for _, unchanged := range []bool{false, true} {
			res, err := Run(t.Context(), o)
			if err != nil || !res.OwnPart || res.Partial || res.Unchanged != unchanged {
				t.Fatalf("node %d: %+v, %v", n, res, err)
			}
			wantTree(t, o.To, stepName(500), parts[n])
			wantBeside(t, o.To, stepName(500))
		}
		for _, d := range f.faulty.Log() {
			if foreign := strings.Contains(d.Key, "/data/") && !strings.Contains(d.Key, fmt.Sprintf("/node-%05d.", n)); foreign && !strings.HasSuffix(d.Key, "train_state.pt") {
				t.Errorf("node %d read %s", n, d.Key)
			}
		}
	}
}

// What is copied beside the step is proven like everything else, before the
// step is put in place.
func TestOwnPartWithADamagedCopyOfAnothersFile(t *testing.T) {
	f := newFixture(t)
	_, at := f.shards(500)
	for info, err := range f.mem.List(t.Context(), "run/data/") {
		if err == nil && strings.HasSuffix(info.Key, "train_state.pt") {
			err = errors.Join(f.mem.Delete(t.Context(), info.Key), put(t, f.mem, info.Key, []byte(strings.Repeat("x", int(info.Size)))))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o := f.options(at)
	o.Selection = Selection{Node: 3, Nodes: 4, OwnPart: true}
	_, err := Run(t.Context(), o)
	var damaged *DamagedError
	if !errors.As(err, &damaged) || damaged.Path != stepName(500)+"/train_state.pt" {
		t.Errorf("%v, want that the file is damaged", err)
	}
	wantEmpty(t, f.root)
}

func put(t *testing.T, b blob.Bucket, key string, data []byte) error {
	t.Helper()
	_, err := b.Put(t.Context(), key, blob.Bytes(data), nil)
	return err
}

// A commit of another number of nodes has no part that is this node's own. No
// older one is taken instead: it would be another step than the others have.
func TestOwnPartOfAnotherTopology(t *testing.T) {
	f := newFixture(t)
	two := []*commit.Manifest{}
	for i := range 2 {
		two = append(two, f.manifest(id(400), i, stepName(400), []node{dir(stepName(400)), file(fmt.Sprintf("%s/%d", stepName(400), i), noise(9, 100))}))
	}
	f.commit(two...)
	f.shards(500)
	for _, sel := range []Selection{{Node: 1, Nodes: 2}, {Node: 7, Nodes: 8}, {}} {
		sel.OwnPart = true
		o := f.options(commit.ID{})
		o.Selection = sel
		chosen := false
		_, err := Newest(t.Context(), o, Policy{Chosen: func(context.Context, commit.ID) error { chosen = true; return nil }})
		var other *TopologyError
		if !errors.Is(err, ErrNothingUsable) || !errors.As(err, &other) || other.Saved != 4 || other.Nodes != max(sel.Nodes, 1) {
			t.Errorf("node %d of %d: %v", sel.Node, sel.Nodes, err)
		}
		if chosen {
			t.Error("a commit was chosen that cannot be restored")
		}
		wantEmpty(t, f.root)
	}
}

// Where one node saved nothing, as where only the main node writes, none gets its
// own part: that one would begin from nothing.
func TestOwnPartWhereANodeSavedNothing(t *testing.T) {
	f := newFixture(t)
	one := []node{dir(stepName(400)), file(stepName(400)+"/model", noise(9, 100))}
	at := f.commit(f.manifest(id(400), 0, stepName(400), one), f.manifest(id(400), 1, stepName(400), nil))
	for n := range 2 {
		o := f.options(commit.ID{})
		o.Selection = Selection{Node: n, Nodes: 2, OwnPart: true}
		_, err := Newest(t.Context(), o, Policy{})
		var other *TopologyError
		if !errors.Is(err, ErrNothingUsable) || !errors.As(err, &other) || !other.Empty || other.Node != 1 {
			t.Errorf("node %d: %v", n, err)
		}
		wantEmpty(t, f.root)
	}
	o := f.options(at)
	o.Node = 1
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, stepName(400), one)
}

// A node that restores its own part only never sees what is wrong with
// another's; whoever restores the whole step does, and says which object.
func TestDamageOfOneNodesPart(t *testing.T) {
	f := newFixture(t)
	parts, at := f.shards(500)
	f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "**/__3_0.distcp", Do: blobtest.Fail(blob.ErrNotExist)})
	o := f.options(at)
	o.Selection = Selection{Node: 1, Nodes: 4, OwnPart: true}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, stepName(500), parts[1])
	o.To, o.Selection = filepath.Join(scratch(t), "ckpts"), Selection{Node: 1}
	_, err := Run(t.Context(), o)
	var damaged *DamagedError
	if !errors.As(err, &damaged) || !strings.Contains(damaged.Object, "/node-00003.") {
		t.Errorf("%v, want that node 3's object is damaged", err)
	}
}

// The patterns that README.md gives for the files of one rank.
func TestPatternsOfOneRank(t *testing.T) {
	step := func(files []layouttest.File) (names []string) {
		for _, f := range files {
			names = append(names, f.Name)
		}
		return names
	}
	for _, tc := range []struct {
		pattern string
		files   []layouttest.File
		want    []string
	}{
		{"rng_state_3.pth", layouttest.HFFiles(9, layouttest.World(16)), []string{"rng_state_3.pth"}},
		{"random_states_3.pkl", layouttest.AccelerateFiles(16, 0), []string{"random_states_3.pkl"}},
		{"**/*zero_pp_rank_3_*", layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{World: 16, MP: 1, Stage: 2}), []string{"zero_pp_rank_3_mp_rank_00_optim_states.pt"}},
		{"**/*zero_pp_rank_3_*", layouttest.HFFiles(9, layouttest.DeepSpeed(16)), []string{"global_step9/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"}},
		{"**/__3_*.distcp", layouttest.DCPFiles("", layouttest.DCPSave{World: 16, Keys: strings.Fields("a b c d e f g h i j k l m n o p")}), []string{"__3_0.distcp"}},
		{"**/__3_*.distcp", layouttest.MCoreFiles("dist", 16, true), []string{"dist/__3_0.distcp"}},
		{"**/*_rank_3.pt", layouttest.VerlRole("actor/", 9, 16, "model", "optim"), []string{"actor/model_world_size_16_rank_3.pt", "actor/optim_world_size_16_rank_3.pt"}},
		{"**/*_dp_rank_3.pt", layouttest.AutomodelFiles(16), []string{"dataloader/dataloader_dp_rank_3.pt", "rng/rng_dp_rank_3.pt"}},
	} {
		f, err := newFilter([]string{tc.pattern}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range step(tc.files) {
			if f.keep(n) {
				got = append(got, n)
			}
		}
		slices.Sort(got)
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.pattern, d)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"rng_state_3.pth", "random_states_3.pkl", "**/*zero_pp_rank_3_*", "**/__3_*.distcp", "**/*_rank_3.pt", "**/*_dp_rank_3.pt"} {
		if !strings.Contains(string(readme), "`"+p+"`") {
			t.Errorf("README.md does not give the pattern %s", p)
		}
	}
}
