package format_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/format"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// database is an OCDBT database in memory.
type database map[string][]byte

type dbFile struct{ *bytes.Reader }

func (dbFile) Close() error { return nil }

func (d database) open(name string) (format.OCDBTFile, error) {
	b, ok := d[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return dbFile{bytes.NewReader(b)}, nil
}

// tall is a database of three levels: values in v/1 and w/2, two leaves in one
// file, and a root of height 1. The file that holds the leaves has a base.
func tall() database {
	one := layouttest.OCDBTLeaf(layouttest.OCDBTValue{File: "v/1", Off: 10, Len: 90}, layouttest.OCDBTValue{File: "v/1", Off: 0, Len: 10})
	two := layouttest.OCDBTLeaf(layouttest.OCDBTValue{File: "w/2", Off: 5, Len: 5})
	root := layouttest.OCDBTInner(1, layouttest.OCDBTValue{File: "sub/d/leaves", Base: 4, Off: 3, Len: len(one)},
		layouttest.OCDBTValue{File: "sub/d/leaves", Base: 4, Off: 3 + len(one), Len: len(two)})
	return database{
		"manifest.ocdbt": layouttest.OCDBTManifest("d/root", 0, len(root), 1),
		"d/root":         root,
		"sub/d/leaves":   append(append([]byte("xyz"), one...), two...),
		"sub/v/1":        make([]byte, 100),
		"sub/w/2":        make([]byte, 10),
	}
}

func TestOCDBTTree(t *testing.T) {
	db := tall()
	want := map[string]int64{}
	for name, data := range db {
		if name != "manifest.ocdbt" {
			want[name] = int64(len(data))
		}
	}
	tree, err := format.ReadOCDBT("manifest.ocdbt", db.open)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&format.OCDBTTree{Needs: want, Problems: map[string]string{}}, tree); d != "" {
		t.Error(d)
	}
}

// seal gives a part its length and its checksum.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint64(b[4:], uint64(len(b)))
	sum := crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(b[len(b)-4:], sum)
	return b
}

func TestOCDBTTreeBroken(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(database)
		file    string
		problem string
		partial bool
	}{
		"leaf gone":         {change: func(d database) { delete(d, "sub/d/leaves") }},
		"leaf cut":          {change: func(d database) { d["sub/d/leaves"] = d["sub/d/leaves"][:20] }},
		"root of another":   {change: func(d database) { d["d/root"] = make([]byte, len(d["d/root"])) }, file: "d/root", problem: "has something else where"},
		"root of a length":  {change: func(d database) { d["d/root"][4]++ }, file: "d/root", problem: "bytes where what leads there says"},
		"a flipped bit":     {change: func(d database) { d["d/root"][len(d["d/root"])-5] ^= 1 }, file: "d/root", problem: "whose checksum is"},
		"a flipped header":  {change: func(d database) { d["d/root"][12] ^= 1 }, file: "d/root", problem: "whose checksum is"},
		"a newer version":   {change: func(d database) { d["d/root"][12] = 1; seal(d["d/root"]) }, partial: true},
		"another height":    {change: func(d database) { d["d/root"][14] = 2; seal(d["d/root"]) }, file: "d/root", problem: "has a node of height 2 where one of height 1"},
		"no such file":      {change: func(d database) { d["d/root"] = seal(bytes.Replace(d["d/root"], []byte("sub/d"), []byte("../.x"), 1)) }, file: "d/root", problem: `names "../.x/leaves", which can be no data file`},
		"no zstd":           {change: func(d database) { d["d/root"][13] = 1; seal(d["d/root"]) }, file: "d/root", problem: "cannot be decompressed"},
		"manifest flipped":  {change: func(d database) { d["manifest.ocdbt"][20] ^= 1 }, file: "manifest.ocdbt", problem: "whose checksum is"},
		"manifest of a new": {change: func(d database) { d["manifest.ocdbt"][14+16] = 7; seal(d["manifest.ocdbt"]) }, file: "manifest.ocdbt", problem: "of a kind that is not known"},
	} {
		db := tall()
		c.change(db)
		tree, err := format.ReadOCDBT("manifest.ocdbt", db.open)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := tree.Problems[c.file]; !strings.Contains(got, c.problem) || len(tree.Problems) > 1 || c.file == "" && len(tree.Problems) > 0 {
			t.Errorf("%s: problems %q, want %q of %s", name, tree.Problems, c.problem, c.file)
		}
		if tree.Partial != c.partial {
			t.Errorf("%s: partial is %v", name, tree.Partial)
		}
		if c.file != "manifest.ocdbt" && tree.Needs["d/root"] == 0 {
			t.Errorf("%s: needs %v", name, tree.Needs)
		}
	}
}

