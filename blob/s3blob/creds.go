package s3blob

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// credentials resolves the credentials again once a store has refused them:
// the SDK reads environment and files only once, and a session token that was
// renewed on disk would stay unseen until the process restarts.
type credentials struct {
	// load resolves the chain of sources (environment, files, web identity,
	// instance) from its beginning.
	load func(context.Context) (aws.CredentialsProvider, error)

	mu       sync.Mutex
	current  aws.CredentialsProvider // nil: load before the next use
	worked   bool                    // credentials were found at least once
	resolved int                     // number of loads
}

// credentialsError is a failure to find credentials.
type credentialsError struct {
	err   error
	never bool // none were ever found by this handle
}

func (e *credentialsError) Error() string { return "no credentials: " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// permanent reports whether trying again is of no use: nothing is configured.
func (e *credentialsError) permanent() bool {
	if !e.never {
		return false
	}
	// The instance metadata service is the last resort of the chain: where it
	// does not answer, there is nothing.
	return strings.Contains(e.err.Error(), "IMDS") || !isNetwork(e.err)
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
		c.resolved++
	}
	c.mu.Unlock()
	got, err := provider.Retrieve(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return aws.Credentials{}, &credentialsError{err: err, never: !c.worked}
	}
	c.worked = true
	return got, nil
}

// invalidate makes the next request resolve the credentials anew.
func (c *credentials) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = nil
}

// cached wraps what LoadDefaultConfig found, which may be nil.
func cached(p aws.CredentialsProvider) (aws.CredentialsProvider, error) {
	if p == nil {
		return nil, fmt.Errorf("none are configured")
	}
	if _, ok := p.(*aws.CredentialsCache); ok {
		return p, nil
	}
	return aws.NewCredentialsCache(p), nil
}
