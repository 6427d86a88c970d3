//go:build race

package syncer

// They take several times as long.
const (
	simSeeds    = 15
	simJobSeeds = 8
)

const raced = true
