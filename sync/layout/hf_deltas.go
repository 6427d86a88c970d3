package layout

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names that what builds on the Trainer adds.
const (
	dlroverLatest = "dlrover_latest.txt"      // in the root, by DLRover's agent: the last step that it persisted
	dlroverStage  = "._dlrover_ckpt_stage"    // in the root, while it does
	trlEntropy    = "entropy_ctrl_state.json" // in the step, by TRL after all else
	axolotlTokens = "tokens_state.json"       // in the step, by axolotl before all else
	valueHeadKey  = "v_head."                 // a tensor that LLaMA-Factory moves out of the weights
)

// Times that a step has to be quiet while a late writer is still expected.
const (
	lateSettle      = DefaultWeakSettle
	valueHeadSettle = 2 * time.Minute // it reads all weights before it writes them anew
)

// flash judges a run whose weights DLRover holds in memory, and persists some
// minutes after the Trainer is done: then nothing in the step says that it is
// complete, and dlrover_latest.txt in the root does. It reports whether there
// is one. Where the root cannot be seen, it says nothing.
func (h *hfJudge) flash() bool {
	dir := path.Dir(h.step.Name)
	pointer := path.Join(dir, dlroverLatest)
	text, n, ok := tracker(h.fsys, pointer)
	switch {
	case ok && n >= h.step.Number:
		h.v.Pointers = append(h.v.Pointers, commit.Pointer{Path: pointer, Content: strconv.FormatInt(h.step.Number, 10)})
		return true
	case ok:
		h.reasonf("%s says %s: step %d is not persisted yet", pointer, text, h.step.Number)
		return true
	case exists(h.fsys, pointer):
		h.reasonf("%s is being rewritten", pointer)
		return true
	case exists(h.fsys, path.Join(dir, dlroverStage)):
		h.reasonf("%s is there, and no %s: no step is persisted yet", path.Join(dir, dlroverStage), pointer)
		return true
	}
	return false
}

// expected gives the step more time while a file is missing that is written
// after trainer_state.json, and that the step before has; and says what exact
// resume lacks if it never comes.
func (h *hfJudge) expected() {
	if h.files[hfState] == nil {
		return
	}
	before := h.before()
	for _, rel := range []string{trlEntropy, axolotlTokens} {
		if before == "" || h.files[rel] != nil || !exists(h.fsys, path.Join(before, rel)) {
			continue
		}
		h.warnf("there is no %s, which %s has: without it that state begins anew", rel, before)
		h.v.Settle = max(h.v.Settle, lateSettle)
	}
	if h.hasValueHead() {
		h.warnf("the weights hold tensors %s*: LLaMA-Factory would still move them to value_head.safetensors", valueHeadKey)
		h.v.Settle = max(h.v.Settle, valueHeadSettle)
	}
}

// before is the step of the next lower number beside this one; "" if there is
// none.
func (h *hfJudge) before() string {
	dir := path.Dir(h.step.Name)
	entries, _ := fs.ReadDir(h.fsys, dir)
	best, name := int64(-1), ""
	for _, d := range entries {
		n, ok, err := hfPattern.match(d.Name())
		if ok && err == nil && d.IsDir() && n < h.step.Number && n > best {
			best, name = n, path.Join(dir, d.Name())
		}
	}
	return name
}

// hasValueHead reports whether the weights hold a value head though it has no
// file of its own, in a step that LLaMA-Factory wrote.
func (h *hfJudge) hasValueHead() bool {
	if !h.args.factory {
		return false
	}
	for _, rel := range hfValueHead {
		if h.files[rel] != nil {
			return false
		}
	}
	found := false
	for _, rel := range h.sorted {
		if strings.Contains(rel, "/") || path.Ext(rel) != ".safetensors" || h.broken[rel] {
			continue
		}
		f, err := h.open(rel)
		if err != nil {
			continue
		}
		_ = format.SafetensorsNames(f, f.size, func(name string) { found = found || strings.HasPrefix(name, valueHeadKey) })
		f.Close()
	}
	return found
}