func TestOCDBTNumbered(t *testing.T) {
	m := tall()["manifest.ocdbt"][:14+16+7+4]
	m[14+16] = 1
	db := database{"manifest.ocdbt": seal(m)}
	if tree, err := format.ReadOCDBT("manifest.ocdbt", db.open); err != nil || !tree.Numbered || len(tree.Problems)+len(tree.Needs) > 0 {
		t.Errorf("%+v, %v", tree, err)
	}
}

// A tree that leads back to itself, or to one node on many ways, ends.
func TestOCDBTTreeOfLoops(t *testing.T) {
	const height = 40
	db, n := database{}, len(layouttest.OCDBTInner(1, layouttest.OCDBTValue{File: "d/00", Len: 50}, layouttest.OCDBTValue{File: "d/00", Len: 50}))
	for h := height; h > 0; h-- {
		child := layouttest.OCDBTValue{File: fmt.Sprintf("d/%02d", h-1), Len: n}
		db[fmt.Sprintf("d/%02d", h)] = layouttest.OCDBTInner(h, child, child)
	}
	n = len(db["d/40"])
	db["manifest.ocdbt"] = layouttest.OCDBTManifest("d/40", 0, n, height)
	tree, err := format.ReadOCDBT("manifest.ocdbt", db.open)
	if err != nil || len(tree.Problems) > 0 || len(tree.Needs) != height+1 {
		t.Errorf("%+v, %v", tree, err)
	}
}

// An error of the disk is none of the content.
func TestOCDBTUnreadable(t *testing.T) {
	sick := errors.New("input/output error")
	db := tall()
	_, err := format.ReadOCDBT("manifest.ocdbt", func(name string) (format.OCDBTFile, error) {
		f, err := db.open(name)
		if name == "d/root" {
			return sickFile{f, sick}, nil
		}
		return f, err
	})
	if !errors.Is(err, sick) {
		t.Error(err)
	}
}

type sickFile struct {
	format.OCDBTFile
	err error
}

func (f sickFile) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// realOCDBT are the databases that Orbax wrote.
func realOCDBT(t testing.TB) map[string]database {
	t.Helper()
	out := map[string]database{}
	for _, kind := range []string{"orbax", "flax", "keras"} {
		root := filepath.Join("..", "testdata", kind)
		err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "manifest.ocdbt" {
				return err
			}
			db := database{}
			dir := filepath.Join(root, filepath.Dir(p))
			files, err := fs.Glob(os.DirFS(dir), "d/*")
			for _, f := range append(files, "manifest.ocdbt") {
				if db[f], err = os.ReadFile(filepath.Join(dir, f)); err != nil {
					return err
				}
			}
			out[path.Join(kind, path.Dir(p))] = db
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// In these, every byte of every data file is led to.
func TestRealOCDBT(t *testing.T) {
	all := realOCDBT(t)
	if len(all) < 16 {
		t.Fatalf("%d databases", len(all))
	}
	for name, db := range all {
		tree, err := format.ReadOCDBT("manifest.ocdbt", db.open)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int64{}
		for file, data := range db {
			want[file] = int64(len(data))
		}
		delete(want, "manifest.ocdbt")
		if d := cmp.Diff(&format.OCDBTTree{Needs: want, Problems: map[string]string{}}, tree); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// FuzzOCDBT gives any bytes as a manifest and as every data file.
func FuzzOCDBT(f *testing.F) {
	all := realOCDBT(f)
	all["tall"] = tall()
	for _, db := range all {
		for name := range maps.Keys(db) {
			f.Add(db["manifest.ocdbt"], db[name])
		}
	}
	f.Fuzz(func(t *testing.T, manifest, data []byte) {
		tree, err := format.ReadOCDBT("manifest.ocdbt", func(name string) (format.OCDBTFile, error) {
			if name == "manifest.ocdbt" {
				return dbFile{bytes.NewReader(manifest)}, nil
			}
			return dbFile{bytes.NewReader(data)}, nil
		})
		if err != nil {
			t.Fatalf("an error of readers that have none: %v", err)
		}
		for name, n := range tree.Needs {
			if n < 0 || !fs.ValidPath(name) {
				t.Errorf("%q: %d", name, n)
			}
		}
	})
}
