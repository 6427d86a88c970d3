package format_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout/format"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func TestOCDBT(t *testing.T) {
	manifest, node := layouttest.OCDBT(false, layouttest.Noise(1, 100)), layouttest.OCDBT(true, layouttest.Noise(2, 100))
	flipped := bytes.Clone(manifest)
	flipped[40] ^= 1
	huge := bytes.Clone(node)
	huge[10] = 0xff
	for name, c := range map[string]struct {
		file string
		data []byte
		want string
	}{
		"manifest":       {"manifest.ocdbt", manifest, ""},
		"node":           {"0a1b", node, ""},
		"values behind":  {"0a1b", append(bytes.Clone(node), 1, 2, 3), ""},
		"values alone":   {"0a1b", layouttest.Noise(3, 100), ""},
		"cut":            {"manifest.ocdbt", manifest[:len(manifest)-1], "short by 1 byte"},
		"cut short":      {"manifest.ocdbt", manifest[:15], "truncated: too short"},
		"longer":         {"manifest.ocdbt", append(bytes.Clone(manifest), 0), "has 1 bytes after its end"},
		"another byte":   {"manifest.ocdbt", flipped, "has not the checksum"},
		"something else": {"manifest.ocdbt", layouttest.Noise(4, 100), "does not begin like"},
		"cut node":       {"0a1b", node[:len(node)-1], "short by 1 byte"},
		"no length":      {"0a1b", append([]byte{0x0c, 0xdb, 0x20, 0xde}, make([]byte, 20)...), "says an impossible length"},
		"huge":           {"0a1b", huge, "short by"},
	} {
		res := format.Check(name+"/"+c.file, bytes.NewReader(c.data), int64(len(c.data)))
		if (res.Problem == "") != (c.want == "") || !strings.Contains(res.Problem, c.want) {
			t.Errorf("%s: problem %q, want %q", name, res.Problem, c.want)
		}
	}
}
