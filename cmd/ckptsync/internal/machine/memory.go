package machine

import "runtime/debug"

const (
	mib = 1 << 20
	// roomy is the budget from which on the program itself does not matter.
	roomy = 128 * mib
	// least is what one chunk of a file takes.
	least = 16 * mib
	// own is what the program takes beside the content of files, at most.
	own = 32 * mib
	// lazy is how much garbage may grow, in percent of what is in use, before it is
	// collected: most of what is in use are buffers, which cost nothing to look
	// through, and with many small files there is little of it and much garbage.
	lazy = 400
	// tidy is the same beside encryption.
	tidy = 50
)

// Content is how much of a budget of memory, in bytes, may hold file content. A
// small one has to hold the program as well, so that who asks for 96 MiB gets a
// process of at most 128 MiB.
func Content(memory int64) int64 {
	if memory >= roomy {
		return memory
	}
	return max(memory-own, least)
}

// LimitMemory makes the garbage collector keep the process close to a budget of
// memory, in bytes, and rest as long as it is far from it. It changes nothing that
// the environment says: GOMEMLIMIT and GOGC count.
//
// It is no hard limit, and leaves room: a step of a million files needs memory
// that no budget of content foresees, and a collector that never rests would cost
// more than it saves.
func LimitMemory(memory int64, getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(goal(memory))
	}
	if getenv("GOGC") == "" && memory >= roomy {
		debug.SetGCPercent(lazy)
	}
}

// KeepTidy makes the garbage collector work more often than LimitMemory lets it:
// encryption leaves as much garbage behind as a fifth of what goes through it. It
// changes nothing that the environment says.
func KeepTidy(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(tidy)
	}
}

// goal is for what the collector knows of. The program's text, some 24 MiB, comes
// on top: a budget of 96 MiB makes a process of about 112.
func goal(memory int64) int64 {
	if memory >= roomy {
		return max(3*roomy, memory+memory/2)
	}
	return max(memory-8*mib, least+own)
}
