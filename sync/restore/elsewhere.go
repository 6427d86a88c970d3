package restore

import (
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
)

// maxStateFile bounds the files that are looked at for paths of another
// machine, bytes.
const maxStateFile = 64 << 10

// absolutePath finds absolute paths in a small text file, quoted or alone.
var absolutePath = regexp.MustCompile(`(?m)(?:^|[\s"'=:])(/[^\s"']+)`)

// elsewhere returns the first absolute path in text that does not lead to
// below root.
func elsewhere(text, root string) (string, bool) {
	for _, m := range absolutePath.FindAllStringSubmatch(text, -1) {
		if p := path.Clean(m[1]); !within(root, p) {
			return p, true
		}
	}
	return "", false
}

// warnElsewhere warns of state and pointer files that name a place outside the
// root: they were restored byte for byte, and a framework that follows them
// would load something else, or nothing.
func (r *runner) warnElsewhere() {
	look := func(name, text string) {
		if p, ok := elsewhere(text, r.o.To); ok {
			r.warn(fmt.Sprintf("%q names %s, which is not below %s: it was restored as it is, and a framework that follows it does not load this step; --rewrite-root OLD=NEW changes such paths", name, p, r.o.To))
		}
	}
	for _, p := range r.plan.Pointers {
		if r.o.Rewrite != nil && !p.Link {
			p.Content, _ = r.o.Rewrite.apply(p.Content)
		}
		look(p.Path, p.Content)
	}
	for i := range r.plan.Files {
		f := &r.plan.Files[i]
		if r.small(f) {
			if text, err := readSmall(r.area.root, path.Join(r.plan.Place, f.Rel)); err == nil && !strings.Contains(text, "\x00") {
				look(f.Path, text)
			}
		}
	}
}

func readSmall(root *os.Root, name string) (string, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxStateFile))
	return string(b), err
}
