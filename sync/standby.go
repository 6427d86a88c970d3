package syncer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/ckptsync/ckptsync/blob/durable"
)

// Several hosts may share one directory, each with a daemon for it: one works,
// the others stand by, and one of them takes over when that is gone. The lock of
// the state directory tells them apart where the file system carries it to other
// hosts. Where it does not, the sign of life does that the working one leaves in
// the state directory. Neither is what a commit rests on: two that work at once
// hold up each other's steps, and no more.

const aliveName = "alive.json"

const (
	beatEvery = 10 * time.Second
	// deadAfter is how long a sign of life must stay as it is before its writer
	// counts as gone. A network file system may show an old one for a minute.
	deadAfter = 90 * time.Second
	// lockEvery is how often it is looked whether the lock is free.
	lockEvery = 2 * time.Second
)

// alive is alive.json.
type alive struct {
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Token string `json:"token"` // of the daemon that works
	Beat  int    `json:"beat"`
}

// Vigil is a daemon's turn on a state directory that it may share with others.
type Vigil struct {
	dir  string
	me   alive
	log  *slog.Logger
	wait func(context.Context, time.Duration) error
	lock func(dir string) (*flock.Flock, error)
}

// TakenOverError says that another daemon works on the state directory now: it
// saw no sign of life of this one for too long.
type TakenOverError struct{ StateDir, By string }

func (e *TakenOverError) Error() string {
	return fmt.Sprintf("%s works on %s now, having seen no sign of life of this daemon for %s: is the file system that slow?", e.By, e.StateDir, deadAfter)
}

// StandBy waits until no other daemon works on the state directory, on this host
// or another, and makes it this one's. It says once whom it waits for. The
// caller opens an Engine on it, keeps the vigil with Keep, and ends it with Leave.
func StandBy(ctx context.Context, stateDir, host string, log *slog.Logger) (*Vigil, error) {
	v := &Vigil{dir: stateDir, me: alive{Host: host, PID: os.Getpid(), Token: rand.Text()}, log: log, wait: pause, lock: lock}
	told := ""
	tell := func(who string) {
		if who != told {
			log.Info("standing by: another daemon works on it", "state_dir", stateDir, "holder", who)
			told = who
		}
	}
	for {
		free, who, err := v.try(ctx)
		if free || err != nil {
			return v, err
		}
		tell(who)
		if err := v.wait(ctx, lockEvery); err != nil {
			return nil, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// try takes the state directory if nobody works on it, else says who does.
func (v *Vigil) try(ctx context.Context) (bool, string, error) {
	l, err := v.lock(v.dir)
	var busy *BusyError
	if errors.As(err, &busy) {
		return false, busy.Holder, nil
	}
	if err != nil {
		return false, "", err
	}
	defer l.Unlock()
	was, err := v.read()
	if err != nil {
		return false, "", err
	}
	// One of this host would hold the lock.
	for waited := time.Duration(0); was.Token != "" && was.Host != v.me.Host && waited < deadAfter; waited += beatEvery {
		if err := v.wait(ctx, beatEvery); err != nil {
			return false, "", err
		}
		now, err := v.read()
		if err != nil || now.Token != "" && now != was {
			return false, now.who(), err
		}
		was = now // perhaps it has left
	}
	if was.Token != "" {
		v.log.Warn("taking over from a daemon that gave no sign of life", "holder", was.who())
	}
	if err := v.beat(); err != nil {
		return false, "", err
	}
	// Others may have come to the same conclusion: the last to say so has it.
	if err := v.wait(ctx, lockEvery); err != nil {
		return false, "", err
	}
	now, err := v.read()
	return err == nil && now.Token == v.me.Token, now.who(), err
}

func (a alive) who() string { return fmt.Sprintf("pid %d on %s", a.PID, a.Host) }

// read returns the sign of life; none, or one that cannot be understood, is empty.
func (v *Vigil) read() (a alive, err error) {
	data, err := os.ReadFile(filepath.Join(v.dir, aliveName))
	if errors.Is(err, fs.ErrNotExist) {
		return alive{}, nil
	}
	if err != nil {
		return alive{}, fmt.Errorf("sign of life: %w", err)
	}
	if json.Unmarshal(data, &a) != nil {
		return alive{}, nil
	}
	return a, nil
}

func (v *Vigil) beat() error {
	v.me.Beat++
	data, err := json.Marshal(v.me)
	if err == nil {
		err = durable.WriteFile(filepath.Join(v.dir, aliveName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("sign of life: %w", err)
	}
	return nil
}

// Keep gives signs of life until ctx is done, or another daemon has taken over:
// that is a *TakenOverError. A file system that fails for a while does not end it.
func (v *Vigil) Keep(ctx context.Context) error {
	for v.wait(ctx, beatEvery) == nil {
		now, err := v.read()
		if err == nil && now.Token != "" && now.Token != v.me.Token {
			return &TakenOverError{StateDir: v.dir, By: now.who()}
		}
		if err == nil {
			err = v.beat()
		}
		if err != nil {
			v.log.Warn("no sign of life could be given", "state_dir", v.dir, "err", err)
		}
	}
	return nil
}

// Leave lets another daemon take over at once.
func (v *Vigil) Leave() error {
	now, err := v.read()
	if err != nil || now.Token != v.me.Token {
		return err
	}
	if err := os.Remove(filepath.Join(v.dir, aliveName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sign of life: %w", err)
	}
	return nil
}
