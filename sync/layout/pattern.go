package layout

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// pattern is a compiled Spec.Step.
type pattern struct {
	text     string
	re       *regexp.Regexp
	depth    int  // path components
	numbered bool // has {step}
	literal  string
}

// errNumber is a name that fits but whose number does not.
var errNumber = errors.New("its number is too large")

// compile parses a Spec.Step.
func compile(text string) (*pattern, error) {
	if text == "" {
		return nil, errors.New("step: it is empty; give a pattern such as checkpoint-{step}")
	}
	p := &pattern{text: text}
	parts := strings.Split(text, "/")
	p.depth = len(parts)
	var b strings.Builder
	b.WriteString(`\A`)
	for i, c := range parts {
		if c == "" || c == "." || c == ".." {
			return nil, fmt.Errorf("step: %q has an empty, \".\" or \"..\" component", text)
		}
		if i > 0 {
			b.WriteByte('/')
		}
		if err := p.component(&b, c); err != nil {
			return nil, fmt.Errorf("step: %q: %w", text, err)
		}
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("step: %q: %w", text, err)
	}
	p.re = re
	p.literal = longestLiteral(parts[len(parts)-1])
	return p, nil
}

// component appends one path component as a regular expression.
func (p *pattern) component(b *strings.Builder, c string) error {
	before, after, found := strings.Cut(c, "{step}")
	if err := glob(b, before); err != nil {
		return err
	}
	if !found {
		return nil
	}
	if p.numbered || strings.Contains(after, "{step}") {
		return errors.New("{step} may stand there once")
	}
	p.numbered = true
	b.WriteString(`([0-9]+)`)
	return glob(b, after)
}

// glob appends a glob of path.Match, within one component, as a regular
// expression that prefers short matches of *.
func glob(b *strings.Builder, g string) error {
	if _, err := path.Match(g, ""); err != nil {
		return err
	}
	for i := 0; i < len(g); i++ {
		switch c := g[i]; c {
		case '*':
			b.WriteString(`[^/]*?`)
		case '?':
			b.WriteString(`[^/]`)
		case '{', '}':
			return errors.New("the only word in braces is {step}; use * for what varies otherwise")
		case '\\':
			i++
			b.WriteString(regexp.QuoteMeta(g[i : i+1]))
		case '[':
			j := i + 1
			for ; g[j] != ']'; j++ {
				if g[j] == '\\' {
					j++
				}
			}
			b.WriteString(g[i : j+1])
			i = j
		default:
			j := i + 1
			for j < len(g) && !strings.ContainsRune(`*?{}\[`, rune(g[j])) {
				j++
			}
			b.WriteString(regexp.QuoteMeta(g[i:j]))
			i = j - 1
		}
	}
	return nil
}

// longestLiteral returns the longest run of plain text in a component, by
// which a name that is no step may still look like one.
func longestLiteral(c string) string {
	best := ""
	for part := range strings.SplitSeq(strings.ReplaceAll(c, "{step}", "*"), "*") {
		if !strings.ContainsAny(part, `?[\`) && len(part) > len(best) {
			best = part
		}
	}
	return best
}

// match reports whether name is a step, and its number. A name that fits but
// for the size of its number is errNumber.
func (p *pattern) match(name string) (number int64, ok bool, err error) {
	m := p.re.FindStringSubmatchIndex(name)
	if m == nil {
		return 0, false, nil
	}
	if !p.numbered {
		return 0, true, nil
	}
	number, err = strconv.ParseInt(name[m[2]:m[3]], 10, 64)
	if err != nil {
		return 0, false, errNumber
	}
	return number, true, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// resembles reports whether a name that is no step looks like one.
func (p *pattern) resembles(name string) bool {
	base := path.Base(name)
	if !p.numbered {
		return false
	}
	if p.literal == "" {
		return base != "" && isDigit(base[0])
	}
	return strings.Contains(base, p.literal)
}

// matchGlob reports whether a slash-separated path matches a glob whose
// components are those of path.Match, and in which a component ** stands for
// any number of directories, none included. A pattern that is not valid
// matches nothing.
func matchGlob(glob, name string) bool {
	return matchParts(strings.Split(glob, "/"), strings.Split(name, "/"))
}

func matchParts(glob, name []string) bool {
	for len(glob) > 0 {
		if glob[0] == "**" {
			for i := range len(name) + 1 {
				if matchParts(glob[1:], name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(glob[0], name[0]); !ok || err != nil {
			return false
		}
		glob, name = glob[1:], name[1:]
	}
	return len(name) == 0
}

func matchAny(globs []string, name string) bool {
	for _, g := range globs {
		if matchGlob(g, name) {
			return true
		}
	}
	return false
}

// isGlob reports whether s has a special character of path.Match or **.
func isGlob(s string) bool { return strings.ContainsAny(s, `*?[\`) }
