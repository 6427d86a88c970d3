package statusd

import (
	"io"
	"net/http"
)

// Listener is told what a trainer says on the socket of its state directory.
// Whoever can reach that could write into the directory as well, so it needs no
// password; over HTTP nothing can be said.
type Listener interface {
	// Ready is told that a step is whole, by its name below the root.
	Ready(step string) error
	// SyncNow is told that now is a good time to look.
	SyncNow()
}

// withWords adds to a handler what can be said:
//
//	POST /v1/ready?step=NAME   the step is whole as it is: it need not be quiet first
//	POST /v1/sync              look now, and try again what has failed
//
// Both answer 202, before anything is committed: 'ckptsync wait' waits for that.
func withWords(h http.Handler, l Listener) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("POST /v1/ready", func(w http.ResponseWriter, r *http.Request) {
		if err := l.Ready(r.FormValue("step")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		heard(w)
	})
	mux.HandleFunc("POST /v1/sync", func(w http.ResponseWriter, _ *http.Request) {
		l.SyncNow()
		heard(w)
	})
	return guarded(http.MaxBytesHandler(mux, 64<<10))
}

func heard(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, "ok\n") // whoever said it is gone
}
