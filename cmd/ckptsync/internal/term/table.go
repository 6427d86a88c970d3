package term

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-runewidth"
)

// Style is how a text looks on a terminal with colours.
type Style string

// The styles.
const (
	Plain Style = ""
	Bold  Style = "1"
	Dim   Style = "2"
	Good  Style = "32"
	Warn  Style = "33"
	Bad   Style = "31"
)

func paint(on bool, s Style, text string) string {
	if !on || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Cell is one cell of a table.
type Cell struct {
	Text  string
	Style Style
}

// C is a plain cell of what fmt.Sprint makes of v.
func C(v any) Cell { return Cell{Text: fmt.Sprint(v)} }

// S is a cell in a style.
func S(style Style, text string) Cell { return Cell{Text: text, Style: style} }

// Column is one column of a table.
type Column struct {
	Title string
	Right bool // numbers stand right
	Extra bool // left out where the terminal is too narrow for all, the last of them first
	Prose bool // broken between words where the terminal is too narrow, if it is the last column
}

// Table collects rows and prints them in aligned columns.
type Table struct {
	t     *Term
	cols  []Column
	lines []line
}

type line struct {
	cells []Cell
	note  bool
}

// Table begins a table on standard output. A title that begins with ">" makes a
// column of numbers, one with "?" an extra one, one with "~" a column of prose; a
// title of both is "?>".
func (t *Term) Table(titles ...string) *Table {
	tb := &Table{t: t}
	for _, h := range titles {
		var c Column
		h, c.Prose = strings.CutPrefix(h, "~")
		h, c.Extra = strings.CutPrefix(h, "?")
		c.Title, c.Right = strings.CutPrefix(h, ">")
		tb.cols = append(tb.cols, c)
	}
	return tb
}

// Row adds a row. Cells beyond the columns are dropped.
func (tb *Table) Row(cells ...Cell) {
	for i := range cells {
		cells[i].Text = Clean(cells[i].Text)
	}
	tb.lines = append(tb.lines, line{cells: cells[:min(len(cells), len(tb.cols))]})
}

// Note adds a line of its own below the last row, indented, across all columns.
func (tb *Table) Note(style Style, text string) {
	tb.lines = append(tb.lines, line{cells: []Cell{{Text: Clean(text), Style: style}}, note: true})
}

// Rows is how many rows were added, notes not counted.
func (tb *Table) Rows() int {
	n := 0
	for _, l := range tb.lines {
		if !l.note {
			n++
		}
	}
	return n
}

// Flush prints the table. A table without rows prints nothing.
func (tb *Table) Flush() error {
	if tb.Rows() == 0 {
		return nil
	}
	head := line{}
	for _, c := range tb.cols {
		head.cells = append(head.cells, Cell{Text: c.Title, Style: Bold})
	}
	tb.lines = append([]line{head}, tb.lines...)
	width, columns := tb.fit(), tb.t.columns()
	var b strings.Builder
	for _, l := range tb.lines {
		if !l.note {
			tb.format(&b, l.cells, width, columns)
			continue
		}
		for _, part := range wrapIndented("    "+l.cells[0].Text, columns) {
			text := strings.TrimLeft(part, " ")
			b.WriteString(part[:len(part)-len(text)] + paint(tb.t.outColor, l.cells[0].Style, text) + "\n")
		}
	}
	if _, err := io.WriteString(tb.t.out, b.String()); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// fit leaves out the extra columns for which there is no room, and returns how
// wide the others are.
func (tb *Table) fit() []int {
	width := make([]int, len(tb.cols))
	for _, l := range tb.lines {
		for i, c := range l.cells {
			if !l.note {
				width[i] = max(width[i], runewidth.StringWidth(c.Text))
			}
		}
	}
	columns := tb.t.columns()
	for columns > 0 && sum(width) > columns {
		i := len(tb.cols) - 1
		for i >= 0 && !tb.cols[i].Extra {
			i--
		}
		if i < 0 {
			break
		}
		tb.cols, width = slices.Delete(tb.cols, i, i+1), slices.Delete(width, i, i+1)
		for j := range tb.lines {
			if l := &tb.lines[j]; !l.note && i < len(l.cells) {
				l.cells = slices.Delete(l.cells, i, i+1)
			}
		}
	}
	return width
}

// sum is how wide a row of such columns is.
func sum(width []int) int {
	n := gap * (len(width) - 1)
	for _, w := range width {
		n += w
	}
	return n
}

// gap is the space between columns.
const gap = 2

// format writes one row without spaces at its end.
func (tb *Table) format(b *strings.Builder, cells []Cell, width []int, columns int) {
	last := len(cells) - 1
	for last >= 0 && cells[last].Text == "" {
		last--
	}
	at := 0
	for i := 0; i <= last; i++ {
		c := cells[i]
		pad := strings.Repeat(" ", max(0, width[i]-runewidth.StringWidth(c.Text)))
		text := paint(tb.t.outColor, c.Style, c.Text)
		switch {
		case tb.cols[i].Right:
			b.WriteString(pad + text)
		case i == len(tb.cols)-1 && tb.cols[i].Prose && columns-at >= minProse:
			lines := wrap(c.Text, columns-at, 0)
			for j := range lines {
				lines[j] = paint(tb.t.outColor, c.Style, lines[j])
			}
			b.WriteString(strings.Join(lines, "\n"+strings.Repeat(" ", at)))
		case i == last:
			b.WriteString(text)
		default:
			b.WriteString(text + pad)
		}
		if i < last {
			b.WriteString(strings.Repeat(" ", gap))
		}
		at += width[i] + gap
	}
	b.WriteString("\n")
}

// Printf prints on standard output, cleaned, in a style. Lines that a terminal is
// too narrow for are broken between words.
func (t *Term) Printf(style Style, format string, args ...any) error {
	var lines []string
	for _, l := range strings.Split(cleanLines(strings.TrimSuffix(fmt.Sprintf(format, args...), "\n")), "\n") {
		for _, part := range wrapIndented(l, t.columns()) {
			lines = append(lines, paint(t.outColor, style, part))
		}
	}
	if _, err := fmt.Fprintln(t.out, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// Line prints a line for a machine on standard output, byte for byte: a path
// keeps its odd bytes.
func (t *Term) Line(text string) error {
	if _, err := io.WriteString(t.out, text+"\n"); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// Bytes is a size for people, as 4.2 GiB.
func Bytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// Count is a number for people, as 12,345, with its noun: "1 file", "2 files".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return humanize.Comma(int64(n)) + " " + noun
}

// Duration is a length of time for people: two digits are enough.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// When is a moment for people, in UTC; empty if it is not known.
func When(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
