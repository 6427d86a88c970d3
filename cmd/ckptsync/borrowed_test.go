package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

func TestBorrowedFrom(t *testing.T) {
	id := commit.ID{Step: 200, Attempt: 1}
	for object, want := range map[string]string{
		"data/000000000200-a000001-r00/node-00000.abc/x":    "",
		"data/000000000100-a000001-r00/node-00000.abc/x/y":  "000000000100-a000001-r00",
		"data/000000000200-a000001-r01/node-00000.abc/x":    "000000000200-a000001-r01",
		"parts/000000000100-a000001-r00/node-00000.00.json": "",
		"": "",
	} {
		if got := borrowedFrom(object, id); got != want {
			t.Errorf("%q: %q, want %q", object, got, want)
		}
	}
}

func TestShowSaysWhatIsUnchanged(t *testing.T) {
	s := &showJSON{Entries: []showEntry{
		{Path: "a", Type: "file", Size: 3 << 20, BorrowedFrom: "000000000100-a000001-r00"},
		{Path: "b", Type: "file", Size: 1 << 20, BorrowedFrom: "000000000100-a000001-r00"},
		{Path: "c", Type: "file", Size: 1 << 20},
	}}
	var out bytes.Buffer
	a := &app{term: term.New(&out, &out, func(string) string { return "" })}
	if err := a.printShow(s); err != nil {
		t.Fatal(err)
	}
	if want := "unchanged  4.0 MiB in 2 files, sent with 000000000100-a000001-r00"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in\n%s", want, out.String())
	}
}
