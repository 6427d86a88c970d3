//go:build unix

package hook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// lockedLog is a log that a test reads while it is written.
type lockedLog struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lockedLog) has(t *testing.T, text string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.Contains(l.String(), text) {
		t.Errorf("the log has no %q:\n%s", text, l.String())
	}
}

func newHooks(t *testing.T, specs ...Spec) (*Hooks, *lockedLog) {
	t.Helper()
	log := &lockedLog{}
	h := New(specs, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(h.Close)
	return h, log
}

func step(n int64) *int64 { return &n }

// A command gets the event both ways, what it says is logged, and what it does
// wrong too; it gets the events that it asked for.
func TestCommand(t *testing.T) {
	t.Parallel()
	got := filepath.Join(t.TempDir(), "got")
	h, log := newHooks(t,
		Spec{Events: []string{Failure}, Command: []string{"sh", "-c", `cat >"$0"; echo "$CKPTSYNC_EVENT $CKPTSYNC_EVENT_STEP $CKPTSYNC_EVENT_REASON"`, got}},
		Spec{Events: []string{Failure}, Command: []string{"sh", "-c", "exit 7"}},
		Spec{Command: []string{"/no/such/program"}},
	)
	h.Tell(Event{Event: Commit, Run: "r", Step: step(4)})
	h.Tell(Event{Event: Failure, Run: "r", Step: step(5), Reasons: []string{"a", "b"}})
	h.Close()
	data, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	want := Event{Format: "ckptsync/event/v1", Event: Failure, Run: "r", Step: step(5), Reasons: []string{"a", "b"}}
	if d := cmp.Diff(want, e); d != "" {
		t.Error(d)
	}
	log.has(t, `output="failure 5 a; b"`)
	log.has(t, "exit status 7")
	log.has(t, "no such file")
	h.Tell(Event{Event: Failure}) // after the end: nobody is told, and nothing happens
}

// A command that hangs is killed with what it has started, and nobody who tells
// waits for it; what it does not take is dropped, with a word.
func TestSlowCommandHoldsUpNobody(t *testing.T) {
	t.Parallel()
	h, log := newHooks(t, Spec{Command: []string{"sh", "-c", "sleep 100 & wait"}, Timeout: 300 * time.Millisecond})
	for range queue + 10 {
		h.Tell(Event{Event: Commit})
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		h.Tell(Event{Event: Commit})
		log.mu.Lock()
		done := strings.Contains(log.String(), "dropped=") && strings.Contains(log.String(), "it took longer than 300ms")
		log.mu.Unlock()
		if done {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the log is %s", log.String())
		}
	}
}

// A webhook is tried again as long as that may help, its secrets are read when
// they are used, and neither they nor its URL are logged.
func TestWebhook(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("file-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOOK_TEST_TOKEN", "env-secret")
	var mu sync.Mutex
	var got []string
	answers := []int{503, 429, 200}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-File"), body))
		w.WriteHeader(answers[min(len(got), len(answers))-1])
	}))
	defer srv.Close()
	s := Spec{
		Webhook: Value{Text: srv.URL + "/url-secret"}, Timeout: time.Second,
		Header: map[string]Value{"Authorization": {Env: "HOOK_TEST_TOKEN"}, "X-File": {File: secret}},
	}
	if err := postAfter(t.Context(), s, Event{Event: Damaged, Run: "r"}, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0] != got[2] || !strings.HasPrefix(got[2], "POST /url-secret env-secret file-secret {") || !strings.Contains(got[2], `"event":"damaged"`) {
		t.Errorf("it was sent %q", got)
	}
	// What cannot get better is not tried again.
	answers, got = []int{403}, nil
	err := postAfter(t.Context(), s, Event{}, time.Millisecond)
	if err == nil || len(got) != 1 {
		t.Errorf("%d tries, %v", len(got), err)
	}
	srv.Close()
	gone := postAfter(t.Context(), s, Event{}, time.Microsecond)
	t.Setenv("HOOK_TEST_TOKEN", "")
	none := postAfter(t.Context(), s, Event{}, time.Millisecond)
	for _, err := range []error{err, gone, none} {
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("its error is %v", err)
		}
	}
	if !strings.Contains(none.Error(), "HOOK_TEST_TOKEN") {
		t.Errorf("its error is %v", none)
	}
}

// The file may be moved away at any time: the next event begins a new one.
func TestFileIsRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	lines := func(path string) int {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return bytes.Count(data, []byte{'\n'})
	}
	for range 2 {
		h, _ := newHooks(t, Spec{File: path})
		h.Tell(Event{Event: Commit})
		h.Close()
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	h, _ := newHooks(t, Spec{File: path})
	h.Tell(Event{Event: Commit})
	h.Close()
	if a, b := lines(path+".1"), lines(path); a != 2 || b != 1 {
		t.Errorf("%d and %d lines", a, b)
	}
}

func TestWhichEventsAreTold(t *testing.T) {
	t.Parallel()
	id := commit.ID{Step: 7, Attempt: 2, Revision: 1}
	for _, c := range []struct {
		ev   syncer.Event
		want string
	}{
		{syncer.StageChanged{Step: "s", Number: 7, Stage: syncer.Committed, ID: id, Fresh: true}, Commit},
		{syncer.StageChanged{Step: "s", Number: 7, Stage: syncer.Committed, ID: id}, ""}, // it was before
		{syncer.StageChanged{Step: "s", Stage: syncer.Failed}, Failure},
		{syncer.StageChanged{Step: "s", Stage: syncer.Vanished}, Vanished},
		{syncer.StageChanged{Step: "s", Stage: syncer.Held}, ""},
		{syncer.Superseded{}, Superseded},
		{syncer.FoundDamaged{ID: id}, Damaged},
		{syncer.FellBack{ID: id, Name: "s"}, Fallback},
		{syncer.Noticed{}, ""},
	} {
		e, ok := eventOf(c.ev)
		if ok != (c.want != "") || e.Event != c.want {
			t.Errorf("%T: %q, want %q", c.ev, e.Event, c.want)
		}
	}
	var none *Hooks
	none.Tell(Event{})
	none.Close()
	if New(nil, nil) != nil {
		t.Error("there is no hook")
	}
}
