package syncer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// Daemons that look and publish at the same time: one has nothing of the first
// step, and a file that comes late to another makes all of them commit again.
func TestNodesWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		for i, w := range c.nodes {
			c.stop(i)
			w.tune = func(cfg *Config) {
				cfg.now, cfg.after = time.Now, time.After
				cfg.events = func() (*watch.Watcher, error) { return nil, nil }
			}
			c.start(i)
		}
		c.clock.t = time.Now() // of the files that are saved
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for _, e := range c.engines {
			go func() { ended <- e.Watch(ctx, context.WithoutCancel(ctx), time.Minute) }()
		}
		for i, f := range layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: keysOf(2), Seed: 1}) {
			f.MTime = time.Now().Add(time.Duration(i) * time.Millisecond)
			c.write(0, "step-100", f)
		}
		time.Sleep(3 * time.Minute) // of the bubble
		c.nodes[0].wantCommits("100-a1-r0")
		c.clock.t = time.Now()
		c.save(200, 2)
		time.Sleep(time.Minute)
		c.nodes[0].wantCommits("100-a1-r0", "200-a1-r0")
		c.wantContent(commit.ID{Step: 200, Attempt: 1}, 2)
		c.write(1, "step-200", layouttest.File{Name: "notes.txt", Data: []byte("late"), MTime: time.Now()})
		time.Sleep(5 * time.Minute)
		c.nodes[0].wantCommits("100-a1-r0", "200-a1-r0", "200-a1-r1")
		end()
		for range c.engines {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A file that the layout wants to be the same on all nodes keeps the step from
// being committed while it differs, and both nodes are named (R5).
func TestNodesSharedFile(t *testing.T) {
	c := newCluster(t, 2)
	own, err := layout.New(layout.Spec{Name: "own", Step: "step-{step}", Marker: "DONE", Shared: []string{"**/config.json"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range c.nodes {
		c.stop(i)
		w.tune = func(cfg *Config) { cfg.Layouts = []layout.Layout{own} }
		c.start(i)
	}
	save := func(of ...string) {
		for node, text := range of {
			c.write(node, "step-100", layouttest.File{Name: "model/config.json", Data: []byte(text), MTime: c.clock.now()})
		}
		c.write(0, "step-100", layouttest.File{Name: "DONE", Data: []byte("x"), MTime: c.clock.now().Add(time.Millisecond)})
	}
	save(`{"a":1}`, `{"a":2}`)
	c.looks(40)
	c.nodes[0].wantCommits()
	c.wantWhy(0, "step-100", "step-100/model/config.json differs between node 0 and node 1")
	save(`{"a":3}`, `{"a":3}`)
	c.looks(60)
	if got := c.nodes[0].commits(); len(got) != 1 {
		t.Fatal(got, c.why(0, "step-100"), c.why(1, "step-100"))
	}
}
