package statusd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium that is told what to do by its own protocol,
// over a pair of pipes: no port, and no library. It can reach this host alone.
type browser struct {
	to io.Writer

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	tabs    map[string]*tab
	dead    bool
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// tab is a page in the browser, and what happened in it.
type tab struct {
	b       *browser
	session string
	loads   chan struct{}

	mu       sync.Mutex
	requests []string // URLs
	said     []string // what the console, a script or a dialog said
}

// newBrowser starts a browser for this test, which is skipped if there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if at, err := exec.LookPath(name); err == nil && path == "" {
			path = at
		}
	}
	if path == "" {
		if os.Getenv("CKPTSYNC_REQUIRE_BROWSER") == "1" {
			t.Fatal("chromium is missing: apt-get install chromium")
		}
		t.Skip("NOT CHECKED: the status page in a browser: apt-get install chromium")
	}
	profile, err := os.MkdirTemp("", "browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })                     // a process of the browser may still write there
	ctx, kill := context.WithCancel(context.WithoutCancel(t.Context())) // it outlives the test, to be closed in order
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--user-data-dir="+profile,
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe", "about:blank")
	in, to, err1 := os.Pipe()
	from, out, err2 := os.Pipe()
	var said bytes.Buffer
	cmd.ExtraFiles, cmd.Stderr = []*os.File{in, out}, &said
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	b := &browser{to: to, answers: map[int]chan message{}, tabs: map[string]*tab{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(from)
	}()
	t.Cleanup(func() {
		_, err := b.ask("", "Browser.close", nil)
		if err != nil {
			kill()
		}
		err = errors.Join(err, cmd.Wait())
		kill()
		to.Close()
		<-read
		from.Close()
		if err != nil {
			t.Errorf("the browser has not ended in order: %v\n%s", err, &said)
		}
	})
	return b
}

// read hands out what the browser says until it ends.
func (b *browser) read(from io.Reader) {
	for r := bufio.NewReader(from); ; {
		data, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		answer, t := b.answers[m.ID], b.tabs[m.SessionID]
		delete(b.answers, m.ID)
		b.mu.Unlock()
		switch {
		case answer != nil:
			answer <- m
		case t != nil:
			t.event(m)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = true
	for _, a := range b.answers {
		close(a)
	}
}

// ask sends a command, to a tab if session names one, and returns its result.
func (b *browser) ask(session, method string, params any) (json.RawMessage, error) {
	p, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	if b.dead {
		b.mu.Unlock()
		return nil, errors.New("the browser has ended")
	}
	b.last++
	b.answers[b.last] = answer
	data, err := json.Marshal(message{ID: b.last, SessionID: session, Method: method, Params: p})
	if err == nil {
		_, err = b.to.Write(append(data, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case m, ok := <-answer:
		if !ok {
			return nil, fmt.Errorf("%s: the browser has ended", method)
		}
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error)
		}
		return m.Result, nil
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("%s: no answer", method)
	}
}

// event notes what happens in a tab.
func (p *tab) event(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Method {
	case "Page.loadEventFired":
		select {
		case p.loads <- struct{}{}:
		default: // nobody has asked for the last one yet
		}
	case "Network.requestWillBeSent":
		var sent struct{ Request struct{ URL string } }
		if err := json.Unmarshal(m.Params, &sent); err != nil {
			p.said = append(p.said, err.Error())
		}
		p.requests = append(p.requests, sent.Request.URL)
	case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening":
		p.said = append(p.said, m.Method+" "+string(m.Params))
	}
}

// open opens a page in a window of this size, and returns when it is loaded.
// dark: its reader prefers dark colours.
func (b *browser) open(t *testing.T, url string, width, height int, dark bool) *tab {
	t.Helper()
	var made struct{ TargetID, SessionID string }
	b.must(t, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	b.must(t, "", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	p := &tab{b: b, session: made.SessionID, loads: make(chan struct{}, 1)}
	b.mu.Lock()
	b.tabs[p.session] = p
	b.mu.Unlock()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	for method, params := range map[string]any{
		"Network.enable": nil, "Log.enable": nil, "Runtime.enable": nil, "Page.enable": nil,
		"Emulation.setDeviceMetricsOverride": map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
		"Emulation.setEmulatedMedia":         map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}},
	} {
		b.must(t, p.session, method, params, nil)
	}
	for state := ""; state != "complete"; { // about:blank, whose load is not the one that is waited for
		p.eval(t, "document.readyState", &state)
	}
	select {
	case <-p.loads:
	default:
	}
	b.must(t, p.session, "Page.navigate", map[string]any{"url": url}, nil)
	p.loaded(t)
	return p
}

func (b *browser) must(t *testing.T, session, method string, params, result any) {
	t.Helper()
	data, err := b.ask(session, method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(data, result)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// loaded waits until the page is loaded, again if it was before.
func (p *tab) loaded(t *testing.T) {
	t.Helper()
	select {
	case <-p.loads:
	case <-time.After(2 * time.Minute):
		t.Fatal("the page is not loaded")
	}
}

// eval returns the value of an expression in the page, once that is loaded: it
// may be about to refresh itself.
func (p *tab) eval(t *testing.T, expression string, value any) {
	t.Helper()
	var res struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	params := map[string]any{"expression": "document.readyState === 'complete' ? (" + expression + "\n) : null", "returnByValue": true}
	for end := time.Now().Add(2 * time.Minute); ; {
		data, err := p.b.ask(p.session, "Runtime.evaluate", params)
		if err == nil {
			err = json.Unmarshal(data, &res)
		}
		switch between := err != nil && (strings.Contains(err.Error(), "context") || strings.Contains(err.Error(), "navigated")); {
		case time.Now().After(end):
			t.Fatalf("%s: the page is not loaded: %v", expression, err)
		case between || err == nil && string(res.Result.Value) == "null":
			continue
		case err != nil:
			t.Fatal(err)
		case res.ExceptionDetails != nil:
			t.Fatalf("%s: %s", expression, res.ExceptionDetails)
		}
		break
	}
	if err := json.Unmarshal(res.Result.Value, value); err != nil {
		t.Fatalf("%s: %v: %s", expression, err, res.Result.Value)
	}
}
