// Package format tells whole files from torn ones by their headers and
// trailers. It reads as little as it can, keeps a bounded amount of it in
// memory whatever the file claims, and never executes anything: pickles are
// walked, or read by a machine whose objects are opaque records.
//
// What a check cannot see: a hole of zeros inside a file whose length is
// already final. Where a format lets it guess (a long tail of zeros) that is a
// warning, never a verdict.
package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Result is what Check found.
type Result struct {
	// Kind is the format that the file was checked as: one of the Kind
	// constants; Unknown if nothing was checked.
	Kind string
	// Problem says what is wrong, to follow the file's name and a colon; empty
	// if nothing is. An unknown format has no problem.
	Problem string
	// Err is the error of the reader if the file could not be read (Problem
	// says so too); nil if it was read, however broken its content.
	Err error
	// Warnings are doubts that prove nothing.
	Warnings []string
}

// The kinds of files that Check knows.
const (
	Unknown     = ""
	Safetensors = "safetensors"
	HFIndex     = "hf-index"
	TorchZip    = "torch-zip"
	TorchLegacy = "torch-legacy"
	Pickle      = "pickle"
	Zip         = "zip"
	NPY         = "npy"
	HDF5        = "hdf5"
	GGUF        = "gguf"
	JSONText    = "json"
	JSONLines   = "jsonl"
	Parquet     = "parquet"
	OCDBT       = "ocdbt"
)

// broken is an error of the content, as opposed to one of the reader.
type broken string

func (b broken) Error() string { return string(b) }

func brokenf(format string, args ...any) error { return broken(fmt.Sprintf(format, args...)) }

// short says that a file of size bytes should have want.
func short(size, want int64) error {
	if n := want - size; n != 1 {
		return brokenf("short by %d bytes", n)
	}
	return broken("short by 1 byte")
}

// checker looks at one file. It appends its doubts to res and returns the
// problem as an error.
type checker func(f file, res *Result) error

// file is what a checker sees: name, bytes, and their number.
type file struct {
	name string // base name
	r    io.ReaderAt
	size int64 // bytes
}

// Check looks at a file of size bytes whose name (a path or a base name) and
// first bytes tell its format. r must not block for ever; a read that ends
// before size means that the file shrank, and is a problem.
func Check(name string, r io.ReaderAt, size int64) Result {
	f := file{name: path.Base(name), r: r, size: size}
	kind, check, err := choose(f)
	res := Result{Kind: kind}
	if err == nil && check != nil {
		if size == 0 {
			err = broken("empty")
		} else {
			err = check(f, &res)
		}
	}
	var b broken
	switch {
	case err == nil:
	case errors.As(err, &b):
		res.Problem = string(b)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		res.Problem = fmt.Sprintf("ended before its %d bytes: it shrank while it was read", size)
	default:
		res.Err, res.Problem = err, "cannot be read: "+err.Error()
	}
	return res
}

// byExt are the formats that an extension settles.
var byExt = map[string]struct {
	kind  string
	check checker
}{
	".safetensors": {Safetensors, checkSafetensors},
	".json":        {JSONText, checkJSON},
	".jsonl":       {JSONLines, checkJSONLines},
	".ndjson":      {JSONLines, checkJSONLines},
	".metadata":    {Pickle, checkPickle},
	".npy":         {NPY, checkNPY},
	".npz":         {Zip, checkZip},
	".zip":         {Zip, checkZip},
	".keras":       {Zip, checkZip},
	".h5":          {HDF5, checkHDF5},
	".hdf5":        {HDF5, checkHDF5},
	".gguf":        {GGUF, checkGGUF},
	".parquet":     {Parquet, checkParquet},
	".ocdbt":       {OCDBT, checkOCDBT},
}

func choose(f file) (string, checker, error) {
	lower := strings.ToLower(f.name)
	if strings.HasSuffix(lower, ".index.json") {
		return HFIndex, checkIndex, nil
	}
	if e, ok := byExt[path.Ext(lower)]; ok {
		return e.kind, e.check, nil
	}
	torch := torchName(lower)
	if f.size == 0 {
		if torch {
			return TorchZip, checkZip, nil // reports that it is empty
		}
		if ext := path.Ext(lower); ext == ".pkl" || ext == ".pickle" {
			return Pickle, checkPickle, nil
		}
		return Unknown, nil, nil
	}
	head := make([]byte, min(64, f.size))
	if err := readAt(f.r, head, 0); err != nil {
		return Unknown, nil, err
	}
	kind, check := byMagic(head, lower, torch)
	return kind, check, nil
}

// torchName reports whether a file of that lower-case name is always written
// by torch.save.
func torchName(lower string) bool {
	switch path.Ext(lower) {
	case ".pt", ".pth", ".ckpt":
		return true
	case ".bin":
		stem := strings.TrimSuffix(lower, ".bin")
		return strings.Contains(stem, "pytorch_model") || stem == "adapter_model" || stem == "training_args" ||
			stem == "optimizer" || stem == "scheduler" || stem == "value_head"
	}
	return false
}

func byMagic(head []byte, lower string, torch bool) (string, checker) {
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		switch ext := path.Ext(lower); {
		case torch:
			return TorchZip, checkTorchZip
		case ext == ".bin", ext == ".pkl", ext == ".pickle":
			return Zip, checkZip
		}
		return Unknown, nil // such as a .distcp: many zips, one after the other
	case bytes.HasPrefix(head, []byte(legacyMagic)):
		return TorchLegacy, checkTorchLegacy
	case bytes.HasPrefix(head, []byte("\x93NUMPY")):
		return NPY, checkNPY
	case bytes.HasPrefix(head, []byte(hdf5Magic)):
		return HDF5, checkHDF5
	case bytes.HasPrefix(head, []byte(ocdbtNode)):
		return OCDBT, checkOCDBTData
	case bytes.HasPrefix(head, []byte("GGUF")):
		return GGUF, checkGGUF
	case isPickle(head) && (torch || path.Ext(lower) == ".pkl" || path.Ext(lower) == ".pickle"):
		return Pickle, checkPickle
	case torch:
		return TorchZip, foreign(head)
	}
	return Unknown, nil
}

func isPickle(head []byte) bool {
	return len(head) > 1 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5
}

// foreign says of a file that torch.save should have written that it did not.
func foreign(head []byte) checker {
	return func(f file, _ *Result) error {
		switch {
		case len(bytes.Trim(head, "\x00")) == 0:
			return broken("begins with zero bytes: its content never reached the disk")
		case bytes.HasPrefix([]byte("PK\x03\x04"), head), bytes.HasPrefix([]byte(legacyMagic), head):
			return broken("truncated after its first bytes")
		}
		if path.Ext(f.name) == ".ckpt" { // a name that others than torch use
			return nil
		}
		return broken("neither a torch zip nor a pickle")
	}
}

// readAt fills p from off.
func readAt(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// zeroTail is how many bytes of zeros at the end of tensor data look like a
// file that got its length before its content.
const zeroTail = 64 << 10

// warnZeroTail warns when the last bytes of data that begins at off are zero.
func warnZeroTail(f file, off int64, res *Result) error {
	if f.size-off < zeroTail {
		return nil
	}
	buf := make([]byte, zeroTail)
	if err := readAt(f.r, buf, f.size-zeroTail); err != nil {
		return err
	}
	if len(bytes.TrimLeft(buf, "\x00")) == 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf(
			"its last %d bytes are zero: either such tensors, or a file that got its length before its content", zeroTail))
	}
	return nil
}
