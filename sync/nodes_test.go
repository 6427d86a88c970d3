package syncer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// as makes a world one node of several.
func (w *world) as(node, nodes int, join string) *world {
	tune := w.tune
	w.tune = func(c *Config) {
		if tune != nil {
			tune(c)
		}
		c.Node, c.Nodes, c.Join = node, nodes, join
	}
	return w
}

// attach attaches an engine of its own, and returns the state it has then.
func (w *world) attach() (state, error) {
	w.t.Helper()
	e := w.engine()
	defer e.Close()
	if err := e.attach(w.t.Context()); err != nil {
		return state{}, err
	}
	return *e.attempt(), nil
}

func (w *world) mustAttach() state {
	w.t.Helper()
	st, err := w.attach()
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// claims are the newest claims on an attempt.
func (w *world) claims(attempt int) map[int]int {
	w.t.Helper()
	m, err := w.store().NewestClaims(w.t.Context(), attempt)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func TestNodesThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		nodes, node int
		join, want  string
	}{
		{4, 4, "j", "node 4 of 4: nodes are numbered from 0 to 3"},
		{4, -1, "j", "node -1 of 4"},
		{0, 1, "", "node 1 of 1"},
		{2, 0, "", "2 nodes without a join key"},
		{10_001, 0, "j", "at most 10000"},
	} {
		w := newWorld(t)
		_, err := New(Config{Run: "exp1", Root: w.root, Bucket: w.bucket, Nodes: c.nodes, Node: c.node, Join: c.join})
		var n *NodesError
		if !errors.As(err, &n) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestASingleNodeClaimsNothing(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	w.restore(RestoreOptions{})
	for _, key := range w.objects() {
		if strings.HasPrefix(key, "exp1/attempts/000001/") || strings.HasPrefix(key, "exp1/votes/") {
			t.Errorf("it wrote %s", key)
		}
	}
	data, err := os.ReadFile(w.root + ".ckptsync/attempt.json")
	if err != nil || strings.Contains(string(data), "nodes") || strings.Contains(string(data), "join") {
		t.Errorf("state %s %v", data, err)
	}
}

func TestDaemonsOfOneStartEndUpInOneAttempt(t *testing.T) {
	const nodes = 8
	a := newWorld(t)
	ws := []*world{a.as(0, nodes, "job.0")}
	for i := 1; i < nodes; i++ {
		ws = append(ws, a.fresh().as(i, nodes, "job.0"))
	}
	var wg sync.WaitGroup
	for _, w := range ws {
		wg.Go(func() {
			st, err := w.attach()
			if err != nil || st.Attempt != 1 || st.Claim != 0 || st.nodes() != nodes || st.Join != "job.0" {
				t.Errorf("%+v %v", st, err)
			}
		})
	}
	wg.Wait()
	v := a.view()
	if len(v.Attempts) != 1 || v.Attempts[0].Nodes != nodes || v.Attempts[0].Declared || v.Attempts[0].Rank != 0 {
		t.Fatalf("attempts %+v", v.Attempts)
	}
	if c := a.claims(1); len(c) != nodes {
		t.Errorf("claims %v", c)
	}
	// A daemon that is started again keeps its claim; one that lost its state
	// claims again, in the same attempt.
	if st := ws[3].mustAttach(); st.Claim != 0 || st.Node != 3 {
		t.Errorf("started again: %+v", st)
	}
	if err := os.RemoveAll(ws[3].root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	if st := ws[3].mustAttach(); st.Attempt != 1 || st.Claim != 1 {
		t.Errorf("its state lost: %+v", st)
	}
	// The next start of the job is another attempt.
	if st := ws[0].as(0, nodes, "job.1").mustAttach(); st.Attempt != 2 || st.Claim != 0 || st.Join != "job.1" {
		t.Errorf("the next start: %+v", st)
	}
}

func TestADaemonJoinsWhatARestoreDeclared(t *testing.T) {
	w := newWorld(t).as(1, 2, "job.0")
	declare := func(base *commit.ID) commit.Attempt {
		a, err := w.store().DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) {
			return commit.Attempt{Declared: true, Nodes: 2, Join: "job.0", Base: base}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	start := func(attempt int, decision string) {
		if _, err := w.store().PutStart(t.Context(), &commit.Start{Attempt: attempt, Decision: decision}); err != nil {
			t.Fatal(err)
		}
	}
	lose := func() {
		if err := os.RemoveAll(w.root + ".ckptsync"); err != nil {
			t.Fatal(err)
		}
	}
	declare(nil)
	if st := w.mustAttach(); st.Attempt != 1 || !st.Declared {
		t.Errorf("%+v", st)
	}
	start(1, commit.StartGo)
	lose()
	if st := w.mustAttach(); st.Attempt != 1 || st.Claim != 1 {
		t.Errorf("an attempt that trains: %+v", st)
	}
	declare(nil)
	start(2, commit.StartVoid)
	lose()
	if st := w.mustAttach(); st.Attempt != 3 || st.Declared {
		t.Errorf("beside a void attempt: %+v", st)
	}
}

func TestAClaimThatWasTakenOver(t *testing.T) {
	w := newWorld(t).as(1, 2, "job.0")
	w.mustAttach()
	other := w.fresh().as(1, 2, "job.0") // its host was replaced, and lives on
	if st := other.mustAttach(); st.Attempt != 1 || st.Claim != 1 {
		t.Errorf("%+v", st)
	}
	var lost *SupersededError
	if _, err := w.attach(); !errors.As(err, &lost) || lost.Newest != 1 {
		t.Errorf("%v", err)
	}
}

func TestContradictionsOfNodes(t *testing.T) {
	w := newWorld(t).as(1, 2, "job.0")
	w.mustAttach()
	var n *NodesError
	for _, c := range []Config{{Node: 0, Nodes: 2, Join: "job.0"}, {Node: 1, Nodes: 3, Join: "job.0"}} {
		c.Run, c.Root, c.Bucket, c.StoreURL = "exp1", w.root, w.bucket, "mem://"
		if _, err := New(c); !errors.As(err, &n) || !strings.Contains(err.Error(), "node 1 of 2 under join key job.0") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := w.fresh().as(0, 3, "job.0").attach(); !errors.As(err, &n) || !strings.Contains(err.Error(), "is of 2 nodes") {
		t.Errorf("another count: %v", err)
	}
	if _, err := w.as(0, 1, "").attach(); !errors.As(err, &n) || !strings.Contains(err.Error(), "say which node this is") {
		t.Errorf("a single node: %v", err)
	}
}

func TestSeveralNodesNeedCreateIfAbsent(t *testing.T) {
	w := newWorld(t).as(0, 2, "job.0")
	w.bucket = unconditional{w.bucket, false}
	e := w.engine()
	defer e.Close()
	for range 2 { // what a probe found out is remembered
		var n *NodesError
		if err := e.attach(t.Context()); !errors.As(err, &n) || !strings.Contains(err.Error(), "no create-if-absent") {
			t.Errorf("%v", err)
		}
	}
	if len(w.view().Attempts) > 0 {
		t.Error("it drew an attempt")
	}
}

// TestBaseOfSeveralNodes: a daemon without state finds what it continues, be it
// this node's part alone, as it was saved, or all parts, as a restore brought
// them.
func TestBaseOfSeveralNodes(t *testing.T) {
	shared := map[string]string{"config.json": "{}"}
	part := func(n string) map[string]string {
		return map[string]string{"config.json": "{}", "rank-" + n + ".bin": "bytes of " + n}
	}
	all := map[string]string{"config.json": "{}", "rank-0.bin": "bytes of 0", "rank-1.bin": "bytes of 1"}
	torn := map[string]string{"config.json": "{}", "rank-1.bin": "bytes of 2"}
	more := map[string]string{"config.json": "{}", "rank-1.bin": "bytes of 1", "rank-7.bin": "?"}
	for name, c := range map[string]struct {
		node, nodes int
		disk        map[string]string
		want        bool
	}{
		"own part":           {1, 2, part("1"), true},
		"the whole":          {1, 2, all, true},
		"another's part":     {1, 2, part("0"), false},
		"not the own part":   {1, 2, shared, false},
		"other bytes":        {1, 2, torn, false},
		"a file besides":     {1, 2, more, false},
		"elastic, the whole": {2, 4, all, true},
		"elastic, a part":    {2, 4, part("1"), true},
		"elastic, torn":      {2, 4, torn, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).as(c.node, c.nodes, "job.1")
			r := committest.In(t, w.bucket, "exp1")
			r.Declare(nil)
			r.Commit(id(100, 1, 0), "checkpoint-100", part("0"), part("1"))
			for p, content := range c.disk {
				name := filepath.Join(w.root, "checkpoint-100", p)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			switch st := w.mustAttach(); {
			case c.want && (st.Base == nil || *st.Base != id(100, 1, 0)):
				t.Errorf("base %v", st.Base)
			case !c.want && st.Base != nil:
				t.Errorf("base %v", st.Base)
			}
			if a := w.view().Attempts[1]; c.want && a.Rank != 1 || !c.want && a.Rank != 0 {
				t.Errorf("rank %d", a.Rank)
			}
		})
	}
}
