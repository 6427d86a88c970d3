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
// and every file that it names is there and long enough. It returns how many
// ranks at least wrote it.
func (j *judge) checkDCP(dir string) (world int) {
	var shards, metadata []string
	var ranks []int
	for _, rel := range j.sorted {
		if path.Dir(rel) != dir {
			continue
		}
		base := path.Base(rel)
		if m := distcpName.FindStringSubmatch(base); m != nil {
			r, _ := strconv.Atoi(m[1])
			world = max(world, r+1)
		}
		switch m := rankMetadata.FindStringSubmatch(base); {
		case m != nil:
			r, _ := strconv.Atoi(m[1])
			ranks = append(ranks, r)
			metadata = append(metadata, rel)
		case path.Ext(rel) == ".distcp":
			shards = append(shards, rel)
		}
	}
	if rel := path.Join(dir, ".metadata"); j.files[rel] != nil {
		metadata = []string{rel}
	} else if len(metadata) == 0 {
		j.missing(rel)
	} else {
		world = max(world, j.contiguous(ranks, 0, func(r int) string { return path.Join(dir, "__"+strconv.Itoa(r)+".metadata") }))
	}
	known := len(metadata) > 0
	listed := map[string]bool{}
	for _, rel := range metadata {
		known = j.extents(dir, rel, listed) && known
	}
	for _, rel := range shards {
		if e := j.files[rel]; e.size == 0 && !listed[rel] && !known {
			j.spoil(rel, "empty shard %s", rel)
		}
	}
	return world
}

// extents holds the files of a directory against one metadata file, and
// reports whether that could be read.
func (j *judge) extents(dir, rel string, listed map[string]bool) bool {
	if j.broken[rel] {
		return false
	}
	h, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return false
	}
	defer h.Close()
	ext, err := format.DCPMetadata(h, h.size)
	if errors.Is(err, format.ErrTooLarge) {
		j.warnf("%s is too large to look at: the lengths of its shards were not checked", rel)
		return false
	}
	if err != nil {
		j.spoil(rel, "%s: %s", rel, cause(err))
		return false
	}
	names := make([]string, 0, len(ext))
	for name := range ext {
		names = append(names, name)
	}
	slices.Sort(names)
	gone := 0
	for _, name := range names {
		p := path.Join(dir, name)
		listed[p] = true
		e := j.files[p]
		switch n := ext[name]; {
		case e == nil:
			if gone++; gone <= maxNamed {
				j.missing(p)
			}
		case e.size == 0 && n > 0:
			j.spoil(p, "empty shard %s: %s says that it holds %d bytes", p, rel, n)
		case e.size < n:
			j.spoil(p, "%s: short by %d bytes", p, n-e.size)
		case e.size > n:
			j.warnf("%s has %d bytes more than %s says", p, e.size-n, rel)
		}
	}
	if gone > maxNamed {
		j.absentf("%s names %d more missing files", rel, gone-maxNamed)
	}
	return true
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
