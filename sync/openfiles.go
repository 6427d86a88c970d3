package syncer

import "fmt"

// filesAtOnce is how many files an upload may have open for each of its large
// requests: eight small ones may take its place, half as many more are being read,
// and each has its own file open, and a socket or a file of the store.
const filesAtOnce = 8 * 3

// filesApart are for everything else: the store, the watch, locks and journals.
const filesApart = 40

// fit lowers the concurrency to what a limit on open files leaves room for: a
// step of many small files would else fail again and again. 0: there is none.
func (c *Config) fit(limit uint64) {
	n := affordable(c.Concurrency, limit)
	if limit == 0 || n == c.Concurrency {
		return
	}
	c.Log.Warn("fewer transfers at once than configured", "concurrency", n, "configured", c.Concurrency,
		"reason", fmt.Sprintf("this process may have no more than %d files open: raise the limit (ulimit -n, LimitNOFILE=)", limit))
	c.Concurrency = n
}

// affordable is the concurrency that a limit on open files leaves room for.
func affordable(want int, limit uint64) int {
	if limit >= uint64(want)*filesAtOnce+filesApart {
		return want
	}
	return int(max(1, (max(limit, filesApart)-filesApart)/filesAtOnce))
}
