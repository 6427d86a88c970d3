package machine

import "runtime/debug"

const (
	mib = 1 << 20
	// roomy is the budget from which on the program itself does not matter.
	roomy = 128 * mib
	// least is what one chunk of a file takes.
	least = 16 * mib
	// own is what the program takes beside the content of files, about.
	own = 24 * mib
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
// memory, in bytes, where it would otherwise let garbage grow to as much as is in
// use. It does nothing if the environment has a GOMEMLIMIT: then that counts.
//
// It is no hard limit, and leaves room: a step of a million files needs memory
// that no budget of content foresees, and a collector that never rests would cost
// more than it saves.
func LimitMemory(memory int64, getenv func(string) string) {
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(goal(memory))
}

func goal(memory int64) int64 {
	if memory >= roomy {
		return max(3*roomy, memory+memory/2)
	}
	return memory + 8*mib
}
