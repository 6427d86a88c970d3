package layout

import (
	"io/fs"
	"path"

	"github.com/ckptsync/ckptsync/commit"
)

const (
	bridgeName   = "megatron-bridge"
	bridgeState  = "train_state.pt"
	bridgeConfig = "run_config.yaml"
	bridgeLatest = "latest_train_state.pt"
)

// bridge is the layout of NVIDIA's Megatron-Bridge.
type bridge struct{}

// Name implements Layout.
func (bridge) Name() string { return bridgeName }

// Depth implements Layout.
func (bridge) Depth() int { return iterPattern.depth }

// Match implements Layout.
func (bridge) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return iterStep(name, bridgeName)
}

// Spec implements Layout.
func (bridge) Spec() Spec {
	return Spec{
		Name:        bridgeName,
		Description: "NVIDIA Megatron-Bridge: a Megatron core checkpoint whose run_config.yaml follows both pointers",
		Step:        iterPattern.text,
		Required:    []string{bridgeState},
		Marker:      bridgeConfig,
		Late:        []string{"tokenizer/**", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "energon/**", "modelopt_state/**"},
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: mcoreTracker, Content: "{step}"}},
		Code: "names have seven digits at least; the Megatron core checkpoint in it is judged as megatron's; " + bridgeLatest +
			" is a copy of train_state.pt, and a restore makes it so",
	}
}

// bridgeRun reports whether the run beside a step has Bridge's own pointer.
func bridgeRun(fsys fs.FS, s Step) bool {
	_, err := lstat(fsys, path.Join(path.Dir(s.Name), bridgeLatest))
	return err == nil
}

// Probe implements Prober.
func (bridge) Probe(fsys fs.FS, s Step) Likeness {
	for _, base := range []string{bridgeState, bridgeConfig} {
		if _, err := lstat(fsys, path.Join(s.Name, base)); err == nil {
			return Surely
		}
	}
	if bridgeRun(fsys, s) {
		return Surely
	}
	return Hardly
}

// Judge implements Layout.
func (bridge) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkDCPs()
	m := j.checkMCore(".")
	m.resume()
	if j.files[bridgeState] == nil {
		j.missing(bridgeState)
	}
	j.v.Strength, j.v.Settle = Strong, DefaultSettle // one process writes it, and no barrier is before it
	if j.files[bridgeConfig] == nil {
		j.missing(bridgeConfig)
		j.vouch(nil, nil)
	} else {
		j.vouchFor([]string{bridgeConfig}, func(rel string) bool {
			return m.covers(rel) || rel == bridgeState || rel == mcoreMetadata
		})
	}
	if j.files[bridgeState] != nil {
		j.v.Copies = []commit.Copy{{Path: path.Join(path.Dir(s.Name), bridgeLatest), Of: path.Join(s.Name, bridgeState)}}
	}
	j.v.Pointers = []commit.Pointer{trackerOf(s)}
	return j.verdict(), nil
}
