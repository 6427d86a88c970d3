package statusd

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob/durable"
)

// maxSocketPath is how long a socket's path may be: 108 bytes with the zero at
// its end on Linux, 104 elsewhere.
const maxSocketPath = 103

// The files in a state directory.
const (
	socketName = "status.sock"
	placeName  = "status.json"
)

// beatEvery is how often a daemon that can be asked says so in its Place.
const beatEvery = 15 * time.Second

// Place is status.json in a state directory: where the daemon that works on it
// can be asked, or what became of the last one. The time of the file is its
// last sign of life.
type Place struct {
	Socket  string    `json:"socket,omitempty"` // empty: it could make none
	Command string    `json:"command"`
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"` // zero: it works, or was killed

	Beat time.Time `json:"-"` // when it last gave a sign of life
}

// Local is what Offer needs to know.
type Local struct {
	StateDir string // whose lock this process has
	Root     string // that is watched: no socket is made there
	Getenv   func(string) string
	Command  string
	Words    Listener // for what a trainer says there; nil: nobody listens
}

// Offer serves this host's status command: on a socket in the state directory,
// or, where none can be there, as its path is too long or the file system knows
// no sockets, in $XDG_RUNTIME_DIR or the temporary directory. It says in the
// state directory where. leave, or Close, takes that back, while this process
// still has the lock. An error says that nobody can ask; all else goes on.
func (s *Server) Offer(ctx context.Context, o Local) (leave func(), err error) {
	p := Place{Command: o.Command, PID: os.Getpid(), Started: time.Now().UTC()}
	p.Host, _ = os.Hostname() // for people only
	end := func() {}
	var tried []error
	for _, path := range candidates(o) {
		l, err := bindIn(ctx, path)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		p.Socket = path
		end = s.own(o.Words, l, func() {
			s.remove(path)
			if dir := tempName(os.TempDir(), os.Getuid()); filepath.Dir(path) == dir {
				_ = os.Remove(dir) // unless another daemon has its socket there
			}
		})
		break
	}
	switch {
	case p.Socket != "" && len(tried) > 0:
		s.log.Warn("the socket of the status command is not in the state directory", "path", p.Socket, "err", errors.Join(tried...))
	case p.Socket == "":
		err = fmt.Errorf("no socket could be made: %w", errors.Join(tried...))
	}
	err = errors.Join(err, p.write(o.StateDir))
	stop := s.beat(o.StateDir)
	leave = sync.OnceFunc(func() {
		stop()
		end()
		p.Ended, p.Socket = time.Now().UTC(), ""
		if err := p.write(o.StateDir); err != nil {
			s.log.Debug("the end could not be noted", "state_dir", o.StateDir, "err", err)
		}
	})
	return leave, err
}

// own serves a socket on which somebody may be told something.
func (s *Server) own(words Listener, l net.Listener, then func()) (end func()) {
	if words == nil {
		return s.serve(s.http, l, then)
	}
	srv := server(withWords(s.http.Handler, words), s.log)
	stop := s.serve(srv, l, then)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			srv.Close()
		}
		stop()
	}
}

// beat gives signs of life until stop is called.
func (s *Server) beat(dir string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				if err := os.Chtimes(filepath.Join(dir, placeName), now, now); err != nil {
					s.log.Debug("no sign of life could be given", "state_dir", dir, "err", err)
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (p Place) write(dir string) error {
	data, err := json.Marshal(p)
	if err == nil {
		err = durable.WriteFile(filepath.Join(dir, placeName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("where the status can be asked: %w", err)
	}
	return nil
}

// ReadPlace returns what a state directory says of its daemon. There has been
// none if that is fs.ErrNotExist.
func ReadPlace(dir string) (Place, error) {
	path := filepath.Join(dir, placeName)
	fi, err := os.Stat(path)
	if err != nil {
		return Place{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Place{}, err
	}
	var p Place
	if err := json.Unmarshal(data, &p); err != nil {
		return Place{}, fmt.Errorf("%s: %w", path, err)
	}
	p.Beat = fi.ModTime()
	return p, nil
}

// candidates are the paths at which a socket may be made, best first.
func candidates(o Local) []string {
	host, _ := os.Hostname() // hosts may share a file system
	sum := sha256.Sum256([]byte(host + "\x00" + o.StateDir))
	name := fmt.Sprintf("%x.sock", sum[:8])
	paths := []string{filepath.Join(o.StateDir, socketName)}
	if dir := o.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "ckptsync-"+name))
	}
	paths = append(paths, filepath.Join(tempName(os.TempDir(), os.Getuid()), name))
	var out []string
	for _, p := range paths {
		if !inside(p, o.Root) {
			out = append(out, p)
		}
	}
	return out
}

// bindIn is bind, in the directory for sockets below the temporary one if the
// path is there: the last daemon that leaves removes that.
func bindIn(ctx context.Context, path string) (l net.Listener, err error) {
	temp, uid := os.TempDir(), os.Getuid()
	for range 3 {
		if filepath.Dir(path) == tempName(temp, uid) && len(path) <= maxSocketPath {
			if _, err := ownTemp(temp, uid); err != nil {
				return nil, err
			}
		}
		if l, err = bind(ctx, path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return l, err
}

func tempName(temp string, uid int) string {
	return filepath.Join(temp, fmt.Sprintf("ckptsync-%d", uid))
}

// ownTemp is a directory for sockets below the temporary one that nobody else
// can write to.
func ownTemp(temp string, uid int) (string, error) {
	dir := tempName(temp, uid)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	fi, err := os.Lstat(dir)
	switch {
	case err != nil:
		return "", err
	case !fi.IsDir() || fi.Mode().Perm() != 0o700 || !ownedBy(fi, uid):
		return "", fmt.Errorf("%s is not a directory of this user's alone", dir)
	}
	return dir, nil
}

// inside reports whether a path is below a directory.
func inside(path, dir string) bool {
	if dir == "" {
		return false
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(real, filepath.Base(path))
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
