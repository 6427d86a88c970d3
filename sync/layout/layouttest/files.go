package layouttest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
)

// Noise returns n bytes that depend on seed alone and hold no long run of
// zeros.
func Noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x>>32) | 1
	}
	return b
}

// Tensor is one entry of a safetensors file.
type Tensor struct {
	Name  string
	DType string // "F32" if empty
	Shape []int64
	Data  []byte
}

// F32 is a tensor of n float32 values of noise.
func F32(name string, n int, seed uint64) Tensor {
	return Tensor{Name: name, DType: "F32", Shape: []int64{int64(n)}, Data: Noise(seed, 4*n)}
}

// Safetensors returns a safetensors file of these tensors, with the header
// padded to a multiple of eight as the library does.
func Safetensors(tensors ...Tensor) []byte {
	var h bytes.Buffer
	h.WriteString(`{"__metadata__":{"format":"pt"}`)
	off := 0
	for _, t := range tensors {
		dtype, shape := t.DType, t.Shape
		if dtype == "" {
			dtype = "F32"
		}
		if shape == nil {
			shape = []int64{}
		}
		name, _ := json.Marshal(t.Name)
		dims, _ := json.Marshal(shape)
		fmt.Fprintf(&h, `,%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, dims, off, off+len(t.Data))
		off += len(t.Data)
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(h.Len()))
	out = append(out, h.Bytes()...)
	for _, t := range tensors {
		out = append(out, t.Data...)
	}
	return out
}

// Record is one member of a zip.
type Record struct {
	Name string
	Data []byte
}

// Storage is the persistent id of a float32 storage of n values, as torch
// pickles it.
func Storage(key string, n int) Persistent {
	return Persistent{ID: Tuple{"storage", Global{"torch", "FloatStorage"}, key, "cpu", n}}
}

// TensorRef is a one-dimensional tensor over Storage(key, n), as torch pickles
// it.
func TensorRef(key string, n int) Call {
	return Call{Func: Global{"torch._utils", "_rebuild_tensor_v2"}, Args: Tuple{
		Storage(key, n), 0, Tuple{n}, Tuple{1}, false,
		Call{Func: Global{"collections", "OrderedDict"}, Args: Tuple{}},
	}}
}

// TorchZip returns what torch.save of v writes to "<stem>.pt": a zip of
// <stem>/data.pkl, the storages <stem>/data/0, 1, … and the trailer records.
func TorchZip(stem string, v any, storages ...[]byte) []byte {
	recs := []Record{
		{stem + "/data.pkl", Pickle(2, v)},
		{stem + "/.format_version", []byte("1")},
		{stem + "/.storage_alignment", []byte("64")},
		{stem + "/byteorder", []byte("little")},
	}
	for i, s := range storages {
		recs = append(recs, Record{fmt.Sprintf("%s/data/%d", stem, i), s})
	}
	recs = append(recs,
		Record{stem + "/version", []byte("3\n")},
		Record{stem + "/.data/serialization_id", []byte("0636457737946401051300000006000000000000")})
	return Zip(true, recs...)
}

// Zip returns a zip of stored records, each aligned to 64 bytes by an extra
// field as torch does it. With zip64 it ends in ZIP64 records and an end
// record whose fields all say "look there".
func Zip(zip64 bool, recs ...Record) []byte {
	le := binary.LittleEndian
	var out, cd []byte
	for _, r := range recs {
		off, crc, n := len(out), crc32.ChecksumIEEE(r.Data), uint32(len(r.Data))
		pad := (64 - (off+30+len(r.Name)+4)%64) % 64
		out = append(out, "PK\x03\x04\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"...)
		out = le.AppendUint32(out, crc)
		out = le.AppendUint32(out, n)
		out = le.AppendUint32(out, n)
		out = le.AppendUint16(out, uint16(len(r.Name)))
		out = le.AppendUint16(out, uint16(pad+4))
		out = append(out, r.Name...)
		out = append(out, 'F', 'B')
		out = le.AppendUint16(out, uint16(pad))
		out = append(out, strings.Repeat("Z", pad)...)
		out = append(out, r.Data...)
		cd = append(cd, "PK\x01\x02\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"...)
		cd = le.AppendUint32(cd, crc)
		cd = le.AppendUint32(cd, n)
		cd = le.AppendUint32(cd, n)
		cd = le.AppendUint16(cd, uint16(len(r.Name)))
		cd = append(cd, make([]byte, 12)...) // extra, comment, disk, attributes
		cd = le.AppendUint32(cd, uint32(off))
		cd = append(cd, r.Name...)
	}
	start := len(out)
	out = append(out, cd...)
	return append(out, zipEnd(zip64, len(recs), start, len(cd))...)
}

func zipEnd(zip64 bool, n, start, size int) []byte {
	le := binary.LittleEndian
	var out []byte
	if zip64 {
		out = append(out, "PK\x06\x06"...)
		out = le.AppendUint64(out, 44)
		out = append(out, 0x1e, 3, 45, 0)
		out = append(out, make([]byte, 8)...)
		for _, v := range []int{n, n, size, start} {
			out = le.AppendUint64(out, uint64(v))
		}
		out = append(out, "PK\x06\x07\x00\x00\x00\x00"...)
		out = le.AppendUint64(out, uint64(start+size))
		out = le.AppendUint32(out, 1)
		return append(out, "PK\x05\x06\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"...)
	}
	out = append(out, "PK\x05\x06\x00\x00\x00\x00"...)
	out = le.AppendUint16(out, uint16(n))
	out = le.AppendUint16(out, uint16(n))
	out = le.AppendUint32(out, uint32(size))
	out = le.AppendUint32(out, uint32(start))
	return le.AppendUint16(out, 0)
}

// TorchLegacy returns what torch.save(v, _use_new_zipfile_serialization=False)
// writes: five pickles, then each storage of float32 values behind its length.
func TorchLegacy(v any, storages ...[]byte) []byte {
	out := []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")
	out = append(out, Pickle(2, 1001)...)
	out = append(out, Pickle(2, Dict{"protocol_version", 1001, "little_endian", true})...)
	out = append(out, Pickle(2, v)...)
	keys := []any{}
	for i := range storages {
		keys = append(keys, fmt.Sprint(i))
	}
	out = append(out, Pickle(2, keys)...)
	for _, s := range storages {
		out = binary.LittleEndian.AppendUint64(out, uint64(len(s)/4))
		out = append(out, s...)
	}
	return out
}

// Extent is where a DCP shard file holds one item.
type Extent struct {
	FQN            string
	File           string
	Offset, Length int64
}

// DCPMetadata returns a DCP ".metadata" that says where each item lies.
func DCPMetadata(extents ...Extent) []byte {
	return dcpMetadata(Global{"torch.distributed.checkpoint.metadata", "Metadata"}, extents, nil)
}

// MCoreMetadata is DCPMetadata of Megatron core's planner.
func MCoreMetadata(extents ...Extent) []byte {
	return dcpMetadata(Global{"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"}, extents, Dict{"mcore_data", Dict{}})
}

func dcpMetadata(class Global, extents []Extent, more Dict) []byte {
	const meta, disk = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
	sd, st := Dict{}, Dict{}
	for _, e := range extents {
		sd = append(sd, e.FQN, Object{Class: Global{meta, "BytesStorageMetadata"}, Args: Tuple{}})
		idx := Object{Class: Global{meta, "MetadataIndex"}, Args: Tuple{}, State: Dict{
			"fqn", e.FQN, "offset", Call{Func: Global{"torch", "Size"}, Args: Tuple{Tuple{0}}}, "index", 0,
		}}
		info := Object{Class: Global{disk, "_StorageInfo"}, Args: Tuple{}, State: Dict{
			"relative_path", e.File, "offset", e.Offset, "length", e.Length,
		}}
		st = append(st, idx, info)
	}
	return Pickle(4, Object{Class: class, Args: Tuple{}, State: append(Dict{
		"state_dict_metadata", sd, "planner_data", nil, "storage_data", st,
		"storage_meta", Object{Class: Global{meta, "StorageMeta"}, Args: Tuple{}, State: Dict{"save_id", "0"}},
		"version", nil,
	}, more...)})
}
