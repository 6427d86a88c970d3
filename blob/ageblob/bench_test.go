package ageblob_test

import (
	"io"
	"testing"

	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

func BenchmarkPart(b *testing.B) {
	k, err := ageblob.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	s := ageblob.New(memblob.New(), one{k}, 64<<20)
	body := random(1, 16<<20)
	b.Run("put", func(b *testing.B) {
		b.SetBytes(body.Size())
		for b.Loop() {
			if _, err := s.Put(b.Context(), "k", body, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(body.Size())
		for b.Loop() {
			r, err := s.Open(b.Context(), "k", 0, -1)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r); err != nil {
				b.Fatal(err)
			}
			r.Close()
		}
	})
}
