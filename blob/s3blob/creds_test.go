package s3blob

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// noEnvCredentials takes away what TestMain gave all tests.
func noEnvCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// credentialsFile makes a file that write fills with a profile.
func credentialsFile(t *testing.T) (write func(profile, key, token string)) {
	noEnvCredentials(t)
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	return func(profile, key, token string) {
		writeFile(t, file, fmt.Sprintf("[%s]\naws_access_key_id=%s\naws_secret_access_key=secret\naws_session_token=%s\n", profile, key, token))
	}
}

// fakeClock is a backoff whose waits take no time but move the clock.
type fakeClock struct {
	mu    sync.Mutex
	now   time.Duration
	event func(now time.Duration)
}

func (c *fakeClock) backOff() backoff.BackOff {
	return &clockBackOff{BackOff: backoff.NewExponentialBackOff(backoff.WithInitialInterval(200*time.Millisecond),
		backoff.WithMultiplier(2), backoff.WithMaxInterval(30*time.Second), backoff.WithMaxElapsedTime(0)), clock: c}
}

type clockBackOff struct {
	backoff.BackOff
	clock *fakeClock
}

func (b *clockBackOff) NextBackOff() time.Duration {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	b.clock.now += b.BackOff.NextBackOff()
	b.clock.event(b.clock.now)
	return 0
}

// token is the session token that a request came with.
func token(c *call) string { return c.R.Header.Get("X-Amz-Security-Token") }

// TestO35ExpiredTokenInMidUpload: the token expires after part 3, every call
// fails as 400 until the file is rewritten 20 s later, and the upload goes on
// with part 4: nothing is sent twice, nobody restarts.
func TestO35ExpiredTokenInMidUpload(t *testing.T) {
	write := credentialsFile(t)
	write("default", "key", "old")
	f := newFake(t)
	var sent atomic.Int32
	var mu sync.Mutex
	times := map[string]int{}
	f.on(func(c *call) bool {
		if token(c) == "old" && sent.Load() >= 3 {
			return c.fail(400, "ExpiredToken")
		}
		if c.Op == "UploadPart" {
			sent.Add(1)
			mu.Lock()
			times[c.R.URL.Query().Get("partNumber")]++
			mu.Unlock()
		}
		return false
	})
	renewed := false
	clock := &fakeClock{event: func(now time.Duration) {
		if now >= 20*time.Second && !renewed {
			write("default", "key2", "new")
			renewed = true
		}
	}}
	b := retryblob.New(f.open("", Options{}), &retryblob.Options{BackOff: clock.backOff})
	body := content(5*blob.MinPart + 11)
	u, parts := sendParts(t, b, "k", body)
	if _, err := u.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", body)
	if !renewed || clock.now < 20*time.Second {
		t.Errorf("the clock stands at %v: the credentials never expired", clock.now)
	}
	for n, c := range times {
		if c != 1 {
			t.Errorf("part %s was sent %d times", n, c)
		}
	}
	if n := f.count(func(c *call) bool { return c.Op == "CreateMultipartUpload" }); n != 1 {
		t.Errorf("%d uploads were begun", n)
	}
}

// TestO35RefusedKey: a key that was taken away is denied, unless another is
// there by the time the answer comes: then the same call is worth another try.
func TestO35RefusedKey(t *testing.T) {
	for _, code := range []string{"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"} {
		write := credentialsFile(t)
		write("default", "key1", "t")
		f := newFake(t)
		rotate := false
		f.on(func(c *call) bool {
			if !strings.Contains(c.R.Header.Get("Authorization"), "Credential=key1/") {
				return false
			}
			if rotate {
				write("default", "key2", "t")
			}
			return c.fail(403, code)
		})
		b := f.open("", Options{})
		_, err := b.Put(t.Context(), "k", content(10), nil)
		wantClass(t, err, blob.ErrDenied)
		rotate = true
		_, err = b.Put(t.Context(), "k", content(10), nil)
		wantClass(t, err, blob.ErrTemporary)
		if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
			t.Fatalf("%s: %v", code, err)
		}
	}
}

