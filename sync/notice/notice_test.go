package notice

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// service is a metadata service whose answers a test changes.
type service struct {
	t  *testing.T
	mu sync.Mutex
	// values by path; a path that has none is 404.
	values  map[string]string
	header  http.Header // that every answer has
	check   func(*http.Request) int
	changed chan struct{}
}

func newService(t *testing.T, check func(*http.Request) int) *service {
	return &service{t: t, values: map[string]string{}, header: http.Header{}, check: check, changed: make(chan struct{})}
}

func (s *service) set(path, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[path] = value
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if code := s.check(r); code != 0 {
		w.WriteHeader(code)
		return
	}
	for {
		s.mu.Lock()
		v, ok := s.values[r.URL.Path]
		changed := s.changed
		s.mu.Unlock()
		if etag := r.URL.Query().Get("last_etag"); etag != "" && etag == "e"+v {
			select {
			case <-changed:
				continue
			case <-r.Context().Done():
				return
			}
		}
		for k := range s.header {
			w.Header().Set(k, s.header.Get(k))
		}
		w.Header().Set("ETag", "e"+v)
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, v)
		return
	}
}

// watch runs Watch against the service.
func (s *service) watch(cloud string) <-chan Notice {
	s.t.Helper()
	srv := httptest.NewServer(s)
	ctx, stop := context.WithCancel(s.t.Context())
	told, ended := make(chan Notice, 100), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, Options{Cloud: cloud, Endpoint: srv.URL, Every: time.Millisecond}, func(n Notice) { told <- n })
	}()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		srv.Close()
	})
	return told
}

func (s *service) want(told <-chan Notice, want Notice) {
	s.t.Helper()
	select {
	case n := <-told:
		if d := cmp.Diff(want, n); d != "" {
			s.t.Error(d)
		}
	case <-time.After(2 * time.Minute):
		s.t.Fatalf("no word of %+v", want)
	}
}

// quiet fails if there is a notice while the service is asked some more.
func (s *service) quiet(told <-chan Notice) {
	s.t.Helper()
	select {
	case n := <-told:
		s.t.Errorf("told of %+v", n)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestAWS(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	token := "first"
	s := newService(t, func(r *http.Request) int {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.URL.Path == "/latest/api/token":
			if r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
				return http.StatusBadRequest
			}
		case r.Header.Get("X-aws-ec2-metadata-token") != token:
			return http.StatusUnauthorized
		}
		return 0
	})
	s.set("/latest/api/token", "first")
	told := s.watch(Auto)
	s.quiet(told)
	s.set("/latest/meta-data/events/recommendations/rebalance", `{"noticeTime":"2026-11-30T08:00:00Z"}`)
	s.want(told, Notice{Cloud: AWS, Kind: "rebalance", Advice: true})
	mu.Lock() // the token has run out
	token = "second"
	mu.Unlock()
	s.set("/latest/api/token", "second")
	s.set("/latest/meta-data/spot/instance-action", `{"action":"terminate","time":"2026-11-30T08:22:00Z"}`)
	s.want(told, Notice{Cloud: AWS, Kind: "terminate", At: time.Date(2026, 11, 30, 8, 22, 0, 0, time.UTC)})
	s.quiet(told)
}

func TestGCP(t *testing.T) {
	t.Parallel()
	s := newService(t, func(r *http.Request) int {
		if r.Header.Get("Metadata-Flavor") != "Google" {
			return http.StatusForbidden
		}
		return 0
	})
	s.header.Set("Metadata-Flavor", "Google")
	s.set("/computeMetadata/v1/instance/", "x/")
	s.set("/computeMetadata/v1/instance/preempted", "FALSE")
	s.set("/computeMetadata/v1/instance/maintenance-event", "NONE")
	told := s.watch(Auto)
	s.quiet(told)
	s.set("/computeMetadata/v1/instance/maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
	s.want(told, Notice{Cloud: GCP, Kind: "MIGRATE_ON_HOST_MAINTENANCE", Advice: true})
	s.set("/computeMetadata/v1/instance/maintenance-event", "NONE")
	s.quiet(told)
	s.set("/computeMetadata/v1/instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
	s.want(told, Notice{Cloud: GCP, Kind: "TERMINATE_ON_HOST_MAINTENANCE"})
	s.set("/computeMetadata/v1/instance/preempted", "TRUE")
	s.want(told, Notice{Cloud: GCP, Kind: "preempted"})
	s.quiet(told)
}

func TestAzure(t *testing.T) {
	t.Parallel()
	s := newService(t, func(r *http.Request) int {
		if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" {
			return http.StatusBadRequest
		}
		return 0
	})
	s.set("/metadata/instance/compute/name", "node_3")
	s.set("/metadata/scheduledevents", `{"DocumentIncarnation":1,"Events":[]}`)
	told := s.watch(Auto)
	s.quiet(told)
	event := func(id, kind, of string) string {
		return fmt.Sprintf(`{"EventId":%q,"EventType":%q,"ResourceType":"VirtualMachine","Resources":[%q],"EventStatus":"Scheduled","NotBefore":"Mon, 30 Nov 2026 18:29:47 GMT"}`, id, kind, of)
	}
	at := time.Date(2026, 11, 30, 18, 29, 47, 0, time.UTC)
	s.set("/metadata/scheduledevents", fmt.Sprintf(`{"Events":[%s,%s]}`, event("1", "Preempt", "node_4"), event("2", "Freeze", "node_3")))
	s.want(told, Notice{Cloud: Azure, Kind: "Freeze", At: at.In(time.FixedZone("GMT", 0)), Advice: true})
	s.set("/metadata/scheduledevents", fmt.Sprintf(`{"Events":[%s,%s]}`, event("2", "Freeze", "node_3"), event("3", "Preempt", "node_3")))
	s.want(told, Notice{Cloud: Azure, Kind: "Preempt", At: at.In(time.FixedZone("GMT", 0))})
	s.quiet(told)
}

// Nothing is asked of any other address: a redirect is no answer.
func TestAsksNobodyElse(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another address was asked") }))
	defer other.Close()
	s := newService(t, func(*http.Request) int { return http.StatusFound })
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, s.check(r))
	}))
	defer srv.Close()
	if err := Watch(t.Context(), Options{Cloud: Auto, Endpoint: srv.URL}, func(Notice) {}); err == nil {
		t.Error("a redirect was taken for a cloud")
	}
}
