package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func noEnv(string) string { return "" }

// screen makes a Term that believes both outputs to be terminals.
func screen(out, err *bytes.Buffer, env map[string]string) *Term {
	t := New(out, err, func(k string) string { return env[k] })
	t.outTTY, t.errTTY = true, env["TERM"] != "dumb"
	colour := env["NO_COLOR"] == "" && t.errTTY
	t.outColor, t.errColor = colour, colour
	return t
}

func TestNoTerminalMeansNoColour(t *testing.T) {
	var out, errs bytes.Buffer
	tm := New(&out, &errs, noEnv)
	tb := tm.Table("STEP", ">BYTES", "STATE")
	tb.Row(C("checkpoint-5"), C(12), S(Bad, "torn"))
	tb.Note(Warn, "why")
	if err := tb.Flush(); err != nil {
		t.Fatal(err)
	}
	tm.Fail(errors.New("it failed\nbadly"))
	if err := tm.JSON(map[string]string{"a": "<b>"}); err != nil {
		t.Fatal(err)
	}
	want := "STEP          BYTES  STATE\ncheckpoint-5     12  torn\n    why\n{\"a\":\"<b>\"}\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
	if errs.String() != "ckptsync: it failed\nbadly\n" {
		t.Errorf("%q", errs.String())
	}
}

func TestColours(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{{nil, true}, {map[string]string{"NO_COLOR": "1"}, false}, {map[string]string{"TERM": "dumb"}, false}} {
		var out, errs bytes.Buffer
		tm := screen(&out, &errs, c.env)
		if err := tm.Printf(Good, "fine"); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "\x1b["); got != c.want {
			t.Errorf("%v: %q", c.env, out.String())
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if tm := New(null, null, noEnv); tm.outColor || tm.errTTY {
		t.Error("the null device is taken for a terminal")
	}
}

func TestWideAndHostileNamesAlign(t *testing.T) {
	var out, errs bytes.Buffer
	tb := New(&out, &errs, noEnv).Table("NAME", "X")
	tb.Row(C("検査点"), C("a"))
	tb.Row(C("a\x1b[2J\nb"), C("b"))
	tb.Row(C("only"))
	if err := tb.Flush(); err != nil {
		t.Fatal(err)
	}
	want := "NAME           X\n検査点         a\na\\x1b[2J\\x0ab  b\nonly\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain":      "plain",
		"käse ✓":     "käse ✓",
		"a\xffb":     `a\xffb`,
		"\ufffd":     "\ufffd",
		"\ufffd\xff": "\ufffd\\xff",
		"a\r\tb\x7f": `a\x0d\x09b\x7f`,
		"a\u202eb":   `a\u202eb`,
		"\u009b31m":  `\u009b31m`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b]0;title\x07b\xff\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		c := Clean(s)
		if !utf8.ValidString(c) || strings.IndexFunc(c, unicode.IsControl) >= 0 || Clean(c) != c {
			t.Errorf("Clean(%q) = %q", s, c)
		}
	})
}

func TestLoggerChoosesItsFormat(t *testing.T) {
	for _, c := range []struct {
		tty    bool
		format string
		json   bool
	}{{false, "", true}, {true, "", false}, {true, "json", true}, {false, "text", false}} {
		var out, errs bytes.Buffer
		tm := New(&out, &errs, noEnv)
		tm.errTTY = c.tty
		log := tm.Logger(c.format, slog.LevelWarn)
		log.Info("not this")
		log.Warn("this", "step", 5)
		if got := json.Valid(errs.Bytes()); got != c.json || strings.Contains(errs.String(), "not this") || out.Len() > 0 {
			t.Errorf("%+v: %q", c, errs.String())
		}
		if !strings.Contains(errs.String(), `Z`) {
			t.Errorf("the time is not UTC: %s", errs.String())
		}
	}
}

func TestBarsOnATerminal(t *testing.T) {
	defer goleak.VerifyNone(t)
	var out, errs bytes.Buffer
	tm := screen(&out, &errs, nil)
	bars := tm.Bars(nil)
	one, two := bars.Bar("checkpoint-1", 100), bars.Bar("checkpoint-2\x1b[2J", 0)
	one.Add(100)
	two.Add(5)
	tm.Hint("a line above")
	one.End()
	bars.Close()
	bars.Close()
	if late := bars.Bar("late", 1); late != nil {
		t.Error("a bar after Close")
	}
	one.Add(1)
	one.End()
	tm.Hint("a line after")
	got := errs.String()
	if !strings.Contains(got, "a line above\n") || !strings.HasSuffix(got, "a line after\n") || strings.Contains(got, "\x1b[2J") {
		t.Errorf("%q", got)
	}
	if out.Len() > 0 {
		t.Errorf("on stdout: %q", out.String())
	}
}

func TestNoTerminalLogsLongTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errs bytes.Buffer
		tm := New(&out, &errs, noEnv)
		bars := tm.Bars(tm.Logger("json", slog.LevelInfo))
		silent := tm.Bars(nil).Bar("x", 10)
		b := bars.Bar("checkpoint-1", 100)
		for range 7 {
			time.Sleep(10 * time.Second)
			b.Add(10)
			silent.Add(1)
		}
		b.End()
		bars.Close()
		if n := strings.Count(errs.String(), "\n"); n != 2 || !strings.Contains(errs.String(), `"name":"checkpoint-1","bytes":60,"total":100,"bytes_per_second":1,"eta":"40s"`) {
			t.Errorf("%d lines:\n%s", n, errs.String())
		}
		var none *Bar
		none.Add(1)
		none.End()
	})
}

func TestForPeople(t *testing.T) {
	if got := Bytes(4_500_000_000) + " " + Bytes(-1); got != "4.2 GiB 0 B" {
		t.Error(got)
	}
	if got := Count(1, "file") + " " + Count(12345, "step"); got != "1 file 12,345 steps" {
		t.Error(got)
	}
	for d, want := range map[time.Duration]string{
		1234567: "1ms", 12345 * time.Millisecond: "12.3s", 83 * time.Second: "1m23s", 3*time.Hour + 20*time.Second: "3h0m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	if got := When(time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))); got != "2026-01-02 02:04:05Z" {
		t.Error(got)
	}
	if When(time.Time{}) != "" {
		t.Error("the zero time is a moment")
	}
}

func TestLinesAppearAboveTheBarsAtOnce(t *testing.T) {
	var screen bytes.Buffer
	r := &redirect{to: &screen}
	c := r.begin()
	frame := func(text string, lines int) {
		t.Helper()
		if _, err := c.ReadFrom(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(lines); err != nil {
			t.Fatal(err)
		}
	}
	frame("one\ntwo\n", 2)
	if n, err := r.Write([]byte("log\n")); n != 4 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	frame("three\n", 1)
	c.Shut()
	frame("late\n", 1)
	r.end(c)
	if _, err := r.Write([]byte("after\n")); err != nil {
		t.Fatal(err)
	}
	want := "one\ntwo\n" + "\x1b[2A\x1b[J" + "log\n" + "one\ntwo\n" + "\x1b[2A\x1b[J" + "three\n" + "\x1b[1A\x1b[J" + "after\n"
	if d := cmp.Diff(want, screen.String()); d != "" {
		t.Error(d)
	}
}

// On a terminal that is too narrow sentences are broken between words, columns
// that are of use least are left out, and a command that a message quotes stays
// whole; where there is no terminal nothing of that happens.
func TestNarrowTerminal(t *testing.T) {
	print := func(columns int) string {
		var out, errs bytes.Buffer
		tm := New(&out, &errs, noEnv)
		tm.width = columns
		tb := tm.Table(">STEP", "NAME", "?>REV", "?>FILES", "STATE")
		tb.Row(C(5), C("検査点-5"), C(0), C(12345), S(Bad, "torn"))
		tb.Row(C(10), C("checkpoint-10"))
		tb.Note(Warn, "because optimizer.pt is shorter than it says")
		prose := tm.Table("STORE", "~s3://checkpoints/team-a")
		prose.Row(C("multipart"), C("large files go up in parts and can be resumed"))
		prose.Note(Warn, "→ run 'ckptsync mark 5 clear --reason TEXT'.")
		err := errors.Join(tb.Flush(), prose.Flush(), tm.Printf(Plain, "  data  s3://checkpoints/a-name-that-is-longer-than-any-line/x y\nend"))
		if err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const wide = `STEP  NAME           REV  FILES  STATE
   5  検査点-5         0  12345  torn
  10  checkpoint-10
    because optimizer.pt is shorter than it says
STORE      s3://checkpoints/team-a
multipart  large files go up in parts and can be resumed
    → run 'ckptsync mark 5 clear --reason TEXT'.
  data  s3://checkpoints/a-name-that-is-longer-than-any-line/x y
end
`
	const narrow = `STEP  NAME           REV  STATE
   5  検査点-5         0  torn
  10  checkpoint-10
    because optimizer.pt is shorter
      than it says
STORE      s3://checkpoints/team-a
multipart  large files go up in
           parts and can be resumed
    → run 'ckptsync mark 5 clear --reason TEXT'.
  data  s3://checkpoints/a-name-that-is-longer-than-any-line/x
    y
end
`
	for columns, want := range map[int]string{0: wide, 120: wide, 36: narrow} {
		if d := cmp.Diff(want, print(columns)); d != "" {
			t.Errorf("%d columns:\n%s", columns, d)
		}
	}
}
