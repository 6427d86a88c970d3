package layout

import (
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// stateKeys are the members of trainer_state.json that become metadata.
var stateKeys = map[string]bool{
	"global_step": true, "epoch": true, "max_steps": true, "num_train_epochs": true, "train_batch_size": true,
	"best_metric": true, "best_model_checkpoint": true, "best_global_step": true, "num_input_tokens_seen": true,
}

// logKeys are the members of log_history's elements that become metadata; of
// each the last one counts.
var logKeys = map[string]bool{"loss": true, "eval_loss": true, "learning_rate": true, "grad_norm": true, "reward": true}

// maxLogEntry bounds what is kept of one element of log_history, in bytes.
const maxLogEntry = 16 << 10

// meta sets a metadata value that is not nil.
func (v *Verdict) meta(key string, value any) {
	if value == nil {
		return
	}
	if v.Metadata == nil {
		v.Metadata = map[string]any{}
	}
	v.Metadata[key] = value
}

// state judges trainer_state.json, takes the metadata from it, and reads what
// training_args.bin says of the save.
func (h *hfJudge) state() {
	h.args = readArgs(h.tree)
	if h.files[hfState] == nil {
		h.missing(hfState)
		return
	}
	if h.broken[hfState] {
		return
	}
	f, err := h.open(hfState)
	if err != nil {
		h.spoil(hfState, "cannot read %s: %s", hfState, cause(err))
		return
	}
	defer f.Close()
	step, err := h.readState(io.NewSectionReader(f, 0, f.size))
	switch {
	case err != nil:
		h.spoil(hfState, "%s: %v", hfState, err)
	case step == nil:
		h.spoil(hfState, "%s says no global_step", hfState)
	case *step != h.step.Number:
		h.spoil(hfState, "%s says global_step %d, where the step's name says %d", hfState, *step, h.step.Number)
	}
	if best, ok := h.v.Metadata["best_model_checkpoint"].(string); ok {
		h.best(best)
	}
}

// readState takes metadata from the state as it streams by, and returns its
// global_step.
func (h *hfJudge) readState(r io.Reader) (step *int64, err error) {
	j := format.NewJSON(r)
	err = j.Object(func(key string) error {
		switch {
		case key == "log_history":
			if c, err := j.Peek(); err != nil || c != '[' {
				return j.Skip()
			}
			return j.Array(func() error { return h.logEntry(j) })
		case !stateKeys[key]:
			return j.Skip()
		}
		v, err := j.Value(maxLogEntry)
		if n, ok := v.(int64); ok && key == "global_step" {
			step = &n
		}
		h.v.meta(key, v)
		return err
	})
	return step, err
}

func (h *hfJudge) logEntry(j *format.JSON) error {
	v, err := j.Value(maxLogEntry)
	if m, ok := v.(map[string]any); ok {
		for k, x := range m {
			if logKeys[k] {
				h.v.meta(k, x)
			}
		}
	}
	return err
}

// best warns when the best model's step, which the trainer may want to load at
// its end, is nowhere under the root.
func (h *hfJudge) best(p string) {
	base := path.Base(strings.ReplaceAll(strings.TrimRight(p, "/"), `\`, "/"))
	if base == h.step.Name || base == "." || base == "/" {
		return
	}
	if !fs.ValidPath(base) {
		return
	}
	if _, err := lstat(h.fsys, base); err != nil {
		h.warnf("best_model_checkpoint is %s, which is not under this root: load_best_model_at_end may fail after a restore", p)
	}
}

// trainingArgs are what training_args.bin says of the save.
type trainingArgs struct {
	savesAll bool // it says that more than the model is saved
	fp16     bool
	factory  bool // they are LLaMA-Factory's
}

// readArgs reads training_args.bin without executing it; what cannot be read
// says nothing.
func readArgs(t *tree) trainingArgs {
	if t.files[hfArgs] == nil {
		return trainingArgs{}
	}
	f, err := t.open(hfArgs)
	if err != nil {
		return trainingArgs{}
	}
	defer f.Close()
	v, err := format.TorchObject(f, f.size, format.UnpickleOptions{Limit: 8 << 20})
	if err != nil {
		return trainingArgs{}
	}
	only, ok := lookupBool(v, "save_only_model")
	fp16, _ := lookupBool(v, "fp16")
	return trainingArgs{savesAll: ok && !only, fp16: fp16, factory: strings.HasPrefix(moduleOf(v), "llamafactory.")}
}

// moduleOf is the module of an object's class.
func moduleOf(v any) string {
	o, ok := v.(*format.Object)
	if !ok {
		return ""
	}
	class, ok := o.Class.(format.Global)
	if args, isTuple := o.Args.(format.Tuple); isTuple && len(args) > 0 && class.Module == "copyreg" {
		class, ok = args[0].(format.Global) // copyreg._reconstructor(class, …)
	}
	if !ok {
		return ""
	}
	return class.Module
}

func lookupBool(v any, key string) (value, ok bool) {
	x, _ := format.Lookup(v, key)
	value, ok = x.(bool)
	return value, ok
}

// lookupInt returns the integer under a key; of a list of integers the largest.
func lookupInt(v any, key string) (int, bool) {
	x, ok := format.Lookup(v, key)
	if !ok {
		return 0, false
	}
	best, found := 0, false
	take := func(x any) {
		if n, ok := x.(int64); ok && n >= 0 && n < 1<<30 {
			best, found = max(best, int(n)), true
		}
	}
	take(x)
	if l, ok := x.(*format.List); ok {
		for _, x := range l.Items {
			take(x)
		}
	}
	if l, ok := x.(format.Tuple); ok {
		for _, x := range l {
			take(x)
		}
	}
	return best, found
}
