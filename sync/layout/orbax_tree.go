package layout

import (
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// orbaxLeaves is what the description of a tree says of its leaves.
type orbaxLeaves struct {
	ocdbt   bool // arrays lie in OCDBT
	arrays  bool // some leaf is an array, or may be one
	strings bool // some leaf is a string
}

// tree reads the description of a tree: what kinds of leaves it has, where
// they lie, and whether an optimizer's state is among them.
func (j *orbaxJudge) tree(rel string) orbaxLeaves {
	out := orbaxLeaves{ocdbt: true}
	f, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return out
	}
	defer f.Close()
	listed := false
	r := format.NewJSON(io.NewSectionReader(f, 0, f.size))
	err = r.Object(func(key string) error {
		switch key {
		case "use_ocdbt":
			v, err := r.Value(64)
			out.ocdbt = v != any(false)
			return err
		case "tree_metadata":
			listed = true
			return r.Object(func(name string) error {
				for part := range strings.FieldsFuncSeq(name, func(c rune) bool { return strings.ContainsRune("(), '\"./", c) }) {
					j.opt = j.opt || strings.HasPrefix(part, "opt")
				}
				return out.leaf(r)
			})
		}
		return r.Skip()
	})
	if err != nil {
		j.spoil(rel, "%s: %v", rel, err)
	}
	out.arrays = out.arrays || !listed
	return out
}

// leaf reads what is said of one leaf: an empty one lies nowhere, a string
// beside the arrays. What is not said means an array.
func (o *orbaxLeaves) leaf(r *format.JSON) error {
	v, err := r.Value(maxMember)
	leaf, _ := v.(map[string]any)
	value, _ := leaf["value_metadata"].(map[string]any)
	switch {
	case value["skip_deserialize"] == true:
	case value["value_type"] == "string":
		o.strings = true
	default:
		o.arrays = true
	}
	return err
}

// numberedManifest are the names of manifests where a database has one for each
// version.
var numberedManifest = regexp.MustCompile(`\Amanifest\.[0-9a-f]{16}\z`)

// database judges an OCDBT database: its manifest is there, and every data
// file that its trees lead to is there and reaches as far. It reports whether
// the trees could be read.
func (j *judge) database(dir string) bool {
	manifest := path.Join(dir, orbaxManifest)
	if j.files[manifest] == nil {
		j.missing(manifest)
		return false
	}
	tree := j.ocdbt(dir, manifest)
	if tree != nil && tree.Numbered {
		newest := ""
		for _, rel := range j.sorted { // ascending
			if path.Dir(rel) == dir && numberedManifest.MatchString(path.Base(rel)) {
				newest = rel
			}
		}
		if newest == "" {
			j.missing(path.Join(dir, "manifest.*"))
			return false
		}
		manifest = newest
		tree = j.ocdbt(dir, manifest)
	}
	if tree == nil {
		return false
	}
	if tree.Partial {
		j.warnf("%s leads to more than is looked at: whether all its data files are there was not checked", manifest)
	}
	for name, text := range tree.Problems {
		if rel := path.Join(dir, name); !j.broken[rel] {
			j.spoil(rel, "%s: %s", rel, text)
		}
	}
	j.reach(dir, manifest, tree.Needs)
	return true
}

// ocdbt reads the trees that a manifest leads to; nil if there is a reason why
// not.
func (j *judge) ocdbt(dir, manifest string) *format.OCDBTTree {
	if j.broken[manifest] {
		return nil
	}
	tree, err := format.ReadOCDBT(path.Base(manifest), func(name string) (format.OCDBTFile, error) {
		rel := path.Join(dir, name)
		if j.files[rel] == nil || j.broken[rel] {
			return nil, fs.ErrNotExist
		}
		return j.open(rel)
	})
	if err != nil {
		j.spoil(manifest, "cannot read what %s leads to: %s", manifest, cause(err))
		return nil
	}
	return tree
}

// reach holds the data files of a database against how far they must reach.
func (j *judge) reach(dir, manifest string, needs map[string]int64) {
	names := make([]string, 0, len(needs))
	for name := range needs {
		names = append(names, name)
	}
	slices.Sort(names)
	gone := 0
	for _, name := range names {
		rel := path.Join(dir, name)
		e := j.files[rel]
		switch {
		case j.broken[rel]:
		case e == nil:
			if gone++; gone <= maxNamed {
				j.missing(rel)
			}
		case e.size < needs[name]:
			j.spoil(rel, "%s has %d bytes, and %s leads to %d", rel, e.size, manifest, needs[name])
		}
	}
	if gone > maxNamed {
		j.absentf("%s leads to %d more missing files", manifest, gone-maxNamed)
	}
}
