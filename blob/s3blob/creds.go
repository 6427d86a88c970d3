package s3blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// credentials resolves the credentials again once a store has refused them:
// the SDK reads environment and files only once, and a session token that was
// renewed on disk would stay unseen until the process restarts.
type credentials struct {
	// load resolves the chain of sources (environment, files, web identity,
	// instance) from its beginning.
	load func(context.Context) (aws.CredentialsProvider, error)

	mu      sync.Mutex
	current aws.CredentialsProvider // nil: load before the next use
	worked  bool                    // credentials were found at least once
	last    identity                // that were given out last; zero once they were refused
}

// identity tells credentials apart.
type identity struct{ key, token string }

// credentialsError is a failure to find credentials.
type credentialsError struct {
	err   error
	never bool // none were ever found by this handle
}

func (e *credentialsError) Error() string { return "no credentials: " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// nothing reports whether all sources are empty, rather than one in trouble.
// The instance metadata service is the last resort of the chain: where it does
// not answer, there is nothing.
func (e *credentialsError) nothing() bool {
	return strings.Contains(e.err.Error(), "IMDS") || errors.Is(e.err, errNotConfigured)
}

// permanent reports whether trying again is of no use.
func (e *credentialsError) permanent() bool {
	return e.never && (e.nothing() || !isNetwork(e.err))
}

// Retrieve implements aws.CredentialsProvider.
func (c *credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c.mu.Lock()
	provider := c.current
	if provider == nil {
		var err error
		if provider, err = c.load(ctx); err != nil {
			defer c.mu.Unlock()
			return aws.Credentials{}, &credentialsError{err: err, never: !c.worked}
		}
		c.current = provider
	}
	c.mu.Unlock()
	got, err := provider.Retrieve(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return aws.Credentials{}, &credentialsError{err: err, never: !c.worked}
	}
	c.worked = true
	c.last = identity{got.AccessKeyID, got.SessionToken}
	return got, nil
}

// refused makes the next request resolve the credentials anew, unless that has
// happened since the request that was refused with these.
func (c *credentials) refused(used identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if used == c.last || used.key == "" {
		c.current, c.last = nil, identity{}
	}
}

// renewed reports whether other credentials than these are there by now.
func (c *credentials) renewed(ctx context.Context, used identity) bool {
	got, err := c.Retrieve(ctx)
	return err == nil && used.key != "" && used != identity{got.AccessKeyID, got.SessionToken}
}

// signedWith are the credentials that an answer's request was signed with; zero
// if it does not tell.
func signedWith(err error) (used identity) {
	var resp *smithyhttp.ResponseError
	if !errors.As(err, &resp) || resp.Response == nil || resp.Response.Response == nil || resp.Response.Request == nil {
		return used
	}
	h := resp.Response.Request.Header
	if _, rest, ok := strings.Cut(h.Get("Authorization"), "Credential="); ok {
		used.key, _, _ = strings.Cut(rest, "/")
	}
	used.token = h.Get("X-Amz-Security-Token")
	return used
}

// errNotConfigured is the error of a chain without sources.
var errNotConfigured = errors.New("none are configured")

// sources says where credentials were looked for, and what was found there. It
// names variables and files, never what they hold.
func (t *target) sources() string {
	env := func(name string) string {
		if os.Getenv(name) == "" {
			return name + " is not set"
		}
		return name + " is set"
	}
	profile := cmp.Or(t.profile, os.Getenv("AWS_PROFILE"), "default")
	files := []string{
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), config.DefaultSharedCredentialsFilename()),
		cmp.Or(os.Getenv("AWS_CONFIG_FILE"), config.DefaultSharedConfigFilename()),
	}
	for i, file := range files {
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			files[i] += " (no such file)"
		} else if err != nil {
			files[i] += " (not readable)"
		}
	}
	machine := "this machine's role (its metadata service tells of none)"
	if disabled, _ := strconv.ParseBool(os.Getenv("AWS_EC2_METADATA_DISABLED")); disabled {
		machine = "this machine's role (AWS_EC2_METADATA_DISABLED is set)"
	}
	return strings.Join([]string{
		"the environment (" + env("AWS_ACCESS_KEY_ID") + ", " + env("AWS_SECRET_ACCESS_KEY") + ")",
		fmt.Sprintf("the profile %q in %s and %s", profile, files[0], files[1]),
		"a web identity (" + env("AWS_WEB_IDENTITY_TOKEN_FILE") + ")",
		"a container's role (" + env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") + ", " + env("AWS_CONTAINER_CREDENTIALS_FULL_URI") + ")",
		machine,
	}, ", ")
}

// cached wraps what LoadDefaultConfig found, which may be nil.
func cached(p aws.CredentialsProvider) (aws.CredentialsProvider, error) {
	if p == nil {
		return nil, errNotConfigured
	}
	if _, ok := p.(*aws.CredentialsCache); ok {
		return p, nil
	}
	return aws.NewCredentialsCache(p), nil
}
