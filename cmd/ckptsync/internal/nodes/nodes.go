// Package nodes finds out which node of its job this process is on: from what
// its owner said, and from the variables that schedulers and launchers set.
//
// That a job has several nodes does not say that each of them saves a part of
// a step: often one rank writes all of it, or all write into one shared
// directory. So nothing is made of what is found unless the owner asks for
// several nodes; otherwise Resolve only says what there is.
package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Auto, for a number of nodes, takes what the environment says.
const Auto = "auto"

// Asked is what the owner said, as it was written; empty: nothing.
type Asked struct {
	Nodes string // a number, or Auto
	Node  string
	Join  string
}

// Identity is a node of a job. Its zero value, but for Nodes 1, is the only one.
type Identity struct {
	Nodes int
	Node  int
	Join  string // empty if Nodes is 1
	From  string // where all that is from, for people; empty if nothing was asked for or found
}

// Environment is what detection looks at.
type Environment struct {
	Getenv   func(string) string
	Hostname string // in a Kubernetes pod its name; empty: os.Hostname
}

// maxJoin bounds a join key, in bytes.
const maxJoin = 200

// Resolve says which node this is. What was asked for wins; what is missing of
// it comes from the environment. Sources that contradict each other, or the
// number that was asked for, are an error that names them. If nothing was asked
// for it is the only node, and From says if the environment knows of more.
func Resolve(asked Asked, env Environment) (Identity, error) {
	if env.Hostname == "" {
		env.Hostname, _ = os.Hostname() // only a source of names; without one there are fewer
	}
	found := detect(env)
	if asked.Nodes == "" {
		if asked.Node != "" || asked.Join != "" {
			return Identity{}, errors.New("--node and --join are for several nodes: say how many with --nodes (or auto)")
		}
		return Identity{Nodes: 1, From: several(found)}, nil
	}
	id, from, err := asked.parse()
	if err != nil {
		return Identity{}, err
	}
	m, err := merge(found)
	if err != nil && (id.Nodes < 0 || id.Node < 0) {
		return Identity{}, err
	}
	if id.Nodes < 0 {
		if id.Nodes = m.nodes; id.Nodes < 0 {
			return Identity{}, m.missing("how many nodes there are", "--nodes")
		}
		from = append(from, "nodes from "+m.nodesFrom)
	}
	if id.Nodes == 1 {
		return Identity{Nodes: 1}, nodeOf(id)
	}
	return complete(id, m, from)
}

// complete fills in the node and the join key.
func complete(id Identity, m merged, from []string) (Identity, error) {
	if id.Node < 0 {
		if id.Node = m.node; id.Node < 0 {
			return Identity{}, m.missing("which node this is", "--node")
		}
		if m.nodes >= 0 && m.nodes != id.Nodes {
			return Identity{}, fmt.Errorf("--nodes says %d, and %s says %d, which numbers the nodes: say which one this is with --node", id.Nodes, m.nodesFrom, m.nodes)
		}
		from = append(from, "node from "+m.nodeFrom)
	}
	if id.Join == "" {
		if id.Join = m.join; id.Join == "" {
			return Identity{}, m.missing("what names this start of the job on all its nodes alike", "--join")
		}
		from = append(from, "join key from "+m.joinFrom)
	}
	id.From = strings.Join(from, ", ")
	return id, nodeOf(id)
}

func nodeOf(id Identity) error {
	if id.Node >= id.Nodes {
		return fmt.Errorf("node %d of %d: nodes are numbered from 0 to %d", id.Node, id.Nodes, id.Nodes-1)
	}
	return nil
}

// parse reads what was said; -1 stands for what was not.
func (a Asked) parse() (Identity, []string, error) {
	id := Identity{Nodes: -1, Node: -1, Join: a.Join}
	var from []string
	if a.Nodes != Auto {
		n, ok := number(a.Nodes)
		if !ok || n < 1 {
			return id, nil, fmt.Errorf("--nodes: %q is neither a number of nodes nor auto", a.Nodes)
		}
		id.Nodes = n
	}
	if a.Node != "" {
		n, ok := number(a.Node)
		if !ok {
			return id, nil, fmt.Errorf("--node: %q is no number of a node", a.Node)
		}
		id.Node = n
	}
	if len(a.Join) > maxJoin || strings.ContainsFunc(a.Join, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }) {
		return id, nil, fmt.Errorf("--join: %.40q is no join key: at most %d bytes, and no control characters", a.Join, maxJoin)
	}
	if id.Nodes >= 0 || id.Node >= 0 || id.Join != "" {
		from = append(from, "settings")
	}
	return id, from, nil
}

// number parses a whole number that is not negative.
func number(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int(n), err == nil && n >= 0
}

// source is what one scheduler or launcher says; -1 and empty stand for what it
// does not.
type source struct {
	name  string // for people, with its variables
	nodes int
	node  int
	join  string
	why   string // why something is missing, for people
}

// merged is what all sources say together.
type merged struct {
	source
	nodesFrom, nodeFrom, joinFrom string
	whys                          []string
}

// merge takes from each source what those before it do not say. Numbers that
// contradict each other are an error.
func merge(found []source) (merged, error) {
	m := merged{source: source{nodes: -1, node: -1}}
	var err error
	for _, s := range found {
		if s.nodes >= 0 && m.nodes >= 0 && s.nodes != m.nodes {
			err = cmp.Or(err, fmt.Errorf("%s says %d nodes and %s says %d: say how many with --nodes, and which one with --node", m.nodesFrom, m.nodes, s.name, s.nodes))
		}
		if s.node >= 0 && m.node >= 0 && s.node != m.node {
			err = cmp.Or(err, fmt.Errorf("%s says node %d and %s says node %d: say which one with --node, and how many with --nodes", m.nodeFrom, m.node, s.name, s.node))
		}
		if m.nodes < 0 && s.nodes >= 0 {
			m.nodes, m.nodesFrom = s.nodes, s.name
		}
		if m.node < 0 && s.node >= 0 {
			m.node, m.nodeFrom = s.node, s.name
		}
		if m.join == "" && s.join != "" {
			m.join, m.joinFrom = s.join, s.name
		}
		if s.why != "" {
			m.whys = append(m.whys, s.name+": "+s.why)
		}
	}
	return m, err
}

// missing is the error for what neither the owner nor the environment says.
func (m merged) missing(what, flag string) error {
	why := ""
	if len(m.whys) > 0 {
		why = " (" + strings.Join(m.whys, "; ") + ")"
	}
	return fmt.Errorf("nothing says %s%s: give %s", what, why, flag)
}

// several says which source knows of several nodes; empty if none does.
func several(found []source) string {
	for _, s := range found {
		if s.nodes > 1 {
			return fmt.Sprintf("%s says %d nodes", s.name, s.nodes)
		}
	}
	return ""
}
