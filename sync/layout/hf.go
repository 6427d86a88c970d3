package layout

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of the Hugging Face Trainer.
const (
	hfName       = "hf-trainer"
	hfState      = "trainer_state.json"
	hfSentinel   = "checkpoint-is-incomplete.txt"
	hfArgs       = "training_args.bin"
	hfScheduler  = "scheduler.pt"
	hfScaler     = "scaler.pt"
	hfRNG        = "rng_state.pth"
	hfFSDPFull   = "pytorch_model_fsdp.bin"
	hfOptimizer  = "optimizer.pt"
	hfOptFull    = "optimizer.bin"
	hfConfig     = "config.json"
	hfGeneration = "generation_config.json"
)

// hfLate are the files that are written after trainer_state.json: other ranks'
// random states (no barrier), and what callbacks of TRL, LLaMA-Factory and
// ms-swift add: processors and tokenizers, logs, a model card.
var hfLate = []string{
	"rng_state_[1-9]*.pth", "entropy_ctrl_state.json",
	"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "image_processor_config.json",
	"chat_template.*", "additional_chat_templates/**", "tokenizer*.json", "tokenizer.model", "special_tokens_map.json",
	"added_tokens.json", "vocab.*", "merges.txt", "spiece.model", "*.tiktoken", "README.md", "args.json", "predict.jsonl",
}

// hfValueHead is written by LLaMA-Factory after it rewrote the weights, both
// after trainer_state.json.
var hfValueHead = []string{"value_head.safetensors", "value_head.bin"}

var hfPattern = mustCompile("checkpoint-{step}")

func mustCompile(text string) *pattern {
	p, err := compile(text)
	if err != nil {
		panic(err)
	}
	return p
}

// hfTrainer is the layout of transformers.Trainer, TRL and PEFT.
type hfTrainer struct{}

// Name implements Layout.
func (hfTrainer) Name() string { return hfName }

// Depth implements Layout.
func (hfTrainer) Depth() int { return hfPattern.depth }

// Match implements Layout.
func (hfTrainer) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return hfPattern.step(name, dir, hfName)
}

// Spec implements Layout.
func (hfTrainer) Spec() Spec {
	return Spec{
		Name:        hfName,
		Description: "Hugging Face transformers.Trainer, TRL, PEFT; also under DeepSpeed and FSDP",
		Step:        hfPattern.text,
		Required:    []string{hfState},
		AnyOf: [][]string{{
			"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
			"adapter_model.safetensors", "adapter_model.bin", "*/adapter_model.safetensors", "*/adapter_model.bin",
			"pytorch_model_fsdp_*/.metadata", hfFSDPFull, "*/*_model_states.pt", "rank*-of-*-pytorch_model.bin",
		}},
		Marker:    hfState,
		Forbidden: []string{hfSentinel},
		Late:      slices.Clone(hfLate),
		Exact:     []string{hfOptimizer, hfScheduler, hfRNG},
		Settle:    DefaultSettle,
		Code: "trainer_state.json says the step's own number; every shard of an index, every rank's rng_state, every file of " +
			"FSDP's and DeepSpeed's directories is there; optimizer, scheduler and random states are all there, or none of them " +
			"(save_only_model: weights only); optimizer.pt and rng_state.pth stand for their sharded forms too; where dlrover_latest.txt " +
			"lies beside the step it must have reached it; a late writer that the step before had is waited for",
	}
}

// Probe implements Prober.
func (hfTrainer) Probe(fsys fs.FS, s Step) Likeness {
	for _, name := range []string{hfState, hfArgs, hfSentinel, hfRNG, "rng_state_0.pth"} {
		if _, err := lstat(fsys, path.Join(s.Name, name)); err == nil {
			return Surely
		}
	}
	for _, name := range []string{hfConfig, "adapter_model.safetensors", "pytorch_model_fsdp_0", "model.safetensors"} {
		if _, err := lstat(fsys, path.Join(s.Name, name)); err == nil {
			return Maybe
		}
	}
	return Hardly
}

// Judge implements Layout.
func (hfTrainer) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	h := hfJudge{judge: newJudge(t, nil)}
	h.checkFiles()
	h.checkIndexes()
	h.worlds = h.checkDCPs()
	if h.files[hfSentinel] != nil {
		h.reasonf("%s is there: a save is under way, or was cut off", hfSentinel)
	}
	h.state()
	h.deepspeed = h.checkDeepSpeed()
	h.weights()
	h.xla()
	h.resume()
	h.evidence()
	return h.verdict(), nil
}

// hfJudge is the judgement of one Hugging Face step.
type hfJudge struct {
	*judge
	worlds    map[string]int // ranks that wrote each DCP directory, at least
	deepspeed bool           // there is a DeepSpeed tree
	world     int            // ranks that took part, at least
	args      trainingArgs
	// What the DeepSpeed tree says: the scheduler is saved outside it, and the
	// weights are written beside it too.
	ownScheduler, plainWeights bool
}

