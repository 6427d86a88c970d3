//go:build race

package syncer

const simSeeds = 15 // they take several times as long

const raced = true
