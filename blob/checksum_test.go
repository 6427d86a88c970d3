package blob

import (
	"testing"

	"pgregory.net/rapid"
)

func TestCombineCRC32C(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "b")
		whole := CRC32C(append(append([]byte{}, a...), b...))
		if got := CombineCRC32C(CRC32C(a), CRC32C(b), int64(len(b))); got != whole {
			t.Fatalf("combined %08x, computed %08x", got, whole)
		}
		if got := UpdateCRC32C(CRC32C(a), b); got != whole {
			t.Fatalf("updated %08x, computed %08x", got, whole)
		}
	})
}

func TestCombineCRC32CLong(t *testing.T) {
	a, b := make([]byte, 3<<20), make([]byte, 5<<20+7)
	for i := range b {
		b[i] = byte(i * 7)
	}
	a[9] = 1
	if got, want := CombineCRC32C(CRC32C(a), CRC32C(b), int64(len(b))), UpdateCRC32C(CRC32C(a), b); got != want {
		t.Fatalf("combined %08x, computed %08x", got, want)
	}
}
