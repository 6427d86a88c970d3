package syncer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// journal is what this host remembers of one step: what it has sent already,
// so that a restart does not send it again, and under which fingerprint the
// step is committed, so that a scan need not ask the store. It is a cache
// (protocol R12): lines of JSON, each behind its own checksum, appended without
// fsync. A line that does not check out ends it; what follows is forgotten,
// and that costs at most sending some bytes once more.
type journal struct {
	path string

	mu    sync.Mutex
	f     *os.File // open for appending; nil until the first record
	files map[string]record
	ups   map[string]record         // uploads in parts, by path
	parts map[string]map[int]record // by upload id, then part number
	done  record                    // the last commit, if any

	stamps map[string]record // see part.under

	// early says that it is one of what is sent ahead (early_journal.go), and
	// trash is what was sent in vain: objects and uploads that nothing names.
	early bool
	trash []record
}

// record is one line. Kind says which fields count.
type record struct {
	Kind string `json:"k"` // file, upload, part, done, trash, stamp
	// of a file, or of an upload in parts
	Path   string          `json:"path,omitempty"` // as jsonPath spells it
	Ident  *tree.Ident     `json:"ident,omitempty"`
	Object string          `json:"object,omitempty"` // key below the run
	Chunk  int64           `json:"chunk,omitempty"`
	Digest []commit.Digest `json:"digest,omitempty"`
	Upload string          `json:"upload,omitempty"` // id; of a part too
	Part   *blob.Part      `json:"part,omitempty"`
	Print  string          `json:"print,omitempty"` // fingerprint of the step before the file or the part was read
	Firm   bool            `json:"firm,omitempty"`  // as sure as the identity is
	// of what was sent ahead
	Doubt   bool `json:"doubt,omitempty"`   // of a file: to be compared before it is named
	Growing bool `json:"growing,omitempty"` // of an upload: its size was not known
	// of a commit
	ID          *commit.ID `json:"id,omitempty"`
	Fingerprint string     `json:"fp,omitempty"`
	Evidence    []string   `json:"evidence,omitempty"`
	// of a stamp of another node's evidence, when it was first seen; Digest is
	// that of what it vouches for here
	Stamp string `json:"stamp,omitempty"`
}

// openJournal reads the journal of a step, if there is one. One that is not a
// journal at all is moved aside and reported by the second result.
func openJournal(path string) (*journal, string, error) {
	j := &journal{path: path, files: map[string]record{}, ups: map[string]record{}, parts: map[string]map[int]record{}}
	return j.load()
}

// load is openJournal, of the journal at j.path.
func (j *journal) load() (*journal, string, error) {
	path := j.path
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return j, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("open journal: %w", err)
	}
	defer f.Close()
	lines, whole := j.read(f)
	if whole {
		return j, "", nil
	}
	if lines > 0 { // a torn tail: keep what is good, and only that
		return j, "", j.rewriteLocked(j.all())
	}
	aside := path + ".corrupt"
	if err := os.Rename(path, aside); err != nil {
		return nil, "", fmt.Errorf("move corrupt journal aside: %w", err)
	}
	return j, aside, nil
}

// read applies every good line, and reports how many there were and whether
// they were all.
func (j *journal) read(r io.Reader) (good int, whole bool) {
	br := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := br.ReadString('\n')
		if err == io.EOF && line == "" {
			return good, good > 0
		}
		rec, ok := parseRecord(strings.TrimSuffix(line, "\n"))
		if err != nil || !ok {
			return good, false
		}
		j.apply(rec)
		good++
	}
}

