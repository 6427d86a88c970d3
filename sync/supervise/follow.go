package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// Trainer says by what it is known that a trainer has ended which somebody else
// has started. Whatever comes first counts.
type Trainer struct {
	PID  int    // of its process; 0: not known
	File string // which is there once it has ended; empty: none
}

// poll is how often it is looked where nothing tells.
const poll = 250 * time.Millisecond

// Follow returns a channel that is closed once the trainer has ended; it is
// never closed after ctx is done, and nil if there is nothing to follow. A
// process that is not there, or a file that is there already, means that the
// trainer has ended: that is what it looks like to a program that is started
// again. A process that got the number of one that ended later is not taken for
// it.
func (t Trainer) Follow(ctx context.Context, log *slog.Logger) <-chan struct{} {
	if t.PID == 0 && t.File == "" {
		return nil
	}
	ended := make(chan struct{})
	p := process(t.PID)
	go func() {
		defer p.close()
		for first := true; ; first = false {
			why := t.over(p, log)
			if why != "" {
				level := slog.LevelInfo
				if first {
					level, why = slog.LevelWarn, why+" already; if the trainer is yet to start, begin after it, and remove a file of an earlier one"
				}
				log.Log(ctx, level, "the trainer has ended", "reason", why)
				close(ended)
				return
			}
			select {
			case <-time.After(poll):
			case <-p.ended:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}

// over says why the trainer is known to have ended; empty: it is not.
func (t Trainer) over(p *followed, log *slog.Logger) string {
	if t.PID != 0 && !p.lives() {
		return fmt.Sprintf("process %d is not there", t.PID)
	}
	if t.File == "" {
		return ""
	}
	_, err := os.Lstat(t.File)
	switch {
	case err == nil:
		return t.File + " is there"
	case !errors.Is(err, fs.ErrNotExist):
		log.Debug("exit file cannot be looked at", "path", t.File, "err", err)
	}
	return ""
}

// followed is a process that is no child of ours.
type followed struct {
	pid   int
	born  string          // tells it from another that gets its number; empty: cannot be told
	ended <-chan struct{} // closed once it has ended, where the system tells; else nil
	close func()
}

// process is the one that has that number now.
func process(pid int) *followed {
	p := &followed{pid: pid, close: func() {}}
	if pid == 0 {
		return p
	}
	p.born, _ = born(pid)
	p.follow()
	return p
}

// lives reports whether it has not ended.
func (p *followed) lives() bool {
	select {
	case <-p.ended:
		return false
	default:
	}
	now, ok := born(p.pid)
	return ok && now == p.born
}
