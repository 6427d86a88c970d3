package commit

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of the numbers in names. They keep every number in an int of 32 bits
// and every listing parseable.
const (
	maxNumber = 1<<31 - 2 // attempts, revisions, claims
	maxNodes  = 10_000
)

// keyRun is the only object of a run that does not lie in a folder.
const keyRun = "run.json"

func keyAttempt(n int) string { return fmt.Sprintf("attempts/%06d.json", n) }
func keyClaim(attempt, node, claim int) string {
	return fmt.Sprintf("attempts/%06d/node-%05d.%02d.json", attempt, node, claim)
}
func keyReady(attempt, node, claim int) string {
	return fmt.Sprintf("attempts/%06d/node-%05d.%02d.ready.json", attempt, node, claim)
}
func keyStart(attempt int) string { return fmt.Sprintf("attempts/%06d/start.json", attempt) }
func keyPart(id ID, node, claim int) string {
	return fmt.Sprintf("parts/%s/node-%05d.%02d.json", id, node, claim)
}
func keyVote(id ID, node, claim int) string {
	return fmt.Sprintf("votes/%s/node-%05d.%02d.json", id, node, claim)
}
func keyKey(id string, number int) string { return fmt.Sprintf("keys/%s/%04d.json", id, number) }
func keyMarker(id ID) string              { return "commits/" + id.String() + ".json" }
func keyTomb(id ID) string                { return "tombs/" + id.String() + ".json" }

// keySignature is the key of a signature of a marker with that digest.
func keySignature(id ID, key string, marker Digest) string {
	return fmt.Sprintf("signatures/%s.%s.%s.minisig", id, key, marker)
}

// keyMark is also the key of a mark on an attempt as a whole: id is then
// {Attempt: n}, with Step and Revision 0, and attempt is true.
func keyMark(id ID, word Word, attempt bool) string {
	if attempt {
		return fmt.Sprintf("marks/a%06d.%s.json", id.Attempt, word)
	}
	return fmt.Sprintf("marks/%s.%s.json", id, word)
}

// Kind is what an object of a run is, by its key.
type Kind string

// The kinds of objects.
const (
	KindRun         Kind = "run"
	KindAttempt     Kind = "attempt"
	KindClaim       Kind = "claim"
	KindReady       Kind = "ready"
	KindStart       Kind = "start"
	KindPart        Kind = "part"
	KindVote        Kind = "vote"
	KindMarker      Kind = "commit"
	KindTomb        Kind = "tomb"
	KindMark        Kind = "mark"         // on a commit
	KindAttemptMark Kind = "attempt-mark" // on an attempt as a whole
	KindSignature   Kind = "signature"
	KindKey         Kind = "key" // of an encrypted run, wrapped
	KindData        Kind = "data"
)

// Object is what a key below the run's prefix says. Fields that the kind does
// not have are zero; ID of the kinds of an attempt has its number only.
type Object struct {
	Kind  Kind
	ID    ID
	Node  int
	Claim int // of KindKey the number of the wrapped key
	Word  Word
	Token string // KindData; of KindSignature the number of the key, of KindKey the key's ID
	Path  string // KindData: what follows the node's folder, as it stands in the key

	Digest Digest // KindSignature: of the marker
}

// ParseKey says what the object under key, below the run's prefix, is. It is
// strict: only what this package would itself have written counts, so that a
// foreign name is never taken for one of ours. False: foreign.
func ParseKey(key string) (Object, bool) {
	if key == keyRun {
		return Object{Kind: KindRun}, true
	}
	dir, rest, ok := strings.Cut(key, "/")
	if !ok {
		return Object{}, false
	}
	switch dir {
	case "data":
		return parseData(rest)
	case "signatures":
		return parseSignature(rest)
	}
	rest, ok = strings.CutSuffix(rest, ".json")
	if !ok {
		return Object{}, false
	}
	switch dir {
	case "attempts":
		return parseAttempt(rest)
	case "parts", "votes":
		o := Object{Kind: KindPart}
		if dir == "votes" {
			o.Kind = KindVote
		}
		idText, node, found := strings.Cut(rest, "/")
		var okID, okNode bool
		o.ID, okID = ParseID(idText)
		o.Node, o.Claim, okNode = parseNode(node)
		return o, found && okID && okNode
	case "keys":
		return parseKeyKey(rest)
	case "commits", "tombs":
		o := Object{Kind: KindMarker}
		if dir == "tombs" {
			o.Kind = KindTomb
		}
		o.ID, ok = ParseID(rest)
		return o, ok
	case "marks":
		return parseMark(rest)
	}
	return Object{}, false
}

func parseKeyKey(s string) (Object, bool) {
	id, num, _ := strings.Cut(s, "/")
	n, ok := parsePadded(num, 4)
	return Object{Kind: KindKey, Token: id, Claim: n}, ok && n >= 1 && validKeyID(id)
}

