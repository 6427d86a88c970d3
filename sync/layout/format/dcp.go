package format

import (
	"io"
	"math"
	"strings"
)

// ShardExtents are the files that a DCP metadata file names, by their path
// relative to it, with the end of the last item in each, in bytes.
type ShardExtents map[string]int64

// DCP is what the metadata of a torch distributed checkpoint says.
type DCP struct {
	// Files are the shards that hold its items.
	Files ShardExtents
	// Keys are the names of the items, in the order of the metadata, such as
	// "model.embed.weight" or "optimizer.param_groups".
	Keys []string
	// SaveID is drawn anew for each save by newer releases of torch; else empty.
	SaveID string
	// MCore says that Megatron core's own planner wrote it (torch_dist).
	MCore bool
}

// Has reports whether there is an item of that name, or one below it: name
// followed by a dot or a slash and more.
func (d *DCP) Has(name string) bool {
	for _, k := range d.Keys {
		if rest, ok := strings.CutPrefix(k, name); ok && (rest == "" || rest[0] == '.' || rest[0] == '/') {
			return true
		}
	}
	return false
}

// HasPart reports whether a component of an item's name, between dots or
// slashes, is one of those given.
func (d *DCP) HasPart(parts ...string) bool {
	for _, k := range d.Keys {
		for c := range strings.FieldsFuncSeq(k, func(r rune) bool { return r == '.' || r == '/' }) {
			for _, p := range parts {
				if c == p {
					return true
				}
			}
		}
	}
	return false
}

// DCPMetadata is ReadDCP where only the files matter.
func DCPMetadata(r io.ReaderAt, size int64) (ShardExtents, error) {
	d, err := ReadDCP(r, size)
	if err != nil {
		return nil, err
	}
	return d.Files, nil
}

// ReadDCP reads the ".metadata" of a torch distributed checkpoint: which items
// it holds, in which files, and how long each must at least be. An error that
// is neither of r nor ErrTooLarge says what is broken.
func ReadDCP(r io.ReaderAt, size int64) (*DCP, error) {
	out := DCP{Files: ShardExtents{}}
	var bad error
	build := func(o *Object) any {
		class, _ := o.Class.(Global)
		switch class.Name {
		case "_StorageInfo":
			if err := out.Files.add(o); err != nil {
				bad = err
			}
		case "StorageMeta":
			id, _ := Lookup(o, "save_id")
			out.SaveID, _ = id.(string)
		}
		if isMetadata(o) {
			return o
		}
		if d, ok := o.State.(*Dict); ok {
			d.Keys, d.Values = nil, nil
		}
		o.State, o.Args = nil, nil
		return o
	}
	v, next, err := Unpickle(r, 0, size, UnpickleOptions{Limit: 512 << 20, Build: build})
	switch {
	case err != nil:
		return nil, err
	case next != size:
		return nil, brokenf("has %d bytes after its end", size-next)
	case bad != nil:
		return nil, bad
	}
	o, ok := v.(*Object)
	if !ok || !isMetadata(o) {
		return nil, broken("a pickle, but not of DCP metadata")
	}
	out.describe(o)
	return &out, nil
}

// describe takes what lies beside the files.
func (d *DCP) describe(o *Object) {
	items, _ := Lookup(o, "state_dict_metadata")
	if dict, ok := items.(*Dict); ok {
		for _, k := range dict.Keys {
			if s, ok := k.(string); ok {
				d.Keys = append(d.Keys, s)
			}
		}
	}
	_, d.MCore = Lookup(o, "mcore_data")
}

// isMetadata reports whether o is torch's Metadata or Megatron core's.
func isMetadata(o *Object) bool {
	class, ok := o.Class.(Global)
	return ok && (class.Name == "Metadata" && strings.HasPrefix(class.Module, "torch.distributed.") ||
		class.Name == "MCoreMetadata" && strings.HasPrefix(class.Module, "megatron."))
}

// add takes one _StorageInfo.
func (s ShardExtents) add(o *Object) error {
	p, ok1 := Lookup(o, "relative_path")
	offset, ok2 := Lookup(o, "offset")
	length, ok3 := Lookup(o, "length")
	name, isName := p.(string)
	off, isOff := offset.(int64)
	n, isLen := length.(int64)
	if !ok1 || !ok2 || !ok3 || !isName || !isOff || !isLen || off < 0 || n < 0 || off > math.MaxInt64-n {
		return broken("DCP metadata with an item that has no place")
	}
	s[name] = max(s[name], off+n)
	return nil
}
