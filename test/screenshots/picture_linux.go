package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"

	"github.com/mattn/go-runewidth"
)

// How a picture is drawn, in its own units.
const (
	charWidth  = 8.4
	lineHeight = 18.0
	margin     = 16.0
	topBar     = 30.0
)

// theme is the colours of a terminal; by code of SGR those of text.
type theme struct {
	back, edge, text, dim string
	colors                map[string]string
}

var (
	dark = theme{back: "#14171a", edge: "#30363c", text: "#e6e8ea", dim: "#98a1ab",
		colors: map[string]string{"31": "#ff6b63", "32": "#4ac776", "33": "#f0a13c"}}
	light = theme{back: "#ffffff", edge: "#dfe2e6", text: "#1d2125", dim: "#68707a",
		colors: map[string]string{"31": "#c62828", "32": "#17803d", "33": "#b45309"}}
)

// sgr is how the program changes colours; nothing else may command the terminal.
var sgr = regexp.MustCompile(`\x1b\[([0-9;]*)m`)

// draw returns a picture of a terminal with a text on it, as SVG. A line that is
// longer than the terminal is wide is an error.
func draw(text, title string, columns int, th theme) (string, error) {
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), "\n")
	width := 2*margin + float64(columns)*charWidth
	height := topBar + margin + float64(len(lines))*lineHeight + 4
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(title))
	fmt.Fprintf(&b, `<rect x=".5" y=".5" width="%.0f" height="%.0f" rx="8" fill="%s" stroke="%s"/>`+"\n", width-1, height-1, th.back, th.edge)
	for i := range 3 {
		fmt.Fprintf(&b, `<circle cx="%d" cy="17" r="5" fill="%s"/>`, 20+17*i, th.edge)
	}
	fmt.Fprintf(&b, "\n"+`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" fill="%s" xml:space="preserve">`+"\n", th.text)
	for i, line := range lines {
		if err := drawLine(&b, line, columns, topBar+margin+float64(i)*lineHeight, th); err != nil {
			return "", fmt.Errorf("%s: %w", title, err)
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String(), nil
}

// drawLine draws a line, word by word: so that columns stand below each other
// in whatever font it is shown.
func drawLine(b *strings.Builder, line string, columns int, y float64, th theme) error {
	at, style := 0, ""
	for line != "" {
		code := sgr.FindStringSubmatchIndex(line)
		part := line
		if code != nil {
			part = line[:code[0]]
		}
		if i := strings.IndexFunc(part, func(r rune) bool { return r < ' ' }); i >= 0 {
			return fmt.Errorf("%q commands the terminal", part[i:])
		}
		for _, w := range spaced.FindAllStringIndex(part, -1) {
			x := at + runewidth.StringWidth(part[:w[0]])
			word := part[w[0]:w[1]]
			n := runewidth.StringWidth(word)
			fmt.Fprintf(b, `<text x="%.1f" y="%.0f" textLength="%.1f"%s>%s</text>`, margin+float64(x)*charWidth, y, float64(n)*charWidth, th.attributes(style), html.EscapeString(word))
		}
		at += runewidth.StringWidth(part)
		if code == nil {
			break
		}
		style, line = line[code[2]:code[3]], line[code[1]:]
	}
	b.WriteString("\n")
	if at > columns {
		return fmt.Errorf("a line of %d columns does not fit %d", at, columns)
	}
	return nil
}

// spaced finds what stands between gaps of two spaces or more.
var spaced = regexp.MustCompile(`\S+(?: \S+)*`)

func (th theme) attributes(style string) string {
	switch style {
	case "", "0":
		return ""
	case "1":
		return ` font-weight="bold"`
	case "2":
		return fmt.Sprintf(` fill="%s"`, th.dim)
	}
	return fmt.Sprintf(` fill="%s"`, th.colors[style])
}
