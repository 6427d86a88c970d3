package syncer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/pagecache"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// Config is what an Engine needs. Zero fields take the defaults that are named
// with them.
type Config struct {
	Run      string      // name of the run
	Root     string      // directory that the trainer writes its steps into
	StateDir string      // default <root>.ckptsync, beside the root
	Bucket   blob.Bucket // at the store prefix, with its decorators
	StoreURL string      // identity of the store, for the state directory; without secrets

	// Several nodes that each save a part of a step (protocol R4, R7): how many
	// they are, which of them this is, 0 … Nodes-1, and what names this start
	// of the job to all of them alike. Nodes is 1 if it is 0; then there is no
	// Join.
	Nodes int
	Node  int
	Join  string

	Layouts []layout.Layout // that may claim a step; default layout.Builtins()
	// Settle, if not nil, replaces every layout's own settle time.
	Settle *time.Duration
	// TrustOrder says that the tree was copied, so that the times of its files
	// do not tell the order in which the trainer wrote them: a file newer than
	// the evidence no longer voids it.
	TrustOrder bool

	ScanInterval time.Duration // default 10 s; between looks, whatever events say
	Concurrency  int           // default 8; requests under way at once
	Memory       int64         // default 128 MiB; of file content in memory
	KeepHolds    int           // default 2; holds of steps that the trainer deleted already
	Host         string        // default the host's name; for people only
	// EarlyUpload has Watch send what is quiet of a step that is still being
	// written, and of its growing files what their writer has left behind.
	EarlyUpload bool
	// DropCache says what is dropped from the page cache once it has been sent.
	DropCache pagecache.Policy
	// StaleUploads is how old, by the store's clock, an upload in parts must be
	// that nobody will end, before it is given up; default 24 h.
	StaleUploads time.Duration
	// StopWhenSuperseded has Watch end, with an *OvertakenError, once a newer
	// attempt of the run leads, or, with a *SupersededError, once another host
	// has taken this node's place.
	StopWhenSuperseded bool
	Retention          *Retention // which commits a daemon lets go; nil: none
	Local              *Local     // which committed steps a daemon removes from the disk; nil: none
	// Signer, if not nil, signs each marker before it is written.
	Signer *commit.Signer
	// Trust, if not empty, has a restore take only commits that one of these
	// keys has signed.
	Trust []commit.PublicKey

	Log      *slog.Logger // default discards
	Reporter Reporter     // default LogReporter

	// Seams for tests.
	now     func() time.Time
	after   func(time.Duration) <-chan time.Time
	capture func(root, name string, skip func(string) bool) (*tree.Tree, error)
	fsys    func(root string) fs.FS
	events  func() (*watch.Watcher, error)
	sure    func(file *os.File, off, n int64) bool
	space   func(dir string) (free, all uint64, err error) // bytes of its file system
	rename  func(from, to string) error                    // durable, within one file system
	hook    func(point string)                             // called at every point where a crash test may stop
}

func (c *Config) setDefaults() error {
	if c.Root == "" {
		return errors.New("no root: say which directory the trainer writes its steps into")
	}
	root, err := filepath.Abs(c.Root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	c.Root = root
	if c.StateDir, err = StateDir(c.Root, c.StateDir); err != nil {
		return err
	}
	if err := c.checkNodes(); err != nil {
		return err
	}
	if len(c.Layouts) == 0 {
		c.Layouts = layout.Builtins()
	}
	c.ScanInterval = cmp.Or(c.ScanInterval, 10*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 8)
	c.Memory = cmp.Or(c.Memory, 128<<20)
	c.KeepHolds = cmp.Or(c.KeepHolds, 2)
	c.StaleUploads = cmp.Or(c.StaleUploads, 24*time.Hour)
	if c.Host == "" {
		c.Host, _ = os.Hostname() // for people only; empty is fine
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Reporter == nil {
		c.Reporter = LogReporter{c.Log}
	}
	c.setSeams()
	c.fit(openFiles())
	return nil
}

func (c *Config) setSeams() {
	if c.now == nil {
		c.now = time.Now
	}
	if c.after == nil {
		c.after = time.After
	}
	if c.capture == nil {
		c.capture = tree.Capture
	}
	if c.fsys == nil {
		c.fsys = os.DirFS
	}
	if c.events == nil {
		c.events = watch.New
	}
	if c.sure == nil {
		c.sure = sureOf
	}
	if c.space == nil {
		c.space = space
	}
	if c.rename == nil {
		c.rename = durable.Rename
	}
	if c.hook == nil {
		c.hook = func(string) {}
	}
}

// StateDir returns the state directory of a root: dir if that is not empty,
// else <root>.ckptsync beside it. It refuses one inside the root, because
// trainers trip over foreign entries there.
func StateDir(root, dir string) (string, error) {
	root = filepath.Clean(root)
	if dir == "" {
		if root == filepath.Dir(root) {
			return "", errors.New("the root is the root of the file system: name a state directory with --state-dir")
		}
		return root + ".ckptsync", nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	if within(resolve(root), resolve(dir)) {
		return "", fmt.Errorf("state directory %s is inside the root %s: trainers take every entry there for theirs; name one beside it", dir, root)
	}
	return dir, nil
}

// resolve follows links as far as the path exists.
func resolve(p string) string {
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	if d := filepath.Dir(p); d != p {
		return filepath.Join(resolve(d), filepath.Base(p))
	}
	return p
}

func within(root, p string) bool {
	rel, err := filepath.Rel(root, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
