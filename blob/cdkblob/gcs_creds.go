package cdkblob

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"

	"github.com/ckptsync/ckptsync/blob"
)

// gcsScope is what a token must allow.
const gcsScope = "https://www.googleapis.com/auth/devstorage.read_write"

// minTokenAge is how old credentials must be to be worth loading again after
// the store has refused them.
const minTokenAge = time.Minute

// tokens are Application Default Credentials, found at the first request and
// loaded again once the store refuses them: what was renewed on disk would else
// stay unseen until the process restarts.
type tokens struct {
	load func() (*auth.Credentials, error)

	mu     sync.Mutex
	creds  *auth.Credentials // nil: load before the next request
	loaded time.Time
	epoch  int // number of loads
	worked bool
}

func newTokens() *tokens {
	return &tokens{load: func() (*auth.Credentials, error) {
		return credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{gcsScope}})
	}}
}

// authorize signs a request, and returns which loading of the credentials it is
// signed with.
func (t *tokens) authorize(ctx context.Context, req *http.Request, op, key string) (epoch int, err error) {
	if t == nil {
		return 0, nil
	}
	creds, epoch, err := t.current()
	if err != nil {
		return 0, blob.Errorf(blob.ErrDenied, op, key,
			"no credentials: %s; set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`", err)
	}
	token, err := creds.Token(ctx)
	if err != nil {
		return 0, t.fail(ctx, op, key, err)
	}
	t.mu.Lock()
	t.worked = true
	t.mu.Unlock()
	req.Header.Set("Authorization", "Bearer "+token.Value)
	if project, err := creds.QuotaProjectID(ctx); err == nil && project != "" {
		req.Header.Set("x-goog-user-project", project)
	}
	return epoch, nil
}

func (t *tokens) current() (*auth.Credentials, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.creds == nil {
		creds, err := t.load()
		if err != nil {
			return nil, 0, err
		}
		t.creds, t.loaded = creds, time.Now()
		t.epoch++
	}
	return t.creds, t.epoch, nil
}

// fail is the error of a token that could not be had. Its text is that of the
// status only: what a token server says may repeat what it was asked.
func (t *tokens) fail(ctx context.Context, op, key string, err error) error {
	if ctx.Err() != nil {
		return noAnswer(ctx, op, key, err)
	}
	refused, ok := errors.AsType[*auth.Error](err)
	if !ok || refused.Response == nil {
		return noAnswer(ctx, op, key, err)
	}
	status := refused.Response.StatusCode
	kind := blob.ErrDenied
	if refused.Temporary() || status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout {
		kind = blob.ErrTemporary
	}
	t.mu.Lock()
	t.creds = nil // files may have changed
	t.mu.Unlock()
	return blob.Errorf(kind, op, key, "no token: the token server answered %d; check the credentials", status)
}

// renew makes the next request load the credentials again, unless they are new
// or of another loading already; it reports whether that is worth a try.
func (t *tokens) renew(epoch int) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch != t.epoch || t.creds == nil {
		return true
	}
	if time.Since(t.loaded) < minTokenAge {
		return false
	}
	t.creds = nil
	return true
}
