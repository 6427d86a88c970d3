package tree

import (
	"sync"
	"sync/atomic"
)

// Many looks are made by several goroutines: on a network file system each is a
// round trip.
const (
	many    = 64
	lookers = 8
)

// Each calls f for 0 to n-1, from several goroutines if n is large, and returns
// the error of the lowest number that had one. After an error it calls f for no
// higher number that was not begun yet.
func Each(n int, f func(i int) error) error {
	if n < many {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	var (
		wg   sync.WaitGroup
		next atomic.Int64
		mu   sync.Mutex
		at   = n
		err  error
		end  atomic.Bool
	)
	for range lookers {
		wg.Go(func() {
			for !end.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if e := f(i); e != nil {
					end.Store(true)
					mu.Lock()
					if i < at {
						at, err = i, e
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return err
}
