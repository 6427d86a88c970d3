package tree

import (
	"fmt"
	"sync/atomic"
	"testing"
)

func TestEach(t *testing.T) {
	for _, n := range []int{0, 1, many - 1, many, 1000} {
		seen := make([]atomic.Int32, n)
		if err := Each(n, func(i int) error { seen[i].Add(1); return nil }); err != nil {
			t.Error(err)
		}
		for i := range seen {
			if k := seen[i].Load(); k != 1 {
				t.Errorf("n %d: %d was called %d times", n, i, k)
			}
		}
	}
}

func TestEachReturnsTheFirstErrorByNumber(t *testing.T) {
	for _, n := range []int{many - 1, 1000} {
		for range 100 {
			err := Each(n, func(i int) error {
				if i == 7 || i == 8 || i == n-1 {
					return fmt.Errorf("%d", i)
				}
				return nil
			})
			if err == nil || err.Error() != "7" {
				t.Fatalf("n %d: %v", n, err)
			}
		}
	}
	calls := atomic.Int32{}
	if err := Each(10_000, func(int) error { calls.Add(1); return fmt.Errorf("x") }); err == nil || calls.Load() > lookers {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}