// TestO35OneRefreshForManyRequests: requests that were under way with the old
// credentials do not throw away the new ones.
func TestO35OneRefreshForManyRequests(t *testing.T) {
	noEnvCredentials(t)
	dir := t.TempDir()
	count, script := filepath.Join(dir, "count"), filepath.Join(dir, "credentials.sh")
	writeFile(t, script, "echo x >>"+count+`
echo "{\"Version\":1,\"AccessKeyId\":\"key$(wc -l <`+count+` | tr -d ' ')\",\"SecretAccessKey\":\"s\",\"SessionToken\":\"t\"}"
`)
	conf := filepath.Join(dir, "config")
	writeFile(t, conf, "[profile robot]\ncredential_process = /bin/sh "+script+"\n")
	t.Setenv("AWS_CONFIG_FILE", conf)
	f := newFake(t)
	const many = 8
	var arrived sync.WaitGroup
	arrived.Add(many)
	f.on(func(c *call) bool {
		if !strings.Contains(c.R.Header.Get("Authorization"), "Credential=key1/") {
			return false
		}
		arrived.Done()
		arrived.Wait() // all were signed with the first key
		return c.fail(400, "ExpiredToken")
	})
	b := f.open("&profile=robot", Options{})
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			key := fmt.Sprint("k", i)
			if _, err := b.Put(t.Context(), key, content(10), nil); !errors.Is(err, blob.ErrTemporary) {
				t.Errorf("put %s: %v", key, err)
			}
			if _, err := b.Put(t.Context(), key, content(10), nil); err != nil {
				t.Errorf("put %s again: %v", key, err)
			}
		})
	}
	wg.Wait()
	runs, err := os.ReadFile(count)
	if err != nil || strings.Count(string(runs), "x") != 2 {
		t.Errorf("the credential process ran %d times, %v; want 2", strings.Count(string(runs), "x"), err)
	}
}

// TestO35ProcessCredentialsExpire: those that say when they expire are renewed
// before that, without a refusal.
func TestO35ProcessCredentialsExpire(t *testing.T) {
	noEnvCredentials(t)
	dir := t.TempDir()
	script, conf := filepath.Join(dir, "credentials.sh"), filepath.Join(dir, "config")
	process := func(key string, left time.Duration) {
		writeFile(t, script, fmt.Sprintf(`echo '{"Version":1,"AccessKeyId":"%s","SecretAccessKey":"s","SessionToken":"t","Expiration":"%s"}'`,
			key, time.Now().Add(left).UTC().Format(time.RFC3339)))
	}
	process("key1", -time.Second)
	writeFile(t, conf, "[default]\ncredential_process = /bin/sh "+script+"\n")
	t.Setenv("AWS_CONFIG_FILE", conf)
	f := newFake(t)
	var keys []string
	f.on(func(c *call) bool {
		_, rest, _ := strings.Cut(c.R.Header.Get("Authorization"), "Credential=")
		key, _, _ := strings.Cut(rest, "/")
		keys = append(keys, key)
		return false
	})
	b := f.open("", Options{})
	for i, left := range []time.Duration{-time.Second, time.Hour, time.Hour} {
		process(fmt.Sprint("key", i+1), left)
		if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"key1", "key2", "key2"}; !slices.Equal(keys, want) {
		t.Errorf("signed with %q, want %q", keys, want)
	}
}

