package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/fleet"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/supervise"
)

// server is a daemon: the runs that it serves, and what they share.
type server struct {
	*app
	reread  func() (*config.Config, error) // reads the configuration again
	standBy bool                           // runs that another daemon works on are waited for
	log     *slog.Logger
	level   *slog.LevelVar
	fleet   *fleet.Fleet
	trainer <-chan struct{} // closed once the trainer has ended; nil: that is never known

	// Of the goroutine that looks and reads again.
	cfg        *config.Config
	store      *engines   // the store, and no engine
	old        []*engines // stores that were opened before; closed at the end
	discovered []config.Run
	gone       map[string]time.Time // since when the root of a discovered run is not there, by name
	said       map[config.Skipped]bool
	ending     bool // the trainer has ended: no run begins again, and none is looked for

	several atomic.Bool // more runs than one, or a pattern of them: one that fails is no end

	mu      sync.Mutex
	engines map[string]*syncer.Engine // those at work, by run
	states  map[string]stateSeen      // by run
}

// openServer opens what the runs share.
func (a *app) openServer(ctx context.Context, cfg *config.Config, log *slog.Logger, level *slog.LevelVar) (*server, error) {
	o, err := a.openEngines(ctx, cfg, nil, log)
	if err != nil {
		return nil, err
	}
	return &server{
		app: a, cfg: cfg, log: log, level: level, store: o,
		gone: map[string]time.Time{}, said: map[config.Skipped]bool{}, states: map[string]stateSeen{}, engines: map[string]*syncer.Engine{},
	}, nil
}

// serve serves all runs until ctx is done, or until all have ended for good. It
// looks for runs that come and go, and reads its configuration again when told.
func (s *server) serve(ctx, now context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	watched, done := context.WithCancel(context.WithoutCancel(ctx)) // the trainer may outlive the signal
	defer done()
	s.trainer = supervise.Trainer{PID: s.cfg.UntilPID, File: s.cfg.UntilFile}.Follow(watched, s.log)
	defer watchNotices(ctx, s.cfg, s.log, s.hurry)()
	s.fleet = fleet.New(ctx, now, fleet.Options{Log: s.log, Again: func(err error) bool { return s.several.Load() && mayGetBetter(err) }})
	s.look(ctx)
	trainer := s.trainer
	for {
		select {
		case <-time.After(s.cfg.ScanInterval):
			if len(s.cfg.Patterns) > 0 {
				s.look(ctx)
			}
			continue
		case <-hup:
			s.reload(ctx)
			continue
		case <-trainer:
			trainer, s.ending = nil, true
			s.look(ctx)
			continue
		case <-ctx.Done():
		case <-s.fleet.Ended():
		}
		break
	}
	err := s.fleet.Wait()
	s.store.bars.Close()
	s.lastWords()
	for _, o := range append(s.old, s.store) {
		o.closeStore()
	}
	return err
}

// mayGetBetter reports whether a run that ended with err is begun again: not if
// it has come to its end because another one leads.
func mayGetBetter(err error) bool {
	var overtaken *syncer.OvertakenError
	var superseded *syncer.SupersededError
	var usage *usageError
	return !errors.As(err, &overtaken) && !errors.As(err, &superseded) && !errors.As(err, &usage)
}

// look brings what is served to what the configuration says, and what is there.
func (s *server) look(ctx context.Context) {
	found := s.cfg.Discover(s.discovered)
	s.discovered = append(found.Runs, s.lingering(found)...)
	s.tell(found.Skipped)
	open := len(s.cfg.Patterns) > 0 && !s.ending
	s.several.Store(!s.ending && (open || len(s.cfg.Listed()) > 1))
	var members []fleet.Member
	for _, r := range slices.Concat(s.cfg.Listed(), s.discovered) {
		m := fleet.Member{Name: r.Name, Place: cmp.Or(r.Place(), r.Root), Print: s.cfg.Print(r) + s.stateOf(r)}
		t := &turn{server: s, serving: ctx, cfg: s.cfg, run: r, store: s.store}
		m.Serve = t.serve
		members = append(members, m)
	}
	s.fleet.Set(members, open)
}

// stateOf is another text once the state directory of a run has vanished and its
// root has not: the root is a new one, and the run is to begin anew with it.
func (s *server) stateOf(r config.Run) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[r.Name]
	now, err := os.Stat(r.StateDir)
	if st.dir != nil && (err != nil || !os.SameFile(st.dir, now)) && isThere(r.Root) {
		st.dir = nil
		st.lost++
	}
	s.states[r.Name] = st
	return strconv.Itoa(st.lost)
}

// stateSeen is what was seen of a state directory.
type stateSeen struct {
	dir  fs.FileInfo // as the engine opened it; nil: not known
	lost int         // how often it vanished
}