func parseRecord(line string) (record, bool) {
	sum, body, ok := strings.Cut(line, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if !ok || err != nil || uint32(want) != crc32.Checksum([]byte(body), castagnoli()) {
		return record{}, false
	}
	var r record
	if json.Unmarshal([]byte(body), &r) != nil {
		return record{}, false
	}
	return r, true
}

// jsonPath is a spelling of any path that JSON keeps.
func jsonPath(p string) string {
	if utf8.ValidString(p) && !strings.HasPrefix(p, `"`) {
		return p
	}
	return strconv.QuoteToASCII(p)
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func (j *journal) apply(r record) {
	if j.early {
		j.spoil(r)
	}
	switch r.Kind {
	case "file":
		j.files[r.Path] = r
		if up, ok := j.ups[r.Path]; ok {
			delete(j.parts, up.Upload)
			delete(j.ups, r.Path)
		}
	case "upload":
		if old, ok := j.ups[r.Path]; ok {
			delete(j.parts, old.Upload)
		}
		j.ups[r.Path] = r
	case "part":
		if j.parts[r.Upload] == nil {
			j.parts[r.Upload] = map[int]record{}
		}
		if r.Part != nil {
			j.parts[r.Upload][r.Part.Number] = r
		}
	case "done":
		j.done = r
	case "stamp":
		if j.stamps == nil {
			j.stamps = map[string]record{}
		}
		j.stamps[r.Stamp] = r
	}
}

// add appends one record.
func (j *journal) add(r record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(r)
	if j.f == nil {
		f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return fmt.Errorf("open journal: %w", err)
		}
		j.f = f
	}
	if _, err := j.f.Write(r.line()); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// sent adds that the files of a manifest are in the store, as it says, for those
// of a local step of which take says so, and that they were read when it looked
// like print.
func (j *journal) sent(m *commit.Manifest, t *tree.Tree, print string, take func(tree.Entry, *commit.File) bool) error {
	for i := range m.Files {
		f := &m.Files[i]
		le, ok := t.Lookup(t.Rel(f.Path))
		if !ok || f.Type != commit.TypeFile || !take(le, f) {
			continue
		}
		if err := j.add(record{Kind: "file", Path: jsonPath(f.Path), Ident: &le.Ident, Object: f.Object, Chunk: f.Chunk, Digest: f.Digest, Print: print}); err != nil {
			return err
		}
	}
	return nil
}

func (r record) line() []byte {
	body, err := json.Marshal(r)
	if err != nil {
		panic("journal record: " + err.Error()) // plain data; cannot fail
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(body, castagnoli()), body)
}

// committed forgets what was sent and remembers the commit alone.
func (j *journal) committed(id commit.ID, fingerprint string, evidence []string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = record{Kind: "done", ID: &id, Fingerprint: fingerprint, Evidence: evidence}
	clear(j.ups)
	clear(j.parts)
	// What was sent is kept: the next revision names files that did not change.
	return j.rewriteLocked(j.all())
}

// all is the least set of records that says what the journal knows.
func (j *journal) all() []record {
	var rs []record
	for _, r := range j.files {
		rs = append(rs, r)
	}
	for _, r := range j.ups {
		rs = append(rs, r)
		for _, p := range j.parts[r.Upload] {
			rs = append(rs, p)
		}
	}
	for _, r := range j.stamps {
		rs = append(rs, r)
	}
	if j.done.ID != nil {
		rs = append(rs, j.done)
	}
	return append(rs, j.trash...)
}

// rewriteLocked replaces the file by these records. There is no fsync: a
// journal that is lost, or empty after a power cut, is only a slower restart.
func (j *journal) rewriteLocked(rs []record) error {
	if j.f != nil {
		j.f.Close()
		j.f = nil
	}
	tmp := j.path + ".tmp"
	var buf []byte
	for _, r := range rs {
		buf = append(buf, r.line()...)
	}
	if err := os.WriteFile(tmp, buf, 0o600); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.Rename(tmp, j.path); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// forget drops all that was said about files, because the store does not bear
// it out.
func (j *journal) forget(path string) {
	path = jsonPath(path)
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.files, path)
	if up, ok := j.ups[path]; ok {
		delete(j.parts, up.Upload)
		delete(j.ups, path)
	}
}

// forgetAll drops all that was said about files, for later processes too.
func (j *journal) forgetAll() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.files)
	clear(j.ups)
	clear(j.parts)
	return j.rewriteLocked(j.all())
}

// file is what was said about a file, if it was sent whole under this identity
// and there is no doubt of it.
func (j *journal) file(path string, id tree.Ident) (record, bool) {
	r, ok := j.object(path, id)
	return r, ok && !r.Doubt
}

// holds reports whether the file is still what was sent, in a step that looks like
// print. A writer that has mapped a file may save it again while its time stays: so
// in a later save of the step the identity is not enough. Then it is read once more,
// and named again if it is the same.
func (r record) holds(id tree.Ident, print string) bool {
	return id.MTime != tree.AnyTime && (r.Firm || r.Print == print)
}

// object is what was said about a file, if it was sent whole under this
// identity, in doubt or not.
func (j *journal) object(path string, id tree.Ident) (record, bool) {
	path = jsonPath(path)
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.files[path]
	return r, ok && r.Ident != nil && *r.Ident == id
}

// upload is an upload in parts that was begun under this identity, with the
// parts that were acknowledged. One of a file that still grew may have been
// begun under another identity, of the same inode.
func (j *journal) upload(path string, id tree.Ident) (record, map[int]record, bool) {
	r, ok := j.begun(path, id)
	if !ok {
		return record{}, nil, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	parts := make(map[int]record, len(j.parts[r.Upload]))
	for n, p := range j.parts[r.Upload] {
		parts[n] = p
	}
	return r, parts, true
}

// begun is upload without the parts.
func (j *journal) begun(path string, id tree.Ident) (record, bool) {
	path = jsonPath(path)
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.ups[path]
	return r, ok && r.Ident != nil && (*r.Ident == id || r.Growing && r.Ident.Inode == id.Inode)
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f != nil {
		j.f.Close()
		j.f = nil
	}
}

// journalPath is where the journal of a step lives: readable, and safe as a
// file name whatever the step is called.
func journalPath(stateDir string, attempt int, step string) string {
	return filepath.Join(journalDir(stateDir, attempt), fileName(step)+".jsonl")
}

// journalDir holds the journals of one attempt: what an earlier attempt sent
// is no part of a later one's steps.
func journalDir(stateDir string, attempt int) string {
	return filepath.Join(stateDir, "journal", fmt.Sprintf("a%06d", attempt))
}

// fileName turns a step's path into one file name: what is not plain is
// percent-escaped, what is too long is hashed.
func fileName(step string) string {
	var b strings.Builder
	for _, c := range []byte(step) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '=', c == '.' && b.Len() > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() > 200 {
		d := commit.Sum([]byte(step))
		return fmt.Sprintf("%s~%x", b.String()[:160], d[:12])
	}
	return b.String()
}
