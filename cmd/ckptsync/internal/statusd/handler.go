package statusd

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ckptsync/ckptsync/sync/status"
)

// handler serves all paths.
func handler(d *status.Daemon) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(Collector(d), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { verdict(w, d.Snapshot().Healthy) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { verdict(w, d.Snapshot().Ready) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			page(w, d.Snapshot())
			return
		}
		asJSON(w, d.Snapshot())
	})
	html := func(w http.ResponseWriter, _ *http.Request) { page(w, d.Snapshot()) }
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) { asJSON(w, d.Snapshot()) })
	mux.HandleFunc("GET /status.html", html)
	mux.HandleFunc("GET /{$}", html)
	return guarded(mux)
}

func asJSON(w http.ResponseWriter, s status.Snapshot) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // whoever asked is gone
}

// guarded adds what every answer has.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Cache-Control", "no-store")
		head.Set("Content-Security-Policy", policy)
		head.Set("Referrer-Policy", "no-referrer")
		h.ServeHTTP(w, r)
	})
}

func verdict(w http.ResponseWriter, v status.Verdict) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := "ok\n"
	if !v.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = strings.Join(v.Reasons, "\n") + "\n"
	}
	_, _ = io.WriteString(w, text) // whoever asked is gone
}
