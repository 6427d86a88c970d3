package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// borrowedFrom is the commit that sent an object that id names; empty if that is
// id itself.
func borrowedFrom(object string, id commit.ID) string {
	o, ok := commit.ParseKey(object)
	if !ok || o.Kind != commit.KindData || o.ID == id {
		return ""
	}
	return o.ID.String()
}

// borrowed says, for people, what the commit names of others.
func (s *showJSON) borrowed() (facts [][2]string) {
	files, bytes := map[string]int{}, map[string]int64{}
	for _, e := range s.Entries {
		if e.BorrowedFrom != "" {
			files[e.BorrowedFrom]++
			bytes[e.BorrowedFrom] += e.Size
		}
	}
	for _, id := range slices.Sorted(maps.Keys(files)) {
		facts = append(facts, [2]string{"unchanged", fmt.Sprintf("%s in %s, sent with %s", term.Bytes(bytes[id]), term.Count(files[id], "file"), id)})
	}
	return facts
}
