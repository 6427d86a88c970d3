package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Defaults of [Verdict.Settle].
const (
	ProofSettle       = time.Second      // with one behind a barrier, where it vouches for every file
	DefaultSettle     = 5 * time.Second  // with a file that is written last
	DefaultWeakSettle = 30 * time.Second // where presence is the only evidence
)

// maxNamed bounds how many files one kind of reason names.
const maxNamed = 8

// judge gathers a verdict on the step that its tree shows.
type judge struct {
	*tree
	v      Verdict
	empty  []string        // globs of files that may be empty
	broken map[string]bool // files with a reason of their own
	stale  map[string]bool // indexes of shards that are not there, beside a whole model
	dcps   map[string]*dcpDir
}

func newJudge(t *tree, empty []string) *judge {
	return &judge{tree: t, empty: empty, broken: map[string]bool{}, stale: map[string]bool{}, dcps: map[string]*dcpDir{}, v: Verdict{Step: t.step, Resume: commit.ResumeUnknown}}
}

// absentf adds a reason that says that something is not there.
func (j *judge) absentf(format string, args ...any) {
	r := fmt.Sprintf(format, args...)
	j.reasons = append(j.reasons, r)
	j.v.Absent = append(j.v.Absent, r)
}

// missing says that a file is not there, or why what is there does not count.
func (j *judge) missing(rel string) {
	if why, ok := j.astray[rel]; ok {
		j.reasonf("%s is %s: its bytes would not be saved", rel, why)
		return
	}
	j.absentf("missing %s", rel)
}

// name is how a reason names a file of the step.
func (j *judge) name(rel string) string {
	if rel == "." {
		return j.step.Name
	}
	return rel
}

// markerAge is how old a marker of a save under way may be without a word.
const markerAge = time.Hour

// stays warns of a marker beside the step that has been there for long: it may
// be left over, and keeps the step from being complete for ever.
func (j *judge) stays(marker string, fi fs.FileInfo) {
	if at := fi.ModTime(); time.Since(at) > markerAge {
		j.warnf("%s has been there since %s: if nothing saves or deletes %s any more, that was cut off; remove the marker only if the step is known to be whole",
			marker, at.UTC().Format(time.RFC3339), j.step.Name)
	}
}

// spoil gives a file a reason of its own.
func (j *judge) spoil(rel, format string, args ...any) {
	j.broken[rel] = true
	j.reasonf(format, args...)
}

// checkFiles opens every file of the step: one that cannot be read, is empty
// though it should not be, or whose format says that it is torn, is a reason.
func (j *judge) checkFiles() {
	found := make([]func(), len(j.sorted))
	var g errgroup.Group
	g.SetLimit(readers)
	for i, rel := range j.sorted {
		g.Go(func() error {
			found[i] = j.checkFile(rel, j.files[rel])
			return nil
		})
	}
	_ = g.Wait() // none has an error
	for _, say := range found {
		if say != nil {
			say()
		}
	}
}

// readers is how many files are looked into at a time.
const readers = 4

func (j *judge) mayBeEmpty(rel string) bool {
	if _, ok := matchName(emptyAlways, rel); ok {
		return true
	}
	return matchAny(j.empty, rel)
}

// checkFile looks into one file and returns what adds its reasons to the
// verdict; nil if there are none. It may be called concurrently.
func (j *judge) checkFile(rel string, e *entry) (say func()) {
	spoil := func(format string, args ...any) func() {
		return func() { j.spoil(rel, format, args...) }
	}
	if e.size == 0 {
		if !j.mayBeEmpty(rel) && path.Ext(rel) != ".distcp" { // those by their metadata
			return spoil("%s is empty", j.name(rel))
		}
		return nil
	}
	h, err := j.open(rel)
	if errors.Is(err, errName) {
		return func() { j.warnf("the name of %q is not valid UTF-8: its format was not checked", rel) }
	}
	if err != nil {
		return spoil("cannot read %s: %s", j.name(rel), cause(err))
	}
	defer h.Close()
	if h.size != e.size {
		return spoil("%s changed while it was looked at: from %d to %d bytes", j.name(rel), e.size, h.size)
	}
	res := format.Check(j.full(rel), h, e.size)
	if res.Problem == "" && len(res.Warnings) == 0 {
		return nil
	}
	return func() {
		switch {
		case res.Err != nil:
			j.spoil(rel, "cannot read %s: %s", j.name(rel), cause(res.Err))
		case res.Problem != "":
			j.spoil(rel, "%s: %s", j.name(rel), res.Problem)
		}
		for _, w := range res.Warnings {
			j.warnf("%s: %s", j.name(rel), w)
		}
	}
}

