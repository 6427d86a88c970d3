package syncer

import (
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob/meterblob"
)

// What one step costs a node in requests does not grow with the number of
// nodes, but for the leader, which reads every part, the head of every file, and
// every vote.
func TestNodesRequests(t *testing.T) {
	small, large := 4, 256
	if raced {
		large = 32
	}
	leader, most, all := stepCost(t, small)
	leaderL, mostL, allL := stepCost(t, large)
	t.Logf("requests of one step: %d nodes: the leader %d, another at most %d, together %d; %d nodes: %d, %d, %d", small, leader, most, all, large, leaderL, mostL, allL)
	if mostL > most {
		t.Errorf("a node that does not lead needs up to %d requests among %d nodes, and %d among %d", most, small, mostL, large)
	}
	if more := int64(large - small); leaderL-leader > 3*more+4 { // and a page of a listing more
		t.Errorf("the leader needs %d more requests for %d more nodes", leaderL-leader, more)
	}
	if per := allL / int64(large); per > all/int64(small) {
		t.Errorf("%d requests a node among %d, and %d among %d", all/int64(small), small, per, large)
	}
}

// stepCost is what a step costs the leader in requests, another node at most,
// and all together.
func stepCost(t *testing.T, n int) (leader, most, all int64) {
	t.Helper()
	c := newCluster(t, n)
	c.look() // attached
	c.save(100, 1)
	before := make([]int64, n)
	for i, m := range c.meters {
		before[i] = requestsOf(m)
	}
	c.look()
	c.clock.after(4 * time.Second) // settled
	for len(c.nodes[0].commits()) == 0 {
		c.look()
	}
	c.look()
	for i, m := range c.meters {
		d := requestsOf(m) - before[i]
		if all += d; i == 0 {
			leader = d
		} else {
			most = max(most, d)
		}
	}
	return leader, most, all
}

func requestsOf(b *meterblob.Bucket) (n int64) {
	for _, c := range b.Stats().Calls {
		n += c
	}
	return n
}
