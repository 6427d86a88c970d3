package layout

import (
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

var (
	zeroName  = regexp.MustCompile(`\A(bf16_)?zero_pp_rank_([0-9]{1,9})_mp_rank_([0-9]{1,9})_(model|optim)_states\.pt\z`)
	modelName = regexp.MustCompile(`\Amp_rank_([0-9]{1,9})_model_states\.pt\z`)
)

// maxLatest bounds the tag that DeepSpeed's latest holds, in bytes.
const maxLatest = 4096

// checkDeepSpeed judges a DeepSpeed tree in the step, and reports whether
// there is one: a file latest, or a directory with its files.
func (h *hfJudge) checkDeepSpeed() bool {
	tags := map[string]bool{}
	for _, rel := range h.sorted {
		dir, base := path.Split(rel)
		if strings.Count(rel, "/") == 1 && (zeroName.MatchString(base) || modelName.MatchString(base)) {
			tags[strings.TrimSuffix(dir, "/")] = true
		}
	}
	if h.files["latest"] == nil {
		if len(tags) > 0 {
			h.missing("latest")
			for tag := range tags {
				h.checkTag(tag)
			}
		}
		return len(tags) > 0
	}
	tag, err := h.latest()
	switch {
	case h.broken["latest"]:
	case err != nil:
		h.spoil("latest", "latest: %v", err)
	case !tags[tag]:
		h.absentf("latest names %s, which holds no DeepSpeed files", tag)
	default:
		h.checkTag(tag)
	}
	for other := range tags {
		if other != tag && err == nil {
			h.warnf("%s is not what latest names: it is left over from another save", other)
		}
	}
	return true
}

// latest reads DeepSpeed's pointer.
func (h *hfJudge) latest() (string, error) {
	f, err := h.open("latest")
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, min(f.size, maxLatest))
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return "", err
	}
	tag := strings.TrimSpace(string(b))
	if tag == "" || strings.ContainsAny(tag, "/\x00") {
		return "", fmt.Errorf("%.40q is no tag", tag)
	}
	return tag, nil
}

// ranks are the data-parallel ranks found for each model-parallel rank.
type ranks map[int][]int

func (r ranks) models() []int {
	var out []int
	for mp := range r {
		out = append(out, mp)
	}
	slices.Sort(out)
	return out
}

// checkTag judges the files of one save: model states of every rank that
// writes them, and the optimizer's partitions of all ranks.
func (h *hfJudge) checkTag(tag string) {
	model, zeroModel, optim := []int{}, ranks{}, ranks{}
	prefix, samples := "", []string(nil)
	for _, rel := range h.sorted {
		dir, base := path.Split(rel)
		if dir != tag+"/" {
			continue
		}
		if m := modelName.FindStringSubmatch(base); m != nil {
			mp, _ := strconv.Atoi(m[1])
			model = append(model, mp)
		} else if m := zeroName.FindStringSubmatch(base); m != nil {
			dp, _ := strconv.Atoi(m[2])
			mp, _ := strconv.Atoi(m[3])
			if m[4] == "model" {
				zeroModel[mp] = append(zeroModel[mp], dp)
				continue
			}
			optim[mp] = append(optim[mp], dp)
			prefix, samples = m[1], append(samples, rel)
		}
	}
	h.plainWeights = len(zeroModel) == 0 // ZeRO-3 alone may write none
	mps := h.modelState(h.sampleModel(tag, model, zeroModel))
	h.checkOptim(tag, prefix, optim, h.partitions(samples), mps)
	h.checkModel(tag, model, zeroModel, optim, mps)
}

// sampleModel names one file of model states that is there and whole.
func (h *hfJudge) sampleModel(tag string, model []int, zero ranks) string {
	for _, mp := range model {
		if rel := modelFile(tag, mp); !h.broken[rel] {
			return rel
		}
	}
	for mp, dps := range zero {
		for _, dp := range dps {
			if rel := zeroModelFile(tag, dp, mp); !h.broken[rel] {
				return rel
			}
		}
	}
	return ""
}

