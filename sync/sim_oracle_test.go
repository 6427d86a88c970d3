package syncer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// simOracle knows what the trainers saved, and holds the raw objects of the

// store against the promises. It reads keys and JSON by itself: what it asks of

// package commit is what it compares with.
type simOracle struct {
	w       *sim
	saves   map[string][]*simSave    // finished ones, by step name
	first   map[string]commit.Digest // what an object that never changes had at first
	body    map[string]*simBody
	matched map[simID]*simSave // by commit: what it is of
	ever    map[*simSave][]int // by save: the attempts that committed it
	writer  map[string]*simProc
	rotten  map[string]bool // objects that were damaged on purpose
	heads   []simHead       // each with the event from which on it was
	v       *simView
	marks   string
}

// simSave is a state of a step that a trainer has finished, by node: what may be

// committed.
type simSave struct {
	name  string
	step  int64
	job   int
	save  int                 // its number
	parts []map[string][]byte // by path below the root
}

// simBody is an object as it was read; json is what was made of it.
type simBody struct {
	etag string
	data []byte
	json any
	sum  string
}

type simID struct {
	step     int64
	attempt  int
	revision int
}

func (i simID) id() commit.ID {
	return commit.ID{Step: i.step, Attempt: i.attempt, Revision: i.revision}
}

// simView is the store as the oracle reads it.
type simView struct {
	attempts map[int]*simAttempt
	markers  map[simID]*simBody
	tombs    map[simID]bool
	marks    map[simID]map[string]bool
	excluded map[int]bool
	keys     map[string]bool
}

type simAttempt struct {
	Declared bool
	Rank     int
	Base     *struct {
		Step     int64
		Attempt  int
		Revision int
	}
	Join string
}

var (
	simKeyOfID      = regexp.MustCompile(`^(commits|tombs|marks)/(\d{12,})-a(\d{6,})-r(\d{2,})\.(?:(\w+)\.)?json$`)
	simKeyOfAttempt = regexp.MustCompile(`^attempts/(\d{6,})\.json$`)
	simKeyOfAll     = regexp.MustCompile(`^marks/a(\d{6,})\.excluded\.json$`)
)

func newSimOracle(w *sim) *simOracle {
	return &simOracle{
		w: w, saves: map[string][]*simSave{}, first: map[string]commit.Digest{}, body: map[string]*simBody{},
		matched: map[simID]*simSave{}, ever: map[*simSave][]int{}, rotten: map[string]bool{}, writer: map[string]*simProc{},
	}
}

func simInt(s string) int { n, _ := strconv.Atoi(s); return n }

// check is called after every event.
func (o *simOracle) check() {
	if !o.w.store.changed {
		return
	}
	o.w.store.changed = false
	o.read()
	for id, marker := range o.v.markers {
		if !o.v.tombs[id] {
			o.whole(id, marker)
		}
	}
	o.ranks()
	o.head()
	if n := len(o.heads); n > 0 && o.heads[n-1].ok {
		o.succession(o.heads[n-1].id)
	}
}

// read takes up the objects that are new, and sees that none that must never

// change did.
func (o *simOracle) read() {
	v := &simView{attempts: map[int]*simAttempt{}, markers: map[simID]*simBody{}, tombs: map[simID]bool{}, marks: map[simID]map[string]bool{}, excluded: map[int]bool{}, keys: map[string]bool{}}
	o.v = v
	for info, err := range o.w.store.raw.List(context.Background(), simRun+"/") {
		o.w.must(err)
		key := strings.TrimPrefix(info.Key, simRun+"/")
		b := o.body[key]
		if b == nil || b.etag != info.ETag {
			data, err := blob.ReadAll(context.Background(), o.w.store.raw, info.Key, 1<<30)
			o.w.must(err)
			b = &simBody{etag: info.ETag, data: data}
			o.body[key] = b
			o.unchanged(key, data)
		}
		v.keys[key] = true
		v.add(key, b)
	}
}

func (o *simOracle) unchanged(key string, data []byte) {
	if strings.HasPrefix(key, "marks/") || strings.HasPrefix(key, "probe/") || strings.HasPrefix(key, "clock/") || o.rotten[key] {
		return
	}
	d := commit.Sum(data)
	if was, ok := o.first[key]; ok && was != d {
		o.w.fail("%s has two contents", key)
	}
	o.first[key] = d
}

