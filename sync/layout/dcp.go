package layout

import (
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

var (
	distcpName   = regexp.MustCompile(`\A__([0-9]{1,9})_[0-9]+\.distcp\z`)
	rankMetadata = regexp.MustCompile(`\A__([0-9]{1,9})\.metadata\z`)
)

// dcpDir is what a torch distributed checkpoint directory holds and says.
type dcpDir struct {
	dir      string          // relative to the step
	world    int             // ranks that wrote it, at least
	evidence []string        // its metadata files, relative to the step
	listed   map[string]bool // the files that they name, relative to the step
	known    bool            // all of them could be read
	keys     []*format.DCP   // what they say
}

// has reports whether the checkpoint holds an item of that name, or below it.
func (d *dcpDir) has(name string) bool {
	return d != nil && slices.ContainsFunc(d.keys, func(m *format.DCP) bool { return m.Has(name) })
}

// hasPart reports whether a part of an item's name is one of those given.
func (d *dcpDir) hasPart(parts ...string) bool {
	return d != nil && slices.ContainsFunc(d.keys, func(m *format.DCP) bool { return m.HasPart(parts...) })
}

// covers reports whether a file is one that the metadata vouches for: a shard
// or what it names.
func (d *dcpDir) covers(rel string) bool {
	return d.listed[rel] || path.Ext(rel) == ".distcp" && path.Dir(rel) == d.dir || slices.Contains(d.evidence, rel)
}

// checkDCPs judges every torch distributed checkpoint in the step: each
// directory that holds .distcp files. It returns how many ranks at least wrote
// each.
func (j *judge) checkDCPs() map[string]int {
	worlds := map[string]int{}
	for _, rel := range j.sorted {
		if path.Ext(rel) != ".distcp" || rel == "." {
			continue
		}
		if dir := path.Dir(rel); worlds[dir] == 0 {
			worlds[dir] = max(1, j.checkDCP(dir))
		}
	}
	return worlds
}

// checkDCP judges a torch distributed checkpoint directory: metadata is there,
// and every file that it names is there and as long as it says. It returns how
// many ranks at least wrote it; j.dcps has the rest.
func (j *judge) checkDCP(dir string) (world int) {
	d := &dcpDir{dir: dir, listed: map[string]bool{}}
	j.dcps[dir] = d
	var shards []string
	var ranks []int
	for _, rel := range j.sorted {
		if path.Dir(rel) != dir {
			continue
		}
		base := path.Base(rel)
		if m := distcpName.FindStringSubmatch(base); m != nil {
			r, _ := strconv.Atoi(m[1])
			d.world = max(d.world, r+1)
		}
		switch m := rankMetadata.FindStringSubmatch(base); {
		case m != nil:
			r, _ := strconv.Atoi(m[1])
			ranks = append(ranks, r)
			d.evidence = append(d.evidence, rel)
		case path.Ext(rel) == ".distcp":
			shards = append(shards, rel)
		}
	}
	if rel := path.Join(dir, ".metadata"); j.files[rel] != nil {
		d.evidence = []string{rel}
	} else if len(ranks) == 0 {
		j.missing(rel)
	} else {
		// Each rank writes its own, and shards of a rank without it are torn.
		name := func(r int) string { return path.Join(dir, "__"+strconv.Itoa(r)+".metadata") }
		d.world = j.contiguous(ranks, d.world, name)
	}
	d.known = len(d.evidence) > 0
	for _, rel := range d.evidence {
		d.known = j.extents(dir, rel, d) && d.known
	}
	for _, rel := range shards {
		switch e := j.files[rel]; {
		case e.size > 0 || d.listed[rel] || d.known:
		case len(d.evidence) == 0:
			// A rank that has nothing to save writes such a file: on one node of
			// several, only the metadata of another tells.
			j.broken[rel] = true
			j.absentf("empty shard %s", rel)
		default:
			j.spoil(rel, "empty shard %s", rel)
		}
	}
	return d.world
}

// extents holds the files of a directory against one metadata file, and
// reports whether that could be read.
func (j *judge) extents(dir, rel string, d *dcpDir) bool {
	if j.broken[rel] {
		return false
	}
	h, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return false
	}
	defer h.Close()
	meta, err := format.ReadDCP(h, h.size)
	if errors.Is(err, format.ErrTooLarge) {
		j.warnf("%s is too large to look at: the lengths of its shards were not checked", rel)
		return false
	}
	if err != nil {
		j.spoil(rel, "%s: %s", rel, cause(err))
		return false
	}
	d.keys = append(d.keys, meta)
	names := make([]string, 0, len(meta.Files))
	for name := range meta.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	gone := 0
	for _, name := range names {
		p := path.Join(dir, name)
		d.listed[p] = true
		if j.files[p] == nil {
			if gone++; gone <= maxNamed {
				j.missing(p)
			}
			continue
		}
		j.extent(p, rel, meta.Files[name])
	}
	if gone > maxNamed {
		j.absentf("%s names %d more missing files", rel, gone-maxNamed)
	}
	return true
}

// extent holds the length of one shard against what the metadata says. A
// longer one is another save's: the trainer truncates what it writes anew.
func (j *judge) extent(p, metadata string, want int64) {
	switch have := j.files[p].size; {
	case have == 0 && want > 0:
		j.spoil(p, "empty shard %s: %s says that it holds %d bytes", p, metadata, want)
	case have < want:
		j.spoil(p, "%s: short by %d bytes", p, want-have)
	case have > want:
		j.spoil(p, "%s has %d bytes more than %s says: it is of another save", p, have-want, metadata)
	}
}

// contiguous gives a reason for each number that is missing between 0 and the
// largest of have, or want-1 if that is larger, and returns the count that
// there should be.
func (j *judge) contiguous(have []int, want int, name func(int) string) int {
	slices.Sort(have)
	if len(have) > 0 {
		want = max(want, have[len(have)-1]+1)
	}
	gone := 0
	for i := range want {
		if _, ok := slices.BinarySearch(have, i); ok {
			continue
		}
		if gone++; gone <= maxNamed {
			j.missing(name(i))
		}
		if gone > maxNamed && want > 1<<20 {
			break
		}
	}
	if gone > maxNamed {
		j.absentf("missing %d more like %s", gone-maxNamed, name(want-1))
	}
	return want
}
