package blobtest

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// The operations of a Faulty bucket, as they stand in rules, calls and the log.
const (
	OpStat     = "stat"
	OpOpen     = "open" // the call, and the body of the stream it returns
	OpPut      = "put"
	OpList     = "list"
	OpDelete   = "delete"
	OpUpload   = "upload" // beginning or continuing an upload in parts
	OpPart     = "put part"
	OpParts    = "list parts"
	OpComplete = "complete"
	OpAbort    = "abort"
)

// Rule says which calls go wrong, and how. Of the calls that match Op and Key,
// counted from 1, the rule fires from number From on, at most Count times,
// each time with probability Prob.
type Rule struct {
	Op    string  // one of the operations; empty: any
	Key   string  // glob of the key or prefix: * within a component, ** across, ? one character; empty: any
	From  int     // 0 means 1
	Count int     // 0 means always
	Prob  float64 // 0 means 1
	Do    Effect

	glob           *regexp.Regexp
	matched, fired int // guarded by the Faulty
}

func (r *Rule) String() string {
	op, key := r.Op, r.Key
	if op == "" {
		op = "any operation"
	}
	if key == "" {
		key = "**"
	}
	return fmt.Sprintf("%s on %s (from %d, count %d, prob %g): %s", op, key, r.From, r.Count, r.Prob, r.Do)
}

type effectKind int

const (
	effectNone  effectKind = iota // lets the call through; of use to count it
	effectFail                    // an error, and nothing done
	effectLost                    // done, and an error
	effectLate                    // an error, and done when Land is called
	effectStall                   // nothing until the context is done; at a byte of a body
	effectCut                     // a body or listing that ends early, cleanly
	effectBreak                   // a body or listing that ends early with an error
	effectFlip                    // one byte is another
)

// Effect is what happens to a call. Make one with the functions below.
type Effect struct {
	kind  effectKind
	class error
	at    int64
}

func (e Effect) String() string {
	names := [...]string{"count", "fail", "lose the answer", "land late", "stall", "cut", "break", "flip a byte"}
	return fmt.Sprintf("%s (%v, at %d)", names[e.kind], e.class, e.at)
}

// Fail returns an error of that class; the call has no effect.
func Fail(class error) Effect { return Effect{kind: effectFail, class: class} }

// Lose does what was asked, and then returns an error of that class: the answer
// was lost.
func Lose(class error) Effect { return Effect{kind: effectLost, class: class} }

// Late returns an error of that class at once; a Put, a Delete or a Complete
// takes its effect when [Faulty.Land] is called. The source is read at once.
func Late(class error) Effect { return Effect{kind: effectLate, class: class} }

// Stall does nothing until the context is done, and returns its error.
func Stall() Effect { return Effect{kind: effectStall, at: -1} }

// StallAt opens the stream, which stalls after n bytes until the context of
// Open is done.
func StallAt(n int64) Effect { return Effect{kind: effectStall, at: n} }

// Cut ends a stream after n bytes, or a listing after n objects, as if that
// were all. No driver that keeps the contract does this; a lying store would.
func Cut(n int64) Effect { return Effect{kind: effectCut, at: n} }

// Break ends a stream after n bytes, or a listing after n objects, with an
// error of that class.
func Break(n int64, class error) Effect { return Effect{kind: effectBreak, at: n, class: class} }

// Flip changes byte n of what is read, or of what is sent.
func Flip(n int64) Effect { return Effect{kind: effectFlip, at: n} }

// Count lets the call through. Such a rule proves that a call was made.
func Count() Effect { return Effect{} }

// compileGlob turns a glob into an anchored expression.
func compileGlob(glob string) *regexp.Regexp {
	if glob == "" {
		glob = "**"
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		}
	}
	b.WriteString(`\z`)
	return regexp.MustCompile(b.String())
}

// Add puts rules into force, after those that are there. For each call the
// rules are asked in order, and the first that fires is obeyed; those after it
// do not count the call.
func (f *Faulty) Add(rules ...*Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rules {
		r.glob = compileGlob(r.Key)
		f.rules = append(f.rules, r)
	}
}

// Clear puts all rules out of force; CheckExercised still knows them.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retired = append(f.retired, f.rules...)
	f.rules = nil
}

// Fired is how many times r fired.
func (f *Faulty) Fired(r *Rule) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return r.fired
}

// CheckExercised fails the test for every rule that never fired: a fault that
// was not met proves nothing.
func (f *Faulty) CheckExercised(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range append(append([]*Rule(nil), f.retired...), f.rules...) {
		if r.fired == 0 {
			t.Errorf("never fired (%d calls matched): %s", r.matched, r)
		}
	}
}

// match counts the call and returns the rule that fires for it, or nil.
func (f *Faulty) match(op, key string) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.Op != "" && r.Op != op || !r.glob.MatchString(key) {
			continue
		}
		r.matched++
		if r.matched < r.From || r.Count > 0 && r.fired >= r.Count || r.Prob > 0 && f.rng.Float64() >= r.Prob {
			continue
		}
		r.fired++
		return r
	}
	return nil
}

func injected(class error, op, key string) error {
	return blob.Errorf(class, op, key, "injected fault")
}
