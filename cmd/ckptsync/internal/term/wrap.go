package term

import (
	"os"
	"regexp"
	"strings"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// minProse is how many columns prose needs beside other columns, to be broken.
const minProse = 24

// columns is how wide standard output is; 0: it is no terminal, or one of
// unknown width, and nothing is broken or left out.
func (t *Term) columns() int {
	if t.width > 0 {
		return t.width
	}
	f, ok := t.out.(*os.File)
	if !ok || !t.outTTY {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// unbroken is what no line ends in: a word, or a command that a message quotes,
// so that it can be copied.
var unbroken = regexp.MustCompile(`'ckptsync [^']*'[^\s]*|\S+`)

// wrap breaks a line between words into lines of at most so many columns, if it
// is longer. Those after the first begin with hang spaces. A word that is longer
// than a line stays where it is.
func wrap(line string, columns, hang int) []string {
	if columns <= hang || runewidth.StringWidth(line) <= columns {
		return []string{line}
	}
	var out []string
	from, end := 0, 0 // of the line that is begun
	begin := strings.Repeat(" ", hang)
	prefix := ""
	for _, w := range unbroken.FindAllStringIndex(line, -1) {
		whole := runewidth.StringWidth(prefix + line[from:w[1]])
		alone := hang + runewidth.StringWidth(line[w[0]:w[1]])
		if end > from && whole > columns && alone <= columns {
			out = append(out, prefix+line[from:end])
			from, prefix = w[0], begin
		}
		end = w[1]
	}
	return append(out, prefix+line[from:end])
}

// wrapIndented is wrap, with what follows two columns further in than the line.
func wrapIndented(line string, columns int) []string {
	return wrap(line, columns, len(line)-len(strings.TrimLeft(line, " "))+2)
}