func modelFile(tag string, mp int) string {
	return fmt.Sprintf("%s/mp_rank_%02d_model_states.pt", tag, mp)
}

func zeroModelFile(tag string, dp, mp int) string {
	return fmt.Sprintf("%s/zero_pp_rank_%d_mp_rank_%02d_model_states.pt", tag, dp, mp)
}

// modelState reads what a file of model states says of the world, and returns
// how many model-parallel ranks there are; 0 if it does not say.
func (h *hfJudge) modelState(rel string) (mps int) {
	v := h.torchObject(rel)
	if v == nil {
		return 0
	}
	dp, _ := lookupInt(v, "dp_world_size")
	mps, _ = lookupInt(v, "mp_world_size")
	h.world = max(h.world, dp*mps)
	if s, ok := format.Lookup(v, "lr_scheduler"); ok && s == nil {
		h.ownScheduler = true
	}
	return mps
}

// checkOptim judges the optimizer's partitions: want of them, if that is
// known, for each of mps model-parallel ranks, and exactly so many.
func (h *hfJudge) checkOptim(tag, prefix string, optim ranks, want, mps int) {
	name := func(dp, mp int) string {
		return fmt.Sprintf("%s/%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt", tag, prefix, dp, mp)
	}
	if len(optim) == 0 {
		if !h.optimizerInModel(tag) {
			h.absentf("missing %s/*_optim_states.pt", tag)
		}
		return
	}
	known := want
	for _, have := range optim {
		want = max(want, len(have), slices.Max(have)+1)
	}
	if known > 0 && want > known {
		h.reasonf("%s holds the partitions of %d ranks where its own count says %d: some are left over from another save", tag, want, known)
	}
	world := 0
	h.contiguous(optim.models(), mps, func(mp int) string { return name(0, mp) })
	for mp, have := range optim {
		world += h.contiguous(have, want, func(dp int) string { return name(dp, mp) })
	}
	h.world = max(h.world, world)
}

// checkModel judges the model states: of ZeRO-3 one of every rank, else one
// of every model-parallel rank.
func (h *hfJudge) checkModel(tag string, model []int, zero, optim ranks, mps int) {
	if len(zero) > 0 {
		for _, mp := range zero.models() {
			want := 0
			if have := optim[mp]; len(have) > 0 {
				want = slices.Max(have) + 1
			}
			h.contiguous(zero[mp], want, func(dp int) string { return zeroModelFile(tag, dp, mp) })
		}
		return
	}
	if have := optim.models(); len(have) > 0 {
		mps = max(mps, have[len(have)-1]+1)
	}
	h.contiguous(model, max(mps, 1), func(mp int) string { return modelFile(tag, mp) })
}

// maxSamples bounds how many files are asked for a count that all should have.
const maxSamples = 4

// partitions reads how many partitions the optimizer's state was cut into; 0
// if that cannot be read. Rank 0's file, the first, cannot be a left-over.
func (h *hfJudge) partitions(files []string) int {
	for _, rel := range files[:min(len(files), maxSamples)] {
		if state, ok := format.Lookup(h.torchObject(rel), "optimizer_state_dict"); ok {
			if n, ok := lookupInt(state, "partition_count"); ok {
				return n
			}
		}
	}
	return 0
}

// optimizerInModel reports whether the model states of a save without ZeRO
// hold the optimizer's state.
func (h *hfJudge) optimizerInModel(tag string) bool {
	v := h.torchObject(tag + "/mp_rank_00_model_states.pt")
	o, ok := format.Lookup(v, "optimizer")
	return ok && o != nil
}

// torchObject reads the pickle of a file that is whole; nil if it cannot be
// read or is too large.
func (h *hfJudge) torchObject(rel string) any {
	if h.files[rel] == nil || h.broken[rel] {
		return nil
	}
	f, err := h.open(rel)
	if err != nil {
		return nil
	}
	defer f.Close()
	v, err := format.TorchObject(f, f.size, format.UnpickleOptions{})
	if err != nil {
		return nil
	}
	return v
}
