package layout

import (
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of Composer.
const (
	composerName   = "composer"
	composerLatest = "latest-rank0.pt"
)

var (
	composerFile = regexp.MustCompile(`\Aep[0-9]{1,18}-ba([0-9]{1,18})-rank0\.pt\z`)
	composerDir  = regexp.MustCompile(`\Aep[0-9]{1,18}-ba([0-9]{1,18})\z`)
)

// composer is the layout of MosaicML Composer, whose trainer resumes by what a
// symbolic link leads to.
type composer struct{}

// Name implements Layout.
func (composer) Name() string { return composerName }

// Depth implements Layout.
func (composer) Depth() int { return 1 }

// Match implements Layout.
func (composer) Match(name string, dir bool) (Step, bool) {
	re := composerFile
	if dir {
		re = composerDir
	}
	m := re.FindStringSubmatch(name)
	if m == nil {
		return Step{}, false
	}
	return Step{Name: name, Number: digits(m[1]), Dir: dir, Layout: composerName}, true
}

// Spec implements Layout.
func (composer) Spec() Spec {
	return Spec{
		Name:        composerName,
		Description: "MosaicML Composer: files of rank 0, and sharded directories",
		Step:        "ep*-ba{step}-rank0.pt",
		Kind:        "file",
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: composerLatest, Content: "{name}", Link: true}},
		Code: "a sharded save is a directory ep*-ba{step} with a .metadata that names its shards; the step's number is its batch; exact resume needs state, " +
			"state.optimizers and rng in it; the pointer is a symbolic link, as are others beside the step that lead to a save",
	}
}

// Probe implements Prober: nobody else gives such names.
func (composer) Probe(fs.FS, Step) Likeness { return Surely }

// Judge implements Layout.
func (composer) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	if s.Dir {
		j.composerShards()
	} else {
		j.vouch(nil, nil)
		j.v.Evidence = []string{"."}
		j.composerFile()
	}
	j.v.Pointers = composerPointers(fsys, s)
	return j.verdict(), nil
}

// composerFile judges a save that is one file.
func (j *judge) composerFile() {
	v, ok := j.torchFile(".")
	if !ok {
		return
	}
	state, ok := format.Lookup(v, "state")
	if !ok {
		j.spoil(".", "%s holds no state: it is no checkpoint of Composer", j.step.Name)
		return
	}
	j.needs(v, "rng")
	missing := j.v.Missing
	if j.needs(state, "optimizers"); j.v.Resume != commit.ResumeExact || missing != nil {
		j.v.Resume = commit.ResumeWeights
	}
	if stamp, ok := format.Lookup(state, "timestamp"); ok {
		if inner, ok := format.Lookup(stamp, "Timestamp"); ok {
			stamp = inner
		}
		j.metaOf(stamp, "epoch", "batch", "sample", "token")
		if n, ok := (counters{"batch"}).in(stamp); ok && n != j.step.Number {
			j.spoil(".", "%s says batch %d, where its name says %d", j.step.Name, n, j.step.Number)
		}
	}
}

// composerShards judges a sharded save: a distributed checkpoint.
func (j *judge) composerShards() {
	j.checkDCPs()
	d := j.dcps["."]
	if d == nil {
		j.checkDCP(".")
		d = j.dcps["."]
	}
	j.v.Strength = Proof // .metadata follows every rank's last byte
	j.vouch(d.evidence, nil)
	if !d.known {
		return
	}
	j.v.Resume = commit.ResumeExact
	if !d.has("state.optimizers") {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, "optimizers")
	}
	if !d.has("rng") {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, "rng")
	}
}

// composerPointers are the links by which Composer resumes: the ones beside the
// step that lead to one of its saves, under whatever name, else the usual one.
func composerPointers(fsys fs.FS, s Step) []commit.Pointer {
	var out []commit.Pointer
	entries, _ := fs.ReadDir(fsys, ".")
	for _, d := range entries {
		if d.Type()&fs.ModeSymlink == 0 {
			continue
		}
		target, err := fs.ReadLink(fsys, d.Name())
		if base := path.Base(strings.TrimSuffix(target, "/")); err == nil && (composerFile.MatchString(base) || composerDir.MatchString(base)) {
			out = append(out, commit.Pointer{Path: d.Name(), Content: s.Name, Link: true})
		}
	}
	if len(out) == 0 {
		out = append(out, commit.Pointer{Path: composerLatest, Content: s.Name, Link: true})
	}
	return out
}
