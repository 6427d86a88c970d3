//go:build race

package syncer

// They take several times as long.
const (
	simSeeds    = 12
	simJobSeeds = 3
)

const raced = true
