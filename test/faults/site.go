//go:build linux && amd64

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/test/stores"
)

const runName = "exp1"

// patience is how long a command may take that nothing holds up.
const patience = 2 * time.Minute

// site is a node and its store, on disk, with a copy of both to begin from.
type site struct {
	program string
	base    string // holds all of the rest
	work    string // the node: root, state directory, directory store
	root    string
	kind    string // file or s3
	url     string
	bucket  blob.Bucket
	objects string // the directory that has the objects

	gateway *stores.Gateway
	proxy   *stores.Proxy
	mu      sync.Mutex
	decide  func(n int, r *http.Request) stores.Fate // of the proxy
	done    func()

	saves map[string]tree // what trainers have saved, by step name
	found tree            // the root, as the operation finds it
	head  commit.ID       // when the operation begins
}

// newSite makes an empty site.
func newSite(ctx context.Context, program, base, kind string) (*site, error) {
	s := &site{program: program, base: base, kind: kind, work: filepath.Join(base, "work"), saves: map[string]tree{}}
	s.root = filepath.Join(s.work, "out")
	err := os.MkdirAll(s.work, 0o755)
	if err != nil {
		return nil, err
	}
	if kind == "file" {
		s.objects = filepath.Join(s.work, "store")
		s.url = (&url.URL{Scheme: "file", Path: s.objects}).String()
		s.bucket, err = openDir(s.objects)
		return s, err
	}
	return s, s.openS3(ctx)
}

func (s *site) openS3(ctx context.Context) error {
	bin, err := stores.BuildVersitygw(ctx)
	if err != nil {
		return err
	}
	if s.gateway, err = stores.StartVersitygw(ctx, bin, filepath.Join(s.base, "gateway")); err != nil {
		return err
	}
	if err := s.gateway.MakeBucket("ckpt"); err != nil {
		return err
	}
	s.proxy, err = stores.NewProxy(ctx, s.gateway.Endpoint(), func(n int, r *http.Request) stores.Fate {
		s.mu.Lock()
		d := s.decide
		s.mu.Unlock()
		if d == nil {
			return stores.Pass
		}
		return d(n, r)
	})
	if err != nil {
		return err
	}
	s.proxy.Done = func(int) {
		s.mu.Lock()
		d := s.done
		s.mu.Unlock()
		if d != nil {
			d()
		}
	}
	s.objects = filepath.Join(s.gateway.DataDir(), "ckpt", "team")
	s.url = strings.Replace(s.gateway.URL("ckpt", "team"), url.QueryEscape(s.gateway.Endpoint()), url.QueryEscape(s.proxy.Endpoint()), 1)
	s.bucket, err = s3blob.Open(ctx, s.gateway.URL("ckpt", "team"), s3blob.Options{})
	return err
}

func (s *site) close() {
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.gateway != nil {
		s.gateway.Stop()
	}
}

// faults sets what becomes of requests to the S3 server; nil: nothing.
func (s *site) faults(decide func(int, *http.Request) stores.Fate, done func()) {
	s.mu.Lock()
	s.decide, s.done = decide, done
	s.mu.Unlock()
}

func (s *site) state() string { return s.root + ".ckptsync" }

// keep notes the site as it is now, to begin from at each point.
func (s *site) keep(ctx context.Context) error {
	var err error
	if s.found, err = readTree(s.root, "."); err != nil {
		return err
	}
	if s.head, err = s.nowHead(ctx); err != nil {
		return err
	}
	kept := filepath.Join(s.base, "kept")
	return errors.Join(copyDir(s.work, kept, "-a"), os.RemoveAll(filepath.Join(kept, "out")),
		copyDir(s.root, filepath.Join(s.base, "kept-root"), "-al"), copyDir(s.objects, filepath.Join(s.base, "kept-objects"), "-a"))
}

