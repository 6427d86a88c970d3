package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// A daemon that is killed, with its state or without, goes on; what is sealed
// counts.
func TestNodesRestart(t *testing.T) {
	for _, lose := range []bool{false, true} {
		for _, node := range []int{0, 1} {
			for _, after := range []int{0, 5, 6, 7, 8, 9} {
				t.Run(fmt.Sprintf("lose=%v node=%d after=%d", lose, node, after), func(t *testing.T) {
					t.Parallel()
					c := newCluster(t, 2)
					c.save(100, 1)
					c.looks(after)
					c.stop(node)
					if lose {
						if err := os.RemoveAll(c.nodes[node].root + ".ckptsync"); err != nil {
							t.Fatal(err)
						}
						c.claim(node)
					}
					c.start(node)
					c.looks(90)
					got := c.nodes[0].commits()
					if len(got) != 1 {
						t.Fatalf("%v; %s; %s", got, c.why(0, "step-100"), c.why(1, "step-100"))
					}
					c.wantContent(c.nodes[0].view().Commits[0].ID, 1)
				})
			}
		}
	}
}

// The trainer deletes the step on every node as soon as it was sealed: the
// holds have it.
func TestNodesRotate(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	for range 40 {
		c.look()
		if s := c.why(0, "step-100"); strings.HasPrefix(s, "sealed") {
			break
		}
	}
	for _, w := range c.nodes {
		if err := os.RemoveAll(filepath.Join(w.root, "step-100")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
	c.wantContent(commit.ID{Step: 100, Attempt: 1}, 1)
}

// The leader is gone after its vote: any other node writes the marker.
func TestNodesCommitWithoutTheLeader(t *testing.T) {
	c := newCluster(t, 3)
	c.save(100, 1)
	for range 60 {
		c.look()
		voters, err := c.nodes[0].store().Voters(context.Background(), commit.ID{Step: 100, Attempt: 1})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(voters, func(k commit.PartKey) bool { return k.Node == 0 }) {
			break
		}
	}
	c.nodes[0].wantCommits()
	c.stop(0)
	c.looks(60)
	c.nodes[1].wantCommits("100-a1-r0")
}

// Every node has voted, and then all of them are gone: the first that comes
// back writes the marker, though its files are gone too; or the next start of
// the job, before it looks for the newest step.
func TestNodesCommitAfterTheEnd(t *testing.T) {
	t.Run("daemon", func(t *testing.T) {
		c := newCluster(t, 3)
		id := c.votedAndGone()
		c.start(2)
		if err := c.engines[2].attach(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.nodes[0].wantCommits("100-a1-r0")
		c.wantContent(id, 1)
	})
	t.Run("restore", func(t *testing.T) {
		c := newCluster(t, 3)
		id := c.votedAndGone()
		e := c.nodes[0].fresh().engine()
		defer e.Close()
		res, err := e.Restore(t.Context(), RestoreOptions{Policy: restore.Policy{WeightsOK: true}})
		if err != nil || res.ID != id {
			t.Fatal(res.ID, err)
		}
		c.wantContent(id, 1)
	})
}

// votedAndGone brings a step of three nodes to where all have voted for it and
// none has written its marker, and takes them and their disks away.
func (c *cluster) votedAndGone() commit.ID {
	t := c.t
	t.Helper()
	c.save(100, 1)
	id := commit.ID{Step: 100, Attempt: 1}
	for range 60 {
		c.look()
		voters, err := c.nodes[0].store().Voters(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(silentNodes(voters, 3)) == 0 {
			break
		}
		if slices.ContainsFunc(voters, func(k commit.PartKey) bool { return k.Node == 0 }) {
			c.stop(0) // the leader, which would write it
		}
	}
	c.nodes[0].wantCommits()
	for i, w := range c.nodes {
		c.stop(i)
		if err := os.RemoveAll(w.root); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// A second host that takes a node's place ends the first: what that would still
// write counts no more.
func TestNodesReplacedHost(t *testing.T) {
	c := newCluster(t, 2)
	old := c.nodes[1]
	c.save(100, 1)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0")
	zombie := c.engines[1]
	c.engines[1] = nil
	t.Cleanup(func() { zombie.Close() })
	c.nodes[1] = old.fresh()
	c.nodes[1].clock = c.clock
	c.claim(1)
	c.start(1)
	c.save(200, 2)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0", "200-a1-r0")
	c.wantContent(commit.ID{Step: 200, Attempt: 1}, 2)
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: keysOf(2), Seed: 7})
	files[1].MTime = c.clock.now()
	if err := layouttest.WriteFiles(filepath.Join(old.root, "step-200"), files[1:2]); err != nil {
		t.Fatal(err)
	}
	var gone *SupersededError
	for range 10 {
		c.clock.after(time.Second)
		if err := zombie.scan(); err != nil {
			t.Fatal(err)
		}
		if l := zombie.next(func(*life) bool { return true }); l != nil {
			if err := zombie.publish(t.Context(), l); errors.As(err, &gone) {
				break
			}
		}
	}
	if gone == nil {
		t.Fatal("the old host does not see that it was replaced")
	}
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0", "200-a1-r0")
}

// sealedBy brings a step of two nodes to where both have sealed and none has voted,
// and has another host claim the place of one of them.
func (c *cluster) sealedBy(replaced int) {
	t, store, id := c.t, c.nodes[0].store(), commit.ID{Step: 100, Attempt: 1}
	t.Helper()
	c.save(100, 1)
	sealed := func() int {
		parts, err := store.Parts(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return len(parts)
	}
	for range 60 {
		if sealed() < 2 {
			c.look()
		}
	}
	if voters, err := store.Voters(t.Context(), id); err != nil || len(voters) > 0 || sealed() < 2 {
		t.Fatalf("%d parts, votes of %v, %v", sealed(), voters, err)
	}
	if _, err := store.DrawClaim(t.Context(), c.attempt.Attempt, replaced, "another host"); err != nil {
		t.Fatal(err)
	}
}

// What a host had sealed before its place was taken counts no more, though it is
// there, and the host lives and would vote for it.
func TestNodesSealOfAReplacedHost(t *testing.T) {
	c := newCluster(t, 2)
	c.sealedBy(1)
	c.looks(60)
	c.nodes[0].wantCommits()
	c.wantWhy(0, "step-100", "node 1")
}

// The one that leads is told, too: it would else wait for its own part.
func TestNodesReplacedLeaderIsTold(t *testing.T) {
	c := newCluster(t, 2)
	c.sealedBy(0)
	var gone *SupersededError
	for range 60 {
		if err := c.engines[0].scan(); err != nil {
			t.Fatal(err)
		}
		if l := c.engines[0].next(func(*life) bool { return true }); l != nil {
			if err := c.engines[0].publish(t.Context(), l); errors.As(err, &gone) {
				break
			}
		}
		c.clock.after(time.Second)
	}
	if gone == nil || gone.Claim != 0 || gone.Newest != 1 {
		t.Errorf("told: %v; %s", gone, c.why(0, "step-100"))
	}
	c.nodes[0].wantCommits()
}

// leaderVotes brings a step of two nodes to where node 1 has sealed and not
// voted, and node 0, which leads, has voted.
func (c *cluster) leaderVotes(id commit.ID) {
	c.t.Helper()
	for range 60 {
		c.look()
		parts, err := c.nodes[0].store().Parts(c.t.Context(), id)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(parts) == 2 {
			break
		}
	}
	for range 60 {
		c.look(0)
		voters, err := c.nodes[0].store().Voters(c.t.Context(), id)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(voters) == 1 && voters[0].Node == 0 {
			return
		}
	}
	c.t.Fatal("the leader has not voted")
}

// A node that lost its state has claimed again: the part that it sealed before,
// for which the leader has voted and which its disk still has, is its own, and
// nothing is sent or sealed again.
func TestNodesAdoptWhatTheyHad(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	id := commit.ID{Step: 100, Attempt: 1}
	c.leaderVotes(id)
	before := c.dataObjects()
	c.stop(1)
	if err := os.RemoveAll(c.nodes[1].root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	c.claim(1)
	c.start(1)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0")
	if after := c.dataObjects(); after != before {
		t.Errorf("%d data objects, %d before the state was lost", after, before)
	}
}

// The same for the node that leads: its own vote stands.
func TestNodesLeaderAdoptsItsVote(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	c.leaderVotes(commit.ID{Step: 100, Attempt: 1})
	c.stop(0)
	if err := os.RemoveAll(c.nodes[0].root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	c.claim(0)
	c.start(0)
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
}

func (c *cluster) dataObjects() (n int) {
	c.t.Helper()
	for _, err := range c.nodes[0].store().Data(c.t.Context()) {
		if err != nil {
			c.t.Fatal(err)
		}
		n++
	}
	return n
}

// What changed after a node saw the stamp is of another save, though the node
// has sealed nothing yet; also for a daemon that was started again since.
func TestNodesSealNothingThatChangedUnderAStamp(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	spoiled := false
	c.stop(1)
	c.nodes[1].tune = func(cfg *Config) {
		cfg.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			if e := c.engines[1]; e != nil && !spoiled {
				if l := e.lives[name]; l != nil && l.part != nil && len(l.part.under) > 0 {
					spoiled = true // the trainer begins to save again on this node alone
					c.save(100, 2, 1)
				}
			}
			return tree.Capture(root, name, skip)
		}
	}
	c.start(1)
	c.looks(60)
	if !spoiled {
		t.Fatal("never saw the stamp")
	}
	c.wantWhy(1, "step-100", "changed after the evidence")
	c.stop(1)
	c.start(1)
	c.looks(60)
	c.nodes[0].wantCommits()
	c.wantWhy(1, "step-100", "changed after the evidence")
	c.save(100, 2, 0)
	c.looks(60)
	if got := c.nodes[0].commits(); len(got) != 1 {
		t.Fatal(got)
	}
	c.wantContent(c.nodes[0].view().Commits[0].ID, 2)
}
