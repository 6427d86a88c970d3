package syncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// A commit names what an older one has sent already (protocol R11): a file with
// the same path below its step, the same size and the same digests, such as the
// base model beside an adapter. The one that lends is the newest commit of this
// attempt or, for the first, the attempt's base. The object keeps its own key,
// which says who sent it; so there are no chains.
//
// A file is always read: the identity that tells whether a file changed while
// it was read does not tell that one in another step has the same bytes. A link
// to the same inode does not either: an inode number is used again, a time can
// be set, and the one time that cannot, that of the inode's last change, is new
// by the linking itself.
//
// That a lender is not retired, once the manifest that names its objects can be
// seen, is what keeps the objects (whoever deletes them looks first for
// manifests that name them). Who sent them does not matter: it may be retired.

// lender is a commit whose objects another may name.
type lender struct {
	id      commit.ID
	m       *commit.Manifest        // nil until it is asked for
	files   map[string]*commit.File // by path relative to the step
	objects map[string]bool
}

// chooseLender finds out, by what there is when the engine attaches, which
// commit lends. One that is damaged does not, and nor does an older one in its
// place: it may name the very object that is damaged.
func (e *Engine) chooseLender(v *commit.View) {
	e.lender = nil
	var best *commit.ID
	for _, c := range v.Commits { // ascending
		if c.Attempt == e.st.Attempt {
			best = &c.ID
		}
	}
	best = cmp.Or(best, e.st.Base)
	if best != nil && !v.Retired[*best] && !v.Marks[*best][commit.Damaged] {
		e.lender = &lender{id: *best}
	}
}

// lends makes a commit of this attempt, made just now, the lender, unless an
// even newer one is.
func (e *Engine) lends(m *commit.Manifest) {
	if l := e.lender; l != nil && l.id.Attempt == m.Attempt && (l.id.Step > m.Step || l.id.Step == m.Step && l.id.Revision > m.Revision) {
		return
	}
	e.lender = newLender(m)
}

func newLender(m *commit.Manifest) *lender {
	l := &lender{id: m.ID, m: m, files: make(map[string]*commit.File, len(m.Files)), objects: make(map[string]bool, len(m.Files))}
	for i := range m.Files {
		if f := &m.Files[i]; f.Type == commit.TypeFile {
			l.files[(&tree.Tree{Name: m.Name}).Rel(f.Path)] = f
			l.objects[f.Object] = true
		}
	}
	return l
}

// lending is the lender with its manifest; nil if there is none, or none that
// can be used.
func (e *Engine) lending(ctx context.Context) (*lender, error) {
	if e.lender == nil || e.lender.m != nil {
		return e.lender, nil
	}
	m, err := e.ownPart(ctx, e.lender.id)
	if err != nil {
		return nil, err
	}
	if m == nil {
		e.lender = nil
		return nil, nil
	}
	e.lender = newLender(m)
	return e.lender, nil
}

// known is what a file may be, of the lender's.
func (l *lender) known(s *commit.Store, rel string, f *commit.File) *upload.Known {
	if l == nil {
		return nil
	}
	k := l.files[rel]
	if k == nil || k.Size != f.Size || k.Chunk != f.Chunk {
		return nil
	}
	return &upload.Known{Object: s.Key(k.Object), Digest: k.Digest}
}

// checkBorrowed makes sure that what a manifest names of other commits is there
// and stays. The manifest can be seen by now.
func (e *Engine) checkBorrowed(ctx context.Context, m *commit.Manifest) error {
	objects, owners := borrowed(m)
	if len(objects) == 0 {
		return nil
	}
	w, err := e.lending(ctx)
	if err != nil {
		return err
	}
	ask := map[commit.ID]bool{} // whose tombstone is to be looked for
	for object, id := range owners {
		if w != nil && w.objects[object] {
			id = w.id
		}
		ask[id] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(ask), func(a, b commit.ID) int { return strings.Compare(a.String(), b.String()) }) {
		lost, err := e.store.Lost(ctx, id)
		if err != nil {
			return err
		}
		if lost != "" {
			return &lenderError{id, lost}
		}
	}
	damaged, err := e.store.Damaged(ctx)
	if err != nil {
		return err
	}
	for _, id := range owners {
		if damaged[id] {
			return &lenderError{id, "marked damaged"}
		}
	}
	bad, err := e.unsound(ctx, objects)
	if err != nil {
		return err
	}
	for object, why := range bad {
		return &lenderError{owners[object], fmt.Sprintf("not whole: %s %s", object, why)}
	}
	return nil
}

// borrowed are the objects of other commits that a manifest names, with their
// sizes and with the commits that sent them.
func borrowed(m *commit.Manifest) (sizes map[string]int64, owners map[string]commit.ID) {
	sizes, owners = map[string]int64{}, map[string]commit.ID{}
	for i := range m.Files {
		f := &m.Files[i]
		if o, ok := commit.ParseKey(f.Object); ok && o.ID != m.ID {
			sizes[f.Object], owners[f.Object] = f.Size, o.ID
		}
	}
	return sizes, owners
}

// fewObjects is how many objects of one folder are asked for one by one, rather
// than by listing the folder.
const fewObjects = 8

// unsound looks at objects, given with their sizes, and says what is wrong with
// those that are not there as they should be.
func (e *Engine) unsound(ctx context.Context, objects map[string]int64) (map[string]string, error) {
	folders := map[string][]string{}
	for object := range objects {
		folders[folder(object)] = append(folders[folder(object)], object)
	}
	var mu sync.Mutex
	there := make(map[string]int64, len(objects))
	saw := func(info blob.Info) {
		mu.Lock()
		defer mu.Unlock()
		there[strings.TrimPrefix(info.Key, e.store.Key(""))] = info.Size
	}
	b := e.store.Bucket()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, e.cfg.Concurrency))
	byContent := func(a, b string) int { // not by their tokens, which are random: a simulation is repeatable so
		return cmp.Compare(slices.Min(folders[a])[len(a):], slices.Min(folders[b])[len(b):])
	}
	for _, dir := range slices.SortedStableFunc(maps.Keys(folders), byContent) {
		names := slices.Sorted(slices.Values(folders[dir]))
		if len(names) > fewObjects {
			g.Go(func() error {
				for info, err := range b.List(ctx, e.store.Key(dir)) {
					if err != nil {
						return err
					}
					saw(info)
				}
				return nil
			})
			continue
		}
		for _, name := range names {
			g.Go(func() error {
				info, err := b.Stat(ctx, e.store.Key(name))
				if err == nil {
					saw(info)
				} else if !errors.Is(err, blob.ErrNotExist) {
					return err
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	bad := map[string]string{}
	for object, want := range objects {
		switch have, ok := there[object]; {
		case !ok:
			bad[object] = "is not there"
		case have != want:
			bad[object] = fmt.Sprintf("has %d bytes, not %d", have, want)
		}
	}
	return bad, nil
}

// folder is data/<commit>/<node>.<token>/ of a data object.
func folder(object string) string {
	end := 0
	for range 3 {
		i := strings.IndexByte(object[end:], '/')
		if i < 0 {
			return object
		}
		end += i + 1
	}
	return object[:end]
}

// lenderError says that objects that were borrowed cannot be relied on.
type lenderError struct {
	id  commit.ID
	why string
}

func (e *lenderError) Error() string {
	return fmt.Sprintf("it names files of commit %s, which is %s", e.id, e.why)
}

// forgetSent has all of a step sent again.
func (e *Engine) forgetSent(step string) error {
	j, err := e.journal(step)
	if err != nil {
		return err
	}
	defer j.close()
	return j.forgetAll()
}