// TestO35WebIdentity: a token file that is rewritten is read again when the
// session has expired.
func TestO35WebIdentity(t *testing.T) {
	noEnvCredentials(t)
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, "first")
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		word := r.FormValue("WebIdentityToken")
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>key</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>session-%s</SessionToken><Expiration>%s</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, word, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(sts.Close)
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/trainer")
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	f := newFake(t)
	expired := false
	f.on(func(c *call) bool { return expired && token(c) == "session-first" && c.fail(400, "ExpiredToken") })
	b := f.open("", Options{})
	if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
		t.Fatal(err)
	}
	expired = true
	_, err := b.Put(t.Context(), "k", content(10), nil)
	wantClass(t, err, blob.ErrTemporary)
	writeFile(t, file, "second")
	_, err = b.Put(t.Context(), "k", content(10), nil) // it may have been resolved from the old file
	if err != nil {
		_, err = b.Put(t.Context(), "k", content(10), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestO36ClockOfThisHost: a store whose clock is an hour off refuses the first
// request, and is met by the next; also when a clock is put right in between,
// and when a request was held up for a quarter of an hour. No signature is sent
// twice.
func TestO36ClockOfThisHost(t *testing.T) {
	f := newFake(t)
	ahead := time.Hour
	signatures := map[string]int{}
	f.on(func(c *call) bool {
		signatures[c.R.Header.Get("Authorization")]++
		now := time.Now().Add(ahead)
		c.W.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		signed, err := time.Parse("20060102T150405Z", c.R.Header.Get("X-Amz-Date"))
		if err != nil || signed.Sub(now).Abs() > 15*time.Minute {
			return c.fail(403, "RequestTimeTooSkewed")
		}
		return false
	})
	b := f.open("", Options{})
	put := func(n int) error {
		_, err := b.Put(t.Context(), fmt.Sprint("k", n), content(10), nil)
		return err
	}
	for i, clock := range []time.Duration{time.Hour, 0, -16 * time.Minute, 40 * time.Minute} {
		ahead = clock
		wantClass(t, put(i), blob.ErrTemporary)
		if err := put(i); err != nil {
			t.Errorf("%v ahead: the second try fails as well: %v", clock, err)
		}
	}
	for s, n := range signatures {
		if n != 1 {
			t.Errorf("%d requests have the signature %s", n, s)
		}
	}
}

// TestO36SkewedForTwoMinutes: what the store says for two minutes surfaces
// nowhere.
func TestO36SkewedForTwoMinutes(t *testing.T) {
	f := newFake(t)
	skewed := true
	f.on(func(c *call) bool { return skewed && c.fail(403, "RequestTimeTooSkewed") })
	clock := &fakeClock{event: func(now time.Duration) { skewed = now < 2*time.Minute }}
	b := retryblob.New(f.open("", Options{}), &retryblob.Options{Tries: 20, BackOff: clock.backOff})
	if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
		t.Fatal(err)
	}
	if clock.now < 2*time.Minute {
		t.Errorf("it took %v only", clock.now)
	}
}

// TestNoCredentialsSaysWhereItLooked: with nothing configured the error names
// each place, what is missing there, and what to do.
func TestNoCredentialsSaysWhereItLooked(t *testing.T) {
	noEnvCredentials(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "only-half")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/none/credentials")
	f := newFake(t)
	_, err := f.open("", Options{}).Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	for _, says := range []string{
		"there are no credentials", "AWS_ACCESS_KEY_ID is set", "AWS_SECRET_ACCESS_KEY is not set", `the profile "default" in /none/credentials (no such file)`,
		"AWS_WEB_IDENTITY_TOKEN_FILE is not set", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not set",
		"AWS_EC2_METADATA_DISABLED is set", "or AWS_PROFILE, or give the machine a role",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error does not say %q:\n%v", says, err)
		}
	}
	if strings.Contains(err.Error(), "only-half") {
		t.Errorf("error shows what a variable holds: %v", err)
	}
	if n := len(f.ops()); n != 0 {
		t.Errorf("%d requests without credentials", n)
	}
}

// TestMetadataServiceRefuses: what the machine's metadata service answers is not
// taken for the store's answer.
func TestMetadataServiceRefuses(t *testing.T) {
	for _, status := range []int{403, 404, 400} {
		noEnvCredentials(t)
		imds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(imds.Close)
		t.Setenv("AWS_EC2_METADATA_DISABLED", "false")
		t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.URL)
		f := newFake(t)
		b := f.open("", Options{})
		_, err := b.Put(t.Context(), "k", content(10), nil)
		wantClass(t, err, blob.ErrDenied)
		if !strings.Contains(err.Error(), "there are no credentials; looked at") || strings.Contains(err.Error(), "the store answered") {
			t.Errorf("%d: error %v", status, err)
		}
		if m, decided := b.sum.state(putObject); m != crc32c || decided {
			t.Errorf("%d: the checksum is taken for refused", status)
		}
		for _, err := range b.List(t.Context(), "") {
			wantClass(t, err, blob.ErrDenied)
		}
	}
}

// TestBrokenCredentialProcess: a source that is configured and fails is what
// the error tells of.
func TestBrokenCredentialProcess(t *testing.T) {
	noEnvCredentials(t)
	conf := filepath.Join(t.TempDir(), "config")
	writeFile(t, conf, "[default]\ncredential_process = /none/such-program\n")
	t.Setenv("AWS_CONFIG_FILE", conf)
	_, err := newFake(t).open("", Options{}).Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	if !strings.Contains(err.Error(), "credential_process") || strings.Contains(err.Error(), "looked at") {
		t.Errorf("error: %v", err)
	}
}