// reset makes the site what it was when it was kept. The trainer's files are
// the very same: an inode that is another is another file.
func (s *site) reset() error {
	err := copyDir(filepath.Join(s.base, "kept"), s.work, "-a")
	if err == nil {
		err = copyDir(filepath.Join(s.base, "kept-root"), s.root, "-al")
	}
	if s.kind == "s3" && err == nil {
		err = copyDir(filepath.Join(s.base, "kept-objects"), s.objects, "-a")
	}
	if s.kind == "file" && err == nil { // another directory is another store
		s.bucket, err = openDir(s.objects)
	}
	return errors.Join(err, os.RemoveAll(s.limbo()), os.RemoveAll(filepath.Join(s.base, "elsewhere")))
}

func (s *site) limbo() string { return filepath.Join(s.base, "limbo") }

// copyDir makes to a copy of from, with times and extended attributes, in which
// the server keeps what it knows of an object. how is -a, or -al for links.
func copyDir(from, to, how string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	out, err := exec.Command("cp", how, from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// command is a command of the program. What it prints goes to out and log.
func (s *site) command(out, log *bytes.Buffer, args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Dir = s.work
	cmd.Env = append(stores.Env(), "HOME="+s.work, "TMPDIR="+s.work, "PATH="+os.Getenv("PATH"),
		"CKPTSYNC_RUN="+runName, "CKPTSYNC_STORE="+s.url, "CKPTSYNC_ROOT="+s.root, "CKPTSYNC_LOG_FORMAT=json",
		"CKPTSYNC_CONFIG="+filepath.Join(s.work, "ckptsync.yaml"), "GOMAXPROCS=2")
	cmd.Stdout, cmd.Stderr = out, log
	return cmd
}

// must runs a command to its end and wants status 0.
func (s *site) must(ctx context.Context, args ...string) (string, error) {
	var out, log bytes.Buffer
	cmd := s.command(&out, &log, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(log.Bytes()))
	}
	return strings.TrimSpace(out.String()), ctx.Err()
}

// tail is the end of a log.
func tail(log []byte) []byte {
	return bytes.TrimSpace(log[max(0, len(log)-1500):])
}

func (s *site) store() *commit.Store {
	st, err := commit.NewStore(s.bucket, runName)
	if err != nil {
		panic(err) // the name is a constant
	}
	return st
}

func (s *site) nowHead(ctx context.Context) (commit.ID, error) {
	v, err := s.store().View(ctx)
	if err != nil {
		return commit.ID{}, err
	}
	head, _ := v.Head()
	return head, nil
}

// tree is a directory's entries by path below it.
type tree map[string]entry

type entry struct {
	mode  fs.FileMode
	mtime int64
	data  string // or where a link leads
}

// readTree reads name below root, with paths relative to root. What is not
// there is empty.
func readTree(root, name string) (tree, error) {
	out := tree{}
	err := filepath.WalkDir(filepath.Join(root, name), func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{mode: fi.Mode(), mtime: fi.ModTime().UnixNano()}
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			e.data = string(data)
		case fi.Mode()&fs.ModeSymlink != 0:
			if e.data, err = os.Readlink(p); err != nil {
				return err
			}
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		out[filepath.ToSlash(rel)] = e
		return nil
	})
	return out, err
}

// differs says in what t is not o; empty: in nothing. The times of directories
// named in except do not count.
func (t tree) differs(o tree, except ...string) string {
	for p, a := range t {
		b, ok := o[p]
		for _, e := range except {
			if p == e {
				a.mtime = b.mtime
			}
		}
		switch {
		case !ok:
			return p + " is too many"
		case a.mode != b.mode:
			return fmt.Sprintf("%s has mode %v and not %v", p, a.mode, b.mode)
		case a.data != b.data:
			return p + " has other bytes"
		case a.mtime != b.mtime:
			return fmt.Sprintf("%s has time %v and not %v", p, time.Unix(0, a.mtime), time.Unix(0, b.mtime))
		}
	}
	for p := range o {
		if _, ok := t[p]; !ok {
			return p + " is missing"
		}
	}
	return ""
}

// below are the entries of a step, with its name.
func (t tree) below(name string) tree {
	out := tree{}
	for p, e := range t {
		if p == name || strings.HasPrefix(p, name+"/") {
			out[p] = e
		}
	}
	return out
}
