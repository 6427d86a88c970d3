// Package term is the only code that knows a terminal: tables, JSON, progress
// bars, colours and the choice of the log's format.
//
// What a machine reads goes to stdout, logs and progress go to stderr.
// Colours and bars appear only where a person can see them: on a terminal that
// is not dumb, and colours only without NO_COLOR. Text that comes from outside
// (file names, reasons) is passed through [Clean], so that no file name can
// command the terminal. Sentences are broken where a terminal's lines end; what
// goes to a file or a pipe never is.
package term

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// Term is the terminal, or the files and pipes in its place. Its methods may
// be called concurrently.
type Term struct {
	out      io.Writer
	err      *redirect
	outTTY   bool
	errTTY   bool
	outColor bool
	errColor bool
	width    int // of standard output, in columns; 0: as the terminal says
}

// New makes a Term of the program's two outputs and its environment.
func New(stdout, stderr io.Writer, getenv func(string) string) *Term {
	dumb := getenv("TERM") == "dumb"
	colour := getenv("NO_COLOR") == "" && !dumb
	t := &Term{out: stdout, err: &redirect{to: stderr}}
	t.outTTY = isTerminal(stdout)
	t.errTTY = isTerminal(stderr) && !dumb
	t.outColor = t.outTTY && colour
	t.errColor = t.errTTY && colour
	return t
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Out is standard output.
func (t *Term) Out() io.Writer { return t.out }

// Err is standard error. While progress bars are shown, what is written to it
// appears above them; write whole lines.
func (t *Term) Err() io.Writer { return t.err }

// Fail prints why the program fails.
func (t *Term) Fail(err error) {
	fmt.Fprintf(t.err, "%s %s\n", paint(t.errColor, Bad, "ckptsync:"), cleanLines(err.Error())) //nolint:errcheck // nowhere left to say it
}

// Hint prints a word to a person on standard error.
func (t *Term) Hint(format string, args ...any) {
	fmt.Fprintln(t.err, cleanLines(fmt.Sprintf(format, args...))) //nolint:errcheck // a hint that is not seen is not missed
}

// JSON prints v on standard output: on one line, or indented on a terminal.
func (t *Term) JSON(v any) error {
	enc := json.NewEncoder(t.out)
	enc.SetEscapeHTML(false)
	if t.outTTY {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print json: %w", err)
	}
	return nil
}

// Logger logs to standard error in the given format: "text", "json", or empty
// for text on a terminal and JSON elsewhere.
func (t *Term) Logger(format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: utc}
	if format == "text" || format == "" && t.errTTY {
		return slog.New(slog.NewTextHandler(t.err, opts))
	}
	return slog.New(slog.NewJSONHandler(t.err, opts))
}

// utc makes log times comparable between hosts.
func utc(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}

// redirect is a writer whose destination changes while bars are shown.
type redirect struct {
	mu sync.Mutex
	to io.Writer
}

func (r *redirect) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to.Write(p)
}

// begin sends what follows above the bars that the returned console draws.
func (r *redirect) begin() *console {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &console{out: r.to}
	r.to = printer{c}
	return c
}

// end undoes begin.
func (r *redirect) end(c *console) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = c.out
}

// Clean makes text from outside safe to print: control characters and bytes
// that are not UTF-8 become visible escapes. It stays on one line.
func Clean(s string) string {
	bad := func(r rune) bool {
		return r < 0x20 || r >= 0x7f && r < 0xa0 || r == '\ufffd' || r == '\u2028' || r == '\u2029' ||
			r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
	}
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case !bad(r):
			b.WriteRune(r)
		case r == '\ufffd':
			if strings.HasPrefix(s[i:], "\ufffd") {
				b.WriteRune(r)
				continue
			}
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}
