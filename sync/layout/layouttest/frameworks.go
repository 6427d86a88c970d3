package layouttest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// JSON is v as JSON; it panics if it cannot be.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Lightning is what ModelCheckpoint saves at a step, in the pickle of
// Lightning's own; without it nothing says a step.
func Lightning(step int, weightsOnly bool) Dict {
	d := Dict{"epoch", 1, "global_step", step, "pytorch-lightning_version", "2.6.6", "state_dict", Dict{"w", TensorRef("0", 64)}, "loops", Dict{"fit_loop", Dict{}}}
	if !weightsOnly {
		d = append(d, "callbacks", Dict{}, "optimizer_states", []any{Dict{"state", Dict{}}}, "lr_schedulers", []any{})
	}
	return d
}

// LightningFile is that as a file.
func LightningFile(step int, weightsOnly bool) []byte {
	return TorchZip("archive", Lightning(step, weightsOnly), Noise(uint64(step), 256))
}

// LightningSharded is a sharded save of world ranks.
func LightningSharded(step, world int, items ...string) []File {
	return append(DCPFiles("", DCPSave{World: world, Keys: items, Seed: uint64(step)}), File{Name: "meta.pt", Data: TorchZip("meta", Lightning(step, true))})
}

// ComposerFile is the file that Composer's rank 0 saves.
func ComposerFile(batch int, weightsOnly bool) []byte {
	state := Dict{"model", Dict{"w", TensorRef("0", 64)}}
	d := Dict{}
	if !weightsOnly {
		state = append(state, "optimizers", Dict{"Adam", Dict{"state", Dict{}}}, "timestamp", Dict{"Timestamp", Dict{"epoch", 1, "batch", batch}})
		d = Dict{"rng", []any{Dict{"python", 1}}}
	}
	return TorchZip("archive", append(Dict{"state", state}, d...), Noise(uint64(batch), 256))
}

// VerlRole are the shards of one role, world of them, and the configuration
// that follows them.
func VerlRole(dir string, step, world int, kinds ...string) []File {
	var files []File
	for r := range world {
		for _, kind := range kinds {
			stem := fmt.Sprintf("%s_world_size_%d_rank_%d", kind, world, r)
			files = append(files, File{Name: dir + stem + ".pt", Data: TorchZip(stem, Dict{"w", TensorRef("0", 64)}, Noise(uint64(step+r), 256))})
		}
	}
	return append(files,
		File{Name: dir + "huggingface/config.json", Data: []byte(`{"model_type": "qwen2"}`)},
		File{Name: dir + "fsdp_config.json", Data: JSON(map[string]any{"FSDP_version": 2, "world_size": world})})
}

// Orbax is a step of items that each hold a tree of arrays, by the names of
// their leaves.
func Orbax(step int, items map[string][]string) []File {
	var files []File
	handlers := map[string]string{}
	for _, item := range slices.Sorted(maps.Keys(items)) {
		leaves := map[string]any{}
		for _, leaf := range items[item] {
			leaves[fmt.Sprintf("('%s',)", leaf)] = map[string]any{"value_metadata": map[string]any{"value_type": "jax.Array"}}
		}
		handlers[item] = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
		value := OCDBTValue{File: "d/0a1b", Len: 64}
		own := OCDBTLeaf(value)
		value.Base, value.File = len("ocdbt.process_0/"), "ocdbt.process_0/d/0a1b"
		merged := OCDBTLeaf(value)
		for _, f := range []File{
			{Name: "array_metadatas/process_0", Data: []byte("{}")},
			{Name: "ocdbt.process_0/d/0a1b", Data: append(Noise(uint64(step), 64), own...)},
			{Name: "ocdbt.process_0/manifest.ocdbt", Data: OCDBTManifest("d/0a1b", 64, len(own), 0)},
			{Name: "_sharding", Data: []byte("{}")},
			{Name: "_METADATA", Data: JSON(map[string]any{"tree_metadata": leaves, "use_ocdbt": true})},
			{Name: "d/2c3d", Data: merged},
			{Name: "manifest.ocdbt", Data: OCDBTManifest("d/2c3d", 0, len(merged), 0)},
			{Name: "commit_success.txt", Data: []byte("Checkpoint commit was successful to /x")},
		} {
			f.Name = item + "/" + f.Name
			files = append(files, f)
		}
	}
	return append(files,
		File{Name: "_CHECKPOINT_METADATA", Data: JSON(map[string]any{"item_handlers": handlers, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2})},
		File{Name: "commit_success.txt", Data: []byte("Checkpoint commit was successful to /x")})
}

