package statusd

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/sync/status"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// policy lets a browser load nothing, run nothing, and use the page's own style
// alone: whatever a step is called, it stays text.
var policy = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": term.Bytes, "when": term.When, "clean": term.Clean, "clock": clock, "span": span, "rate": rate,
	"nodes": nodesText, "count": term.Count, "percent": percent,
}).Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	status.Snapshot
	Style template.CSS
	Runs  []runView
}

type runView struct {
	status.Run
	Open     []status.Step // not finished, or finished last
	Pending  []status.Step // whole or not, and not committed
	Timeline timeline
	Graph    graph
}

// page answers with the page. How a browser draws it, on a desk and on a phone:
//
//	CKPTSYNC_PICTURES=/tmp go test -run PageInABrowser ./cmd/ckptsync/internal/statusd
func page(w http.ResponseWriter, s status.Snapshot) {
	data := pageData{Snapshot: s, Style: template.CSS(pageStyle)} //nolint:gosec // our own
	for _, r := range s.Runs {
		v := runView{Run: r, Timeline: newTimeline(r.Steps, s.At), Graph: newGraph(r, s.At)}
		for _, st := range r.Steps {
			if st.Stage != "committed" && st.Stage != "skipped" && st.Stage != "vanished" {
				v.Pending = append(v.Pending, st)
			}
		}
		v.Open = r.Steps[:min(len(r.Steps), maxRows)]
		data.Runs = append(data.Runs, v)
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, data); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // whoever asked is gone
}

// maxRows is how many steps the table has.
const maxRows = 60

// clock is a time of day, with the day if that is not the present one.
func clock(now, t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case now.Sub(t) < 20*time.Hour:
		return t.UTC().Format("15:04:05")
	}
	return t.UTC().Format("Jan 2 15:04")
}

// span is a length of time for people.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 0:
		return "–"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fs", seconds)
}

func rate(perSecond float64) string { return term.Bytes(int64(perSecond)) + "/s" }

func percent(s status.Step) int64 {
	if s.Bytes <= 0 {
		return 0
	}
	return min(100, 100*(s.Sent+s.Reused)/s.Bytes)
}

// nodesText names nodes.
func nodesText(nodes []int) string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(nodes), " ", ", "), "[]")
	if len(nodes) == 1 {
		return "node " + text
	}
	return "nodes " + text
}