// absences is how many looks in a row a discovered root must be missing.
const absences = 6

// lingering returns those of the discovered runs that were not found now and
// are served all the same: their directory may come back, or what was held of
// it is still to be committed.
func (s *server) lingering(found config.Found) []config.Run {
	var stay []config.Run
	gone := map[string]time.Time{}
	for _, r := range s.discovered {
		if slices.ContainsFunc(found.Runs, func(f config.Run) bool { return f.Name == r.Name }) {
			continue
		}
		unsure := slices.ContainsFunc(found.Unsure, func(dir string) bool { return r.Root == dir || strings.HasPrefix(r.Root, dir+"/") })
		since, ok := s.gone[r.Name]
		if !ok || unsure {
			since = time.Now()
		}
		if !unsure && isThere(r.Root) {
			continue // it is there, and counts no more
		}
		over := time.Since(since) >= absences*s.cfg.ScanInterval && s.idle(r.Name) || !isThere(r.StateDir)
		if !unsure && over {
			s.log.Info("run is served no more: its directory is gone", "run", r.Name, "root", r.Root)
			continue
		}
		stay, gone[r.Name] = append(stay, r), since
	}
	s.gone = gone
	return stay
}

// hurry tells all engines that are at work that the machine is to be taken away.
func (s *server) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.engines {
		e.Hurry()
	}
}

func (s *server) idle(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.engines[name]
	return e == nil || e.Idle()
}

// tell says what is not served, once for as long as it stays so.
func (s *server) tell(skipped []config.Skipped) {
	said := map[config.Skipped]bool{}
	for _, k := range skipped {
		if said[k] = true; !s.said[k] {
			s.log.Warn("directory not served", "path", k.Path, "reason", k.Reason)
		}
	}
	s.said = said
}

// turn is one time that a run is served, with what the configuration said then.
type turn struct {
	*server
	serving context.Context // of the server
	cfg     *config.Config
	run     config.Run
	store   *engines
}

// serve is what the fleet calls.
func (t *turn) serve(ctx, now context.Context) (err error) {
	defer func() { t.board.ended(t.run, err) }()
	if t.standBy {
		return t.inTurn(ctx, func(ctx context.Context) error { return t.watch(ctx, now) })
	}
	return t.watch(ctx, now)
}

func (t *turn) watch(ctx, now context.Context) error {
	e, err := newEngine(t.cfg, t.run, t.store)
	if err != nil {
		return err
	}
	t.atWork(e)
	leave := t.board.offer(ctx, t.app, t.run, e)
	defer func() {
		leave()
		t.atWork(nil)
		if err := e.Close(); err != nil {
			t.log.Warn("close state directory", "run", t.run.Name, "err", err)
		}
	}()
	if t.trainer != nil {
		e.FollowTrainer(t.trainer)
	}
	t.log.Info("watching", "run", t.run.Name, "root", t.run.Root, "state_dir", t.run.StateDir)
	now, halt := context.WithCancelCause(now)
	defer halt(nil)
	defer context.AfterFunc(ctx, func() {
		if t.serving.Err() == nil && !isThere(t.run.Root) && e.Idle() {
			halt(errGone)
		}
	})()
	if err = e.Watch(ctx, now, t.cfg.Grace); errors.Is(err, errGone) {
		return nil
	}
	return err
}

// errGone is the cause when a run ends because its directory is gone, and
// nothing of it is left to commit.
var errGone = errors.New("its directory is gone")

func isThere(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// atWork notes the run's engine, or that it has none.
func (t *turn) atWork(e *syncer.Engine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e == nil {
		delete(t.engines, t.run.Name)
		return
	}
	t.engines[t.run.Name] = e
	st := t.states[t.run.Name]
	st.dir, _ = os.Stat(t.run.StateDir) // nil if it cannot be known
	t.states[t.run.Name] = st
}

// lastWords prints the latest resumable step of each run on standard output.
func (s *server) lastWords() {
	runs := slices.Concat(s.cfg.Listed(), s.discovered)
	texts := make([]string, len(runs))
	var g errgroup.Group
	g.SetLimit(8)
	for i, r := range runs {
		g.Go(func() error {
			es := *s.store
			es.runs = []config.Run{r}
			text, err := latest(&es, 0)
			if err != nil { // no failure of the daemon
				s.log.Warn("latest resumable step not known", "run", r.Name, "err", err)
			}
			texts[i] = text
			return nil
		})
	}
	_ = g.Wait() // none fails
	for _, text := range texts {
		if text == "" {
			continue
		}
		if err := s.term.Printf(term.Plain, "%s", text); err != nil {
			s.log.Debug("last word", "err", err)
		}
	}
}
