package syncer

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A limit on open files that the default concurrency does not fit into lowers it,
// with a word; one that is not known, or is high, changes nothing.
func TestConcurrencyFitsTheLimitOnOpenFiles(t *testing.T) {
	t.Parallel()
	for limit, want := range map[uint64]int{0: 8, 12: 1, 64: 1, 128: 3, 231: 7, 232: 8, 1 << 20: 8} {
		var log bytes.Buffer
		c := Config{Concurrency: 8, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if c.fit(limit); c.Concurrency != want {
			t.Errorf("with %d files: %d at once, want %d", limit, c.Concurrency, want)
		}
		if told := strings.Contains(log.String(), "ulimit -n"); told != (want != 8) {
			t.Errorf("with %d files: told %q", limit, log.String())
		}
	}
}