// validKeyID reports whether s can be the ID of a run's key.
func validKeyID(s string) bool { return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" }

func parseAttempt(s string) (Object, bool) {
	num, sub, nested := strings.Cut(s, "/")
	n, ok := parsePadded(num, 6)
	if !ok || n < 1 {
		return Object{}, false
	}
	o := Object{Kind: KindAttempt, ID: ID{Attempt: n}}
	switch {
	case !nested:
		return o, true
	case sub == "start":
		o.Kind = KindStart
		return o, true
	}
	o.Kind = KindClaim
	if name, ready := strings.CutSuffix(sub, ".ready"); ready {
		o.Kind, sub = KindReady, name
	}
	o.Node, o.Claim, ok = parseNode(sub)
	return o, ok
}

func parseMark(s string) (Object, bool) {
	name, word, found := strings.Cut(s, ".")
	o := Object{Kind: KindMark, Word: Word(word)}
	if !found || !o.Word.valid() {
		return Object{}, false
	}
	if num, isAttempt := strings.CutPrefix(name, "a"); isAttempt {
		n, ok := parsePadded(num, 6)
		o.Kind, o.ID = KindAttemptMark, ID{Attempt: n}
		return o, ok && n >= 1 && o.Word == Excluded
	}
	var ok bool
	o.ID, ok = ParseID(name)
	return o, ok
}

func parseData(s string) (Object, bool) {
	idText, rest, ok1 := strings.Cut(s, "/")
	node, path, ok2 := strings.Cut(rest, "/")
	num, token, ok3 := strings.Cut(node, ".")
	num, ok4 := strings.CutPrefix(num, "node-")
	if !ok1 || !ok2 || !ok3 || !ok4 || path == "" || !validToken(token) {
		return Object{}, false
	}
	id, ok5 := ParseID(idText)
	n, ok6 := parsePadded(num, 5)
	return Object{Kind: KindData, ID: id, Node: n, Token: token, Path: path}, ok5 && ok6 && n < maxNodes
}

func parseSignature(s string) (Object, bool) {
	parts := strings.Split(s, ".")
	if len(parts) != 4 || parts[3] != "minisig" || len(parts[1]) != 16 || strings.Trim(parts[1], "0123456789ABCDEF") != "" {
		return Object{}, false
	}
	o := Object{Kind: KindSignature, Token: parts[1]}
	var ok bool
	o.ID, ok = ParseID(parts[0])
	return o, ok && o.Digest.UnmarshalText([]byte(parts[2])) == nil
}

// validToken reports whether s can be the token in a data key.
func validToken(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// parseNode parses node-NNNNN.CC.
func parseNode(s string) (node, claim int, ok bool) {
	s, ok1 := strings.CutPrefix(s, "node-")
	a, b, ok2 := strings.Cut(s, ".")
	node, ok3 := parsePadded(a, 5)
	claim, ok4 := parsePadded(b, 2)
	return node, claim, ok1 && ok2 && ok3 && ok4 && node < maxNodes
}

// ParseID parses what ID.String writes, and nothing else.
func ParseID(s string) (ID, bool) {
	step, rest, ok1 := strings.Cut(s, "-a")
	attempt, rev, ok2 := strings.Cut(rest, "-r")
	if !ok1 || !ok2 || !digits(step, 12) {
		return ID{}, false
	}
	n, err := strconv.ParseInt(step, 10, 64)
	a, ok3 := parsePadded(attempt, 6)
	r, ok4 := parsePadded(rev, 2)
	id := ID{Step: n, Attempt: a, Revision: r}
	return id, err == nil && ok3 && ok4 && a >= 1
}

// digits reports whether s is a decimal number as %0<width>d writes it.
func digits(s string, width int) bool {
	if len(s) < width || len(s) > width && s[0] == '0' {
		return false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parsePadded parses a number as %0<width>d writes it, at most maxNumber.
func parsePadded(s string, width int) (int, bool) {
	if !digits(s, width) {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > maxNumber {
		return 0, false
	}
	return int(n), true
}

// valid reports whether w is one of the words.
func (w Word) valid() bool { return w == Excluded || w == Pinned || w == Damaged }

// CheckRun returns an error that says what is wrong with name as the name of
// a run, or nil: 1 to 128 of A-Z a-z 0-9 . _ - and no dot at the beginning.
func CheckRun(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the run needs a name (--run): letters, digits, '.', '_' and '-'")
	case len(name) > 128:
		return fmt.Errorf("run name %.40q… has %d characters, at most 128 are allowed", name, len(name))
	case name[0] == '.':
		return fmt.Errorf("run name %q begins with a dot", name)
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("run name %q: only letters, digits, '.', '_' and '-' are allowed", name)
		}
	}
	return nil
}
