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

// dims is the size of the model: enough for files that take a moment.
const dims = 64 << 10

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
	return &model{weights: make([]float32, dims), momentum: make([]float32, dims), pcg: rand.NewPCG(1, 2)}
}

// train does one step and returns its loss.
func (m *model) train() float64 {
	const batch, rate, keep = 4, 0.05, 0.9
	r := rand.New(m.pcg) //nolint:gosec // training data, not a secret
	m.step++
	var loss float64
	for range batch {
		at := r.IntN(dims - 64)
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
// file by file, trainer_state.json last. pause is how long it takes between
// two files.
func (m *model) save(dir string, pause time.Duration) error {
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
		if err := os.WriteFile(filepath.Join(step, f.name), f.data, 0o644); err != nil { //nolint:gosec // as a trainer does
			return err
		}
		time.Sleep(pause) // a real model takes its time here
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
	copyFloats(m.weights, st[len(st)-4*dims:])
	mom, err := torchData(filepath.Join(step, "optimizer.pt"))
	if err != nil {
		return nil, err
	}
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
	Every  int    // steps between two saves
	// SlowAt is the step whose save takes for ever, so that there is time to
	// kill it in the middle; 0 for none.
	SlowAt int
}

// Train is the small trainer. It writes a line per step to out: the step and
// its loss, in full precision.
func Train(o TrainOptions, out io.Writer) error {
	m := newModel()
	if o.Resume != "" {
		var err error
		if m, err = load(o.Resume); err != nil {
			return fmt.Errorf("resume from %s: %w", o.Resume, err)
		}
	}
	for m.step < o.Steps {
		loss := m.train()
		if _, err := fmt.Fprintf(out, "step %d loss %x\n", m.step, math.Float64bits(loss)); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // a step of a real training takes longer
		if m.step%o.Every != 0 {
			continue
		}
		pause := 5 * time.Millisecond
		if m.step == o.SlowAt {
			fmt.Fprintf(out, "saving %d\n", m.step) //nolint:errcheck // the next line would fail too
			pause = 400 * time.Millisecond
		}
		if err := m.save(o.Dir, pause); err != nil {
			return fmt.Errorf("save step %d: %w", m.step, err)
		}
	}
	return nil
}