// evidence names what vouches for the step.
func (h *hfJudge) evidence() {
	h.v.Strength, h.v.Settle = Strong, DefaultSettle
	late := hfLate
	if h.flash() {
		late = []string{"**"} // the agent writes when the Trainer is done
	}
	h.expected()
	if h.files[hfState] == nil {
		h.vouch(nil, late)
		return
	}
	evidence := []string{hfState}
	for _, name := range hfValueHead {
		if h.files[name] != nil {
			evidence = append(evidence, name)
		}
	}
	h.vouch(evidence, late)
}

// rng judges the random states: one file of a single process, or those of
// ranks 0 … W-1.
func (h *hfJudge) rng() (there bool) {
	var ranks []int
	for _, rel := range h.sorted {
		if r, ok := numbered(rel, "rng_state_", ".pth"); ok {
			ranks = append(ranks, r)
		}
	}
	single := h.files[hfRNG] != nil
	switch {
	case len(ranks) == 0 && !single:
		return false
	case len(ranks) == 0 && h.world > 1:
		h.reasonf("%s is the state of one process, but %d saved this step: missing rng_state_0.pth to rng_state_%d.pth", hfRNG, h.world, h.world-1)
		return true
	case len(ranks) == 0:
		h.v.meta("world_size", int64(1))
		return true
	case single:
		h.warnf("%s lies beside the states of several ranks: it is left over from another save", hfRNG)
	}
	// One process alone writes rng_state.pth, so that a name with a rank means
	// two at least.
	w := h.contiguous(ranks, max(h.world, 2), func(r int) string { return fmt.Sprintf("rng_state_%d.pth", r) })
	h.v.meta("world_size", int64(w))
	return true
}

// numbered returns the decimal number between a prefix and a suffix.
func numbered(name, prefix, suffix string) (int, bool) {
	s, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	if s, ok = strings.CutSuffix(s, suffix); !ok || s == "" || len(s) > 9 {
		return 0, false
	}
	for i := range len(s) {
		if !isDigit(s[i]) {
			return 0, false
		}
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// optimizer names what holds the optimizer's state, "" if nothing does.
func (h *hfJudge) optimizer() string {
	for _, name := range []string{hfOptimizer, hfOptFull} {
		if h.files[name] != nil {
			return name
		}
	}
	if dirs := h.numberedDirs("optimizer_"); len(dirs) > 0 {
		return dirs[0]
	}
	for _, rel := range h.sorted {
		if m := xlaName.FindStringSubmatch(rel); m != nil && m[3] == hfOptimizer {
			return rel
		}
	}
	if h.deepspeed {
		return "latest"
	}
	return ""
}

// numberedDirs returns the directories at the top of the step of that prefix
// and a number.
func (h *hfJudge) numberedDirs(prefix string) []string {
	var out []string
	for d := range h.dirs {
		if _, ok := numbered(d, prefix, ""); ok {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}

// wantedOptimizer is the name under which a missing optimizer is missed.
func (h *hfJudge) wantedOptimizer() string {
	switch {
	case len(h.numberedDirs("pytorch_model_fsdp_")) > 0:
		return "optimizer_0"
	case h.files[hfFSDPFull] != nil:
		return hfOptFull
	}
	return hfOptimizer
}

// resume judges what exact resume needs: optimizer, scheduler and random
// states are there all, or none of them because only the model was saved.
func (h *hfJudge) resume() {
	optimizer, scheduler, rng := h.optimizer(), h.files[hfScheduler] != nil, h.rng()
	var gone []string
	if optimizer == "" {
		gone = append(gone, h.wantedOptimizer())
	}
	if !scheduler && (!h.deepspeed || h.ownScheduler) { // DeepSpeed may keep it in its own files
		gone = append(gone, hfScheduler)
	}
	if !rng {
		gone = append(gone, hfRNG)
	}
	h.v.Resume = commit.ResumeExact
	if len(gone) == 0 {
		h.scaler()
		return
	}
	h.v.Resume, h.v.Missing = commit.ResumeWeights, gone
	none := optimizer == "" && !scheduler && !rng && h.files[hfScaler] == nil
	if none && h.files[hfState] != nil && !h.args.savesAll {
		return // save_only_model: trainer_state.json comes after all of them
	}
	for _, name := range gone {
		h.missing(name)
	}
}

// scaler warns when the loss scaler of fp16 is not there.
func (h *hfJudge) scaler() {
	if h.args.fp16 && h.files[hfScaler] == nil && !h.deepspeed {
		h.warnf("%s says fp16, and there is no %s: the loss scale will start anew", hfArgs, hfScaler)
	}
}

var xlaName = regexp.MustCompile(`\Arank([0-9]{1,9})-of-([0-9]{1,9})-(pytorch_model\.bin|optimizer\.pt)\z`)

// xla judges the files of XLA FSDP: one per rank of the world in their names.
func (h *hfJudge) xla() {
	ranks := map[string][]int{}
	worlds := map[string]int{}
	for _, rel := range h.sorted {
		if m := xlaName.FindStringSubmatch(rel); m != nil {
			r, _ := strconv.Atoi(m[1])
			w, _ := strconv.Atoi(m[2])
			key := m[2] + "-" + m[3]
			ranks[key], worlds[key] = append(ranks[key], r), w
		}
	}
	for key, have := range ranks {
		w := h.contiguous(have, worlds[key], func(r int) string { return fmt.Sprintf("rank%d-of-%s", r, key) })
		h.world = max(h.world, w)
	}
}
