package demo

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

const (
	dims   = 64 << 10 // size of the model: enough for files that are worth the name
	active = 128      // of these, what the data are about: each training step meets what the last ones did
)

const (
	pace     = 400 * time.Millisecond // that training takes between two saves
	hangTime = 2 * time.Minute        // of a save that hangs: it is killed meanwhile
)

// model is a linear regression that is trained by stochastic gradient descent
// with momentum on data drawn as it goes: like any real training, it continues
// exactly only from its weights, its optimizer and its random state together.
type model struct {
	step     int
	weights  []float32
	momentum []float32
	pcg      *rand.PCG
}

func newModel() *model {
	m := &model{weights: make([]float32, dims), momentum: make([]float32, dims), pcg: rand.NewPCG(1, 2)}
	for i := active; i < dims; i++ { // which stay as they began
		m.weights[i] = float32(math.Cos(float64(i)))
	}
	return m
}

// train does one step and returns its loss.
func (m *model) train() float64 {
	const batch, rate, keep = 4, 0.001, 0.9
	r := rand.New(m.pcg) //nolint:gosec // training data, not a secret
	m.step++
	var loss float64
	for range batch {
		at := r.IntN(active - 64)
		var y, want float32
		x := make([]float32, 64)
		for i := range x {
			x[i] = float32(r.NormFloat64())
			y += x[i] * m.weights[at+i]
			want += x[i] * float32(math.Sin(float64(at+i)))
		}
		d := y - want
		loss += float64(d*d) / batch
		for i := range x {
			p := &m.momentum[at+i]
			*p = keep**p + d*x[i]/batch
			m.weights[at+i] -= rate * *p
		}
	}
	return loss
}

// save writes a step as the Hugging Face Trainer does: into its final name,
// file by file, trainer_state.json last. If it hangs, it does so in the middle
// of a file, as on a disk that does not answer.
func (m *model) save(dir string, hang bool) error {
	step := filepath.Join(dir, fmt.Sprintf("checkpoint-%d", m.step))
	if err := os.MkdirAll(step, 0o755); err != nil {
		return err
	}
	rng, err := m.pcg.MarshalBinary()
	if err != nil {
		return err
	}
	state, err := json.MarshalIndent(map[string]any{"global_step": m.step, "epoch": float64(m.step) / 100, "log_history": []any{}}, "", "  ")
	if err != nil {
		return err
	}
	files := []struct {
		name string
		data []byte
	}{
		{"config.json", []byte(`{"model_type":"demo"}`)},
		{"model.safetensors", safetensors("weights", m.weights)},
		{"training_args.bin", torchZip("training_args", nil)},
		{"optimizer.pt", torchZip("optimizer", floats(m.momentum))},
		{"scheduler.pt", torchZip("scheduler", nil)},
		{"rng_state.pth", torchZip("rng_state", rng)},
		{"trainer_state.json", state},
	}
	for _, f := range files {
		at := filepath.Join(step, f.name)
		if hang && f.name == "optimizer.pt" {
			if err := os.WriteFile(at, f.data[:len(f.data)/2], 0o644); err != nil { //nolint:gosec // as a trainer does
				return err
			}
			time.Sleep(hangTime)
		}
		if err := os.WriteFile(at, f.data, 0o644); err != nil { //nolint:gosec // as a trainer does
			return err
		}
	}
	return nil
}

// load is the inverse of save.
func load(step string) (*model, error) {
	m := newModel()
	st, err := os.ReadFile(filepath.Join(step, "model.safetensors"))
	if err != nil {
		return nil, err
	}
	mom, err := torchData(filepath.Join(step, "optimizer.pt"))
	if err != nil {
		return nil, err
	}
	if len(st) < 4*dims || len(mom) != 4*dims {
		return nil, fmt.Errorf("%s is not of this model, or torn", step)
	}
	copyFloats(m.weights, st[len(st)-4*dims:])
	copyFloats(m.momentum, mom)
	rng, err := torchData(filepath.Join(step, "rng_state.pth"))
	if err != nil {
		return nil, err
	}
	if err := m.pcg.UnmarshalBinary(rng); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(step, "trainer_state.json"))
	if err != nil {
		return nil, err
	}
	var state struct {
		Step int `json:"global_step"`
	}
	err = json.Unmarshal(data, &state)
	m.step = state.Step
	return m, err
}

func floats(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func copyFloats(v []float32, b []byte) {
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// safetensors is a file of one tensor.
func safetensors(name string, v []float32) []byte {
	header := fmt.Appendf(nil, `{%q:{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}`, name, len(v), 4*len(v))
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), floats(v)...)
}

// torchZip is a file as torch.save lays it out: an empty dictionary, and data
// as its one storage.
func torchZip(stem string, data []byte) []byte {
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, r := range []struct {
		name string
		data []byte
	}{
		{"data.pkl", []byte("\x80\x02}.")},
		{"byteorder", []byte("little")},
		{"data/0", data},
		{"version", []byte("3\n")},
	} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: stem + "/" + r.name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(r.data)
		}
		if err != nil {
			panic("zip in memory: " + err.Error()) // cannot fail
		}
	}
	if err := z.Close(); err != nil {
		panic("zip in memory: " + err.Error())
	}
	return buf.Bytes()
}

func torchData(path string) ([]byte, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	for _, f := range z.File {
		if filepath.Base(filepath.Dir(f.Name)) != "data" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("%s holds no data", path)
}

// TrainOptions are what the small trainer is started with.
type TrainOptions struct {
	Dir    string // output directory
	Resume string // path of a step, or empty
	Steps  int    // to train up to
	Every  int    // steps between two saves; 0: none
	HangAt int    // the step whose save hangs in the middle, to be killed there; 0: none
}

// Train is the small trainer. It writes a line per step to out: the step and
// its loss, in full precision; and a line when it saves.
func Train(o TrainOptions, out io.Writer) error {
	m := newModel()
	if o.Resume != "" {
		var err error
		if m, err = load(o.Resume); err != nil {
			return fmt.Errorf("resume from %s: %w", o.Resume, err)
		}
	}
	say := func(format string, args ...any) error {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		return err
	}
	for m.step < o.Steps {
		loss := m.train()
		if err := say("step %d loss %x", m.step, math.Float64bits(loss)); err != nil {
			return err
		}
		if o.Every == 0 || m.step%o.Every != 0 {
			continue
		}
		time.Sleep(pace)
		if err := say("saving checkpoint-%d", m.step); err != nil {
			return err
		}
		if err := m.save(o.Dir, m.step == o.HangAt); err != nil {
			return fmt.Errorf("save step %d: %w", m.step, err)
		}
	}
	return say("trained up to step %d", m.step)
}
