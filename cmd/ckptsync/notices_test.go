package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
)

// What the cloud announces is logged with its time, and hurries; what it thinks
// likely is logged.
func TestNoticesHurry(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/token"):
			fmt.Fprint(w, "t")
		case strings.HasSuffix(r.URL.Path, "/rebalance"):
			fmt.Fprint(w, `{"noticeTime":"2026-11-30T08:00:00Z"}`)
		case strings.HasSuffix(r.URL.Path, "/instance-action"):
			fmt.Fprint(w, `{"action":"terminate","time":"2100-01-02T03:04:05Z"}`)
		}
	}))
	defer srv.Close()
	var log bytes.Buffer
	hurried := make(chan struct{}, 10)
	stop := watchNotices(t.Context(), &config.Config{Notices: "aws", NoticesEndpoint: srv.URL}, slog.New(slog.NewTextHandler(&log, nil)), func() { hurried <- struct{}{} })
	select {
	case <-hurried:
	case <-time.After(2 * time.Minute):
		t.Error("nobody was told")
	}
	stop()
	if len(hurried) > 0 {
		t.Error("told more than once")
	}
	if !strings.Contains(log.String(), "notice=terminate not_before=2100-01-02T03:04:05Z left=") {
		t.Errorf("it logs %s", &log)
	}
	watchNotices(t.Context(), &config.Config{NoticesEndpoint: srv.URL}, nil, nil)() // off: nobody is asked
}
