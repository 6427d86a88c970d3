package machine

import (
	"log/slog"
	"os"
	"runtime"
)

// BeNice makes the process yield processor and disk to everybody else, as far as
// the system allows: lowest priority, run when nobody else wants to; last in its
// class for the disk; few threads at once, for the sake of the memory's bandwidth
// and the caches. What cannot be had is one warning, and no failure. A process
// that is started afterwards inherits it, so a trainer is started before.
//
// The disk's idle class is not used: beside a trainer that always reads it would
// mean never, and a step that is never uploaded is lost with its node.
func BeNice(log *slog.Logger) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(niceThreads(runtime.NumCPU()))
	}
	if err := yield(); err != nil {
		log.Warn("could not be as nice as asked for", "err", err)
		return
	}
	log.Debug("nice", "threads", runtime.GOMAXPROCS(0))
}

// niceThreads is how many threads run at once on a machine of n processors: a
// quarter of them, and no more than hash what a fast network takes.
func niceThreads(n int) int { return min(max(n/4, 1), 8) }
