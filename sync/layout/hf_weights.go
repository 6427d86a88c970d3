package layout

import (
	"path"
	"regexp"
	"strings"
)

var shardName = regexp.MustCompile(`\A(.+)-[0-9]{5}-of-([0-9]{5})(\.safetensors|\.bin)\z`)

// weights looks for the model in the forms that the Trainer knows.
func (h *hfJudge) weights() {
	adapters := h.adapters()
	sharded := h.sharded()
	plain := adapters || sharded || h.files["model.safetensors"] != nil || h.files["pytorch_model.bin"] != nil
	fsdp := h.fsdp()
	xla := false
	for _, rel := range h.sorted {
		m := xlaName.FindStringSubmatch(rel)
		xla = xla || m != nil && m[3] == "pytorch_model.bin"
	}
	configured := h.files[hfConfig] != nil || h.files[hfGeneration] != nil
	switch {
	case plain && h.files[hfConfig] == nil && !adapters && (sharded || h.files[hfGeneration] != nil):
		h.missing(hfConfig)
	case plain && h.files[hfConfig] == nil && !adapters && !h.deepspeed:
		h.warnf("there is no %s: right only for a model that is no PreTrainedModel", hfConfig)
	case plain || xla || h.deepspeed && !(configured && h.plainWeights):
	case configured:
		// Whoever writes a config writes the weights beside it.
		h.noWeights()
	case !fsdp:
		h.noWeights()
	}
}

// noWeights says that the model is missing, in the form that its other files
// speak of.
func (h *hfJudge) noWeights() {
	for _, rel := range []string{"model.safetensors", "pytorch_model.bin"} {
		if _, ok := h.astray[rel]; ok {
			h.missing(rel)
			return
		}
	}
	h.absentf("missing weights: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, " +
		"adapter_model.safetensors, pytorch_model_fsdp_0, a DeepSpeed tree")
}

// sharded reports whether there are shards with an index; shards without one
// are a reason, unless the whole model lies beside them.
func (h *hfJudge) sharded() bool {
	found := false
	said := map[string]bool{}
	for _, rel := range h.sorted {
		if strings.Contains(rel, "/") {
			continue
		}
		if strings.HasSuffix(rel, ".safetensors.index.json") || strings.HasSuffix(rel, ".bin.index.json") {
			found = true
			continue
		}
		m := shardName.FindStringSubmatch(rel)
		if m == nil {
			continue
		}
		whole := m[1] + m[3]
		if index := whole + ".index.json"; h.files[index] == nil && h.files[whole] == nil && !said[index] {
			said[index] = true
			found = true
			h.missing(index)
		}
	}
	return found
}

// adapters judges PEFT adapters: weights and configuration come in pairs, in
// the step and, for further adapters, in folders of it.
func (h *hfJudge) adapters() bool {
	dirs := map[string]bool{}
	for _, rel := range h.sorted {
		switch path.Base(rel) {
		case "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json":
			dirs[path.Dir(rel)] = true
		}
	}
	for dir := range dirs {
		weights := path.Join(dir, "adapter_model.safetensors")
		if h.files[weights] == nil && h.files[path.Join(dir, "adapter_model.bin")] == nil {
			h.missing(weights)
		}
		if config := path.Join(dir, "adapter_config.json"); h.files[config] == nil {
			h.missing(config)
		}
	}
	return len(dirs) > 0
}

// fsdp judges FSDP's own files: sharded, a distributed checkpoint for the
// model and one for the optimizer; full, two files.
func (h *hfJudge) fsdp() bool {
	models, optimizers := h.numberedDirs("pytorch_model_fsdp_"), h.numberedDirs("optimizer_")
	for _, dir := range append(append([]string(nil), models...), optimizers...) {
		if h.worlds[dir] == 0 { // a directory without a single shard
			h.worlds[dir] = h.checkDCP(dir)
			h.absentf("missing %s/*.distcp", dir)
		}
		h.world = max(h.world, h.worlds[dir])
	}
	if len(optimizers) > 0 && len(models) == 0 {
		h.missing("pytorch_model_fsdp_0")
	}
	if h.files[hfOptFull] != nil && h.files[hfFSDPFull] == nil {
		h.missing(hfFSDPFull)
	}
	return len(models) > 0 || h.files[hfFSDPFull] != nil
}