// HDF5 is the least that a check of HDF5 takes for a file: a superblock of
// version 0 that says the file's length, and then text.
func HDF5(text string) []byte {
	b := append([]byte("\x89HDF\r\n\x1a\n"), 0, 0, 0, 0, 0, 8, 8, 0)
	b = append(b, make([]byte, 96-len(b))...)
	b = append(b, text...)
	binary.LittleEndian.PutUint64(b[40:], uint64(len(b)))
	return b
}

// TFTensor is an entry of a TensorFlow bundle.
type TFTensor struct {
	Name  string
	Shard int
	Bytes int
}

// TFBundle is a TensorFlow bundle of tensors in ascending order of names: its
// index, and its data files, by prefix.
func TFBundle(prefix string, shards int, tensors ...TFTensor) []File {
	data := make([][]byte, shards)
	for i, t := range tensors {
		data[t.Shard] = append(data[t.Shard], Noise(uint64(i+1), t.Bytes)...)
	}
	var files []File
	for i, d := range data {
		files = append(files, File{Name: fmt.Sprintf("%s.data-%05d-of-%05d", prefix, i, shards), Data: d})
	}
	return append(files, File{Name: prefix + ".index", Data: TFIndexOnly(shards, tensors...)})
}

// TFIndexOnly is the index of such a bundle. A tensor may name a shard that
// there is none of.
func TFIndexOnly(shards int, tensors ...TFTensor) []byte {
	ends := map[int]int{}
	table := []tableEntry{{"", binary.AppendUvarint([]byte{0x08}, uint64(shards))}}
	for _, t := range tensors {
		v := binary.AppendUvarint([]byte{0x08, 1, 0x12, 0, 0x18}, uint64(t.Shard))
		v = binary.AppendUvarint(append(v, 0x20), uint64(ends[t.Shard]))
		v = binary.AppendUvarint(append(v, 0x28), uint64(t.Bytes))
		v = binary.LittleEndian.AppendUint32(append(v, 0x35), 7)
		table = append(table, tableEntry{t.Name, v})
		ends[t.Shard] += t.Bytes
	}
	return leveldbTable(table)
}

// EmptyTable is a table, as the index of a bundle is one, without an entry.
func EmptyTable() []byte { return leveldbTable(nil) }

type tableEntry struct {
	key   string
	value []byte
}

// leveldbTable is a table of one data block, without compression.
func leveldbTable(entries []tableEntry) []byte {
	var out []byte
	block := func(entries []tableEntry) []byte {
		off, last := len(out), ""
		var b []byte
		for _, e := range entries {
			shared := 0
			for shared < min(len(last), len(e.key)) && last[shared] == e.key[shared] {
				shared++
			}
			for _, n := range []int{shared, len(e.key) - shared, len(e.value)} {
				b = binary.AppendUvarint(b, uint64(n))
			}
			b = append(append(b, e.key[shared:]...), e.value...)
			last = e.key
		}
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = binary.LittleEndian.AppendUint32(b, 1)
		handle := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(off)), uint64(len(b)))
		b = append(b, 0)
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		out = append(out, binary.LittleEndian.AppendUint32(b, (sum>>15|sum<<17)+0xa282ead8)...)
		return handle
	}
	data := block(entries)
	meta := block(nil)
	index := block([]tableEntry{{"~", data}})
	foot := append(append([]byte(nil), meta...), index...)
	out = append(out, append(foot, make([]byte, 40-len(foot))...)...)
	return binary.LittleEndian.AppendUint64(out, 0xdb4775248b80fb57)
}