// checkIndexes holds every Hugging Face index against the shards it names.
func (j *judge) checkIndexes() {
	for _, rel := range j.sorted {
		if strings.HasSuffix(rel, ".index.json") && !j.broken[rel] {
			j.checkIndex(rel)
		}
	}
}

func (j *judge) checkIndex(rel string) {
	h, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return
	}
	defer h.Close()
	ix, err := format.ReadIndex(h, h.size)
	if err != nil {
		return // an index of something else, or one with a reason already
	}
	dir, there := path.Dir(rel), 0
	var gone []string
	for shard := range ix.Shards {
		if p := path.Join(dir, shard); j.files[p] != nil {
			there++
		} else {
			gone = append(gone, p)
		}
	}
	slices.Sort(gone)
	if whole := strings.TrimSuffix(rel, ".index.json"); there == 0 && j.files[whole] != nil {
		j.warnf("%s is stale: no shard that it names is there, beside a whole %s", rel, path.Base(whole))
		j.stale[rel] = true
		return
	}
	for i, p := range gone {
		if i == maxNamed {
			j.absentf("%s names %d more missing shards", rel, len(gone)-i)
			break
		}
		if why, ok := j.astray[p]; ok {
			j.reasonf("%s names %s, which is %s", rel, p, why)
		} else {
			j.absentf("%s names missing %s", rel, p)
		}
	}
	for shard, tensors := range ix.Shards {
		p := path.Join(dir, shard)
		if j.files[p] != nil && !j.broken[p] && path.Ext(p) == ".safetensors" {
			j.checkShard(rel, p, tensors)
		}
	}
}

// checkShard looks whether a shard holds the tensors that the index says.
func (j *judge) checkShard(index, shard string, tensors []string) {
	h, err := j.open(shard)
	if err != nil {
		return // which has a reason already
	}
	defer h.Close()
	want := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		want[t] = true
	}
	if err := format.SafetensorsNames(h, h.size, func(t string) { delete(want, t) }); err != nil || len(want) == 0 {
		return
	}
	first := ""
	for t := range want {
		if first == "" || t < first {
			first = t
		}
	}
	if len(want) == 1 {
		j.spoil(shard, "%s lacks tensor %.200s, which %s says it holds", shard, first, index)
		return
	}
	j.spoil(shard, "%s lacks tensor %.200s and %d more, which %s says it holds", shard, first, len(want)-1, index)
}

// vouch sets the evidence, and voids it for the files that are newer than the
// newest part of it and not late. What is stale is no part of any save: one
// that is under way writes an index after its shards.
func (j *judge) vouch(evidence, late []string) {
	j.vouchUnless(evidence, func(rel string) bool { return matchAny(late, rel) })
}

// counted says that the layout has no file that could be evidence.
func (j *judge) counted() {
	j.v.Counted = true
	j.vouch(nil, nil)
}

// vouchFor is vouch for some files only, those that the evidence covers; all
// others are late.
func (j *judge) vouchFor(evidence []string, covers func(rel string) bool) {
	j.vouchUnless(evidence, func(rel string) bool { return !covers(rel) })
}

func (j *judge) vouchUnless(evidence []string, late func(rel string) bool) {
	var limit time.Time
	j.v.Evidence = evidence
	for _, rel := range evidence {
		if e := j.files[rel]; e != nil && e.mtime.After(limit) {
			limit = e.mtime
		}
	}
	for _, rel := range j.sorted {
		e := j.files[rel]
		if (late(rel) || j.stale[rel]) && !slices.Contains(evidence, rel) {
			j.v.Late = append(j.v.Late, rel)
			continue
		}
		if !e.link && len(evidence) > 0 && e.mtime.After(limit) {
			j.v.Voided = append(j.v.Voided, rel)
		}
	}
}

// verdict completes and returns the verdict.
func (j *judge) verdict() Verdict {
	for _, rel := range j.sorted {
		e := j.files[rel]
		if e.link {
			continue
		}
		j.v.Files++
		j.v.Bytes += e.size
		if j.v.Oldest.IsZero() || e.mtime.Before(j.v.Oldest) {
			j.v.Oldest = e.mtime
		}
		if e.mtime.After(j.v.Newest) {
			j.v.Newest = e.mtime
		}
	}
	j.v.Reasons, j.v.Warnings, j.v.Skip = unique(j.reasons), unique(j.warn), unique(j.skip)
	j.v.Absent = unique(j.v.Absent)
	return j.v
}

// unique sorts a list and drops repetitions; an empty one becomes nil.
func unique(list []string) []string {
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) == 0 {
		return nil
	}
	return list
}