func (v *simView) add(key string, b *simBody) {
	if m := simKeyOfAttempt.FindStringSubmatch(key); m != nil {
		v.attempts[simInt(m[1])] = simJSON[simAttempt](b)
		return
	}
	if m := simKeyOfAll.FindStringSubmatch(key); m != nil {
		v.excluded[simInt(m[1])] = true
	}
	m := simKeyOfID.FindStringSubmatch(key)
	if m == nil {
		return
	}
	id := simID{int64(simInt(m[2])), simInt(m[3]), simInt(m[4])}
	switch m[1] {
	case "commits":
		v.markers[id] = b
	case "tombs":
		v.tombs[id] = true
	case "marks":
		if v.marks[id] == nil {
			v.marks[id] = map[string]bool{}
		}
		v.marks[id][m[5]] = true
	}
}

// simJSON is what an object says, decoded once. What is no JSON says nothing.
func simJSON[T any](b *simBody) *T {
	if v, ok := b.json.(*T); ok {
		return v
	}
	v := new(T)
	_ = json.Unmarshal(b.data, v)
	b.json = v
	return v
}

func (b *simBody) digest() string {
	if b.sum == "" {
		b.sum = fmt.Sprint(commit.Sum(b.data))
	}
	return b.sum
}

// simMarker is what the oracle reads of a marker.
type simMarker struct {
	Parts []struct {
		Node, Claim int
		Digest      string
	}
}

// simManifest is what the oracle reads of a part manifest.
type simManifest struct {
	Node  int
	Claim int
	Name  string
	Stamp string
	Files []struct {
		Path   string
		Type   string
		Object string
		Size   int64
	}
}

// whole holds a commit against what was saved: all that it names is there, and

// it is one save of a trainer, not a mixture.
func (o *simOracle) whole(id simID, marker *simBody) {
	m := simJSON[simMarker](marker)
	var parts []map[string][]byte
	name := ""
	for _, p := range m.Parts {
		key := fmt.Sprintf("parts/%s/node-%05d.%02d.json", id.id(), p.Node, p.Claim)
		if !o.v.keys[key] {
			o.w.fail("commit %s: its manifest %s is not there", id.id(), key)
			return
		}
		b := o.body[key]
		if b.digest() != p.Digest {
			o.w.fail("commit %s: the manifest %s is not the one that its marker names", id.id(), key)
		}
		files, step := o.files(id, b)
		parts, name = append(parts, files), step
	}
	if o.matched[id] != nil || o.w.broken != "" {
		return
	}
	save := o.match(name, parts)
	if save == nil {
		o.w.fail("commit %s is no save of %s that a trainer has finished", id.id(), name)
		return
	}
	if job := o.w.jobOf[id.attempt]; job != 0 && save.job != job {
		o.w.fail("commit %s is of attempt %d, and job %d has saved it before that was declared", id.id(), id.attempt, save.job)
	}
	o.matched[id] = save
	o.ever[save] = append(o.ever[save], id.attempt)
}

// files are the contents that a manifest names.
func (o *simOracle) files(id simID, manifest *simBody) (map[string][]byte, string) {
	m := simJSON[simManifest](manifest)
	out := map[string][]byte{}
	for _, f := range m.Files {
		if f.Type != "file" {
			continue
		}
		if !o.v.keys[f.Object] {
			o.w.fail("commit %s: %s is not there", id.id(), f.Object)
			continue
		}
		out[f.Path] = o.body[f.Object].data
	}
	return out, m.Name
}

// some are the parts in which there is something.
func some(parts []map[string][]byte) []map[string][]byte {
	return slices.DeleteFunc(slices.Clone(parts), func(p map[string][]byte) bool { return len(p) == 0 })
}

func (o *simOracle) match(name string, parts []map[string][]byte) *simSave {
	parts = some(parts)
	for _, s := range o.saves[name] {
		if slices.EqualFunc(some(s.parts), parts, func(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }) {
			return s
		}
	}
	return nil
}

// headOf is R6, and sure is false where it leaves the choice to the code: if no

// head compares R6 with what the code says, and sees that nothing but a mark
