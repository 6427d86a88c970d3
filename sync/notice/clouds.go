package notice

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// newToken gets a session token of EC2's metadata service.
func (w *watcher) newToken(ctx context.Context) error {
	const path = "/latest/api/token"
	a, err := w.ask(ctx, http.MethodPut, path, "X-aws-ec2-metadata-token-ttl-seconds", "21600")
	if err != nil {
		return err
	}
	if a.status != http.StatusOK || a.body == "" {
		return a.unexpected(path)
	}
	w.token = a.body
	return nil
}

// aws asks once for interruptions and for advice.
func (w *watcher) aws(ctx context.Context) error {
	var action struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	const at = "/latest/meta-data/spot/instance-action"
	if ok, err := w.awsJSON(ctx, at, &action); err != nil {
		return err
	} else if ok {
		w.once(at+action.Action+action.Time.String(), Notice{Cloud: AWS, Kind: action.Action, At: action.Time})
	}
	var advice struct {
		Time time.Time `json:"noticeTime"`
	}
	const rebalance = "/latest/meta-data/events/recommendations/rebalance"
	ok, err := w.awsJSON(ctx, rebalance, &advice)
	if err == nil && ok {
		w.once(rebalance, Notice{Cloud: AWS, Kind: "rebalance", Advice: true})
	}
	return err
}

// awsJSON reads one item; false: there is none now.
func (w *watcher) awsJSON(ctx context.Context, path string, into any) (bool, error) {
	for again := true; ; again = false {
		if w.token == "" {
			if err := w.newToken(ctx); err != nil {
				return false, err
			}
		}
		a, err := w.ask(ctx, http.MethodGet, path, "X-aws-ec2-metadata-token", w.token)
		switch {
		case err != nil:
			return false, err
		case a.status == http.StatusNotFound:
			return false, nil
		case a.status == http.StatusUnauthorized && again:
			w.token = "" // it has run out
			continue
		case a.status != http.StatusOK:
			return false, a.unexpected(path)
		}
		if err := json.Unmarshal([]byte(a.body), into); err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		return true, nil
	}
}

// The header that Google's service wants, and gives.
const (
	flavor = "Metadata-Flavor"
	google = "Google"
)

func (w *watcher) isGCP(ctx context.Context) error {
	a, err := w.ask(ctx, http.MethodGet, "/computeMetadata/v1/instance/", flavor, google)
	if err == nil && (a.status != http.StatusOK || a.header.Get(flavor) != google) {
		return a.unexpected("/computeMetadata/v1/instance/")
	}
	return err
}

// waitTime is how long Google's service is asked to wait for a change.
const waitTime = 60 * time.Second

// gcpItem is a value that the service is asked to tell the change of.
type gcpItem struct {
	path, etag string
	notice     func(value string) *Notice
}

// gcp asks for both items, one goroutine each.
func (w *watcher) gcp(ctx context.Context) {
	items := []*gcpItem{
		{path: "preempted", notice: func(v string) *Notice {
			if v != "TRUE" {
				return nil
			}
			return &Notice{Cloud: GCP, Kind: "preempted"}
		}},
		{path: "maintenance-event", notice: func(v string) *Notice {
			switch {
			case v == "" || v == "NONE":
				return nil
			case strings.HasPrefix(v, "MIGRATE"):
				return &Notice{Cloud: GCP, Kind: v, Advice: true} // it goes on running
			}
			return &Notice{Cloud: GCP, Kind: v}
		}},
	}
	type found struct {
		item  *gcpItem
		value string
		err   error
	}
	results := make(chan found)
	ask := func(i *gcpItem) {
		value, err := w.changed(ctx, i)
		results <- found{i, value, err}
	}
	for _, i := range items {
		go ask(i)
	}
	for left := len(items); left > 0; {
		r := <-results
		w.result(ctx, r.err)
		if n := r.item.notice(r.value); r.err == nil && n != nil {
			w.once(r.item.path+r.value, *n)
		} else if r.err == nil {
			for k := range w.said { // what is over may come again
				if strings.HasPrefix(k, r.item.path) {
					delete(w.said, k)
				}
			}
		}
		if ctx.Err() != nil {
			left--
			continue
		}
		go func() {
			if r.err != nil {
				w.pause(ctx)
			}
			ask(r.item)
		}()
	}
}

// changed is the value of an item when it has changed, or after a while.
func (w *watcher) changed(ctx context.Context, i *gcpItem) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTime+answerTime)
	defer cancel()
	q := url.Values{"alt": {"text"}}
	if i.etag != "" {
		q.Set("wait_for_change", "true")
		q.Set("last_etag", i.etag)
		q.Set("timeout_sec", fmt.Sprint(int(waitTime.Seconds())))
	}
	path := "/computeMetadata/v1/instance/" + i.path
	a, err := w.ask(ctx, http.MethodGet, path+"?"+q.Encode(), flavor, google)
	if err != nil {
		return "", err
	}
	if a.status != http.StatusOK || a.header.Get(flavor) != google || a.header.Get("ETag") == "" {
		return "", a.unexpected(path)
	}
	i.etag = a.header.Get("ETag")
	return strings.TrimSpace(a.body), nil
}

// ownName finds out what Azure calls this machine.
func (w *watcher) ownName(ctx context.Context) error {
	const path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
	a, err := w.ask(ctx, http.MethodGet, path, "Metadata", "true")
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return a.unexpected(path)
	}
	w.name = strings.TrimSpace(a.body)
	return nil
}

// azureEvent is one scheduled event.
type azureEvent struct {
	EventID   string `json:"EventId"`
	EventType string
	Resources []string
	NotBefore string
}

// azureEnds are the events after which nothing runs here any more; Freeze only
// pauses.
var azureEnds = []string{"Preempt", "Terminate", "Reboot", "Redeploy"} //nolint:gochecknoglobals // a constant

// azure asks once. The service tells of events of the whole scale set.
func (w *watcher) azure(ctx context.Context) error {
	if w.name == "" {
		if err := w.ownName(ctx); err != nil {
			return err
		}
	}
	const path = "/metadata/scheduledevents?api-version=2020-07-01"
	a, err := w.ask(ctx, http.MethodGet, path, "Metadata", "true")
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return a.unexpected(path)
	}
	var doc struct{ Events []azureEvent }
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range doc.Events {
		if !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(strings.TrimPrefix(r, "_"), w.name) }) {
			continue
		}
		n := Notice{Cloud: Azure, Kind: e.EventType, Advice: !slices.Contains(azureEnds, e.EventType)}
		if at, err := time.Parse(time.RFC1123, e.NotBefore); err == nil {
			n.At = at
		}
		w.once(e.EventID, n)
	}
	return nil
}
