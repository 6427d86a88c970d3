package s3blob

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

func TestAnswerClass(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   error
	}{
		{404, "NoSuchKey", blob.ErrNotExist},
		{404, "NoSuchUpload", blob.ErrNotExist},
		{404, "NoSuchBucket", blob.ErrDenied},
		{404, "", blob.ErrDenied},
		{404, "NotFound", blob.ErrDenied},
		{412, "PreconditionFailed", blob.ErrPrecondition},
		{412, "", blob.ErrPrecondition},
		{409, "ConditionalRequestConflict", blob.ErrTemporary},
		{409, "Whatever", blob.ErrTemporary},
		{501, "NotImplemented", blob.ErrUnsupported},
		{501, "", blob.ErrUnsupported},
		{403, "AccessDenied", blob.ErrDenied},
		{403, "", blob.ErrDenied},
		{401, "", blob.ErrDenied},
		{403, "SignatureDoesNotMatch", blob.ErrDenied},
		{403, "InvalidAccessKeyId", blob.ErrDenied},
		{400, "KMS.DisabledException", blob.ErrDenied},
		{301, "PermanentRedirect", blob.ErrDenied},
		{307, "", blob.ErrDenied},
		{400, "ExpiredToken", blob.ErrTemporary},
		{403, "ExpiredToken", blob.ErrTemporary},
		{403, "RequestTimeTooSkewed", blob.ErrTemporary},
		{503, "SlowDown", blob.ErrThrottled},
		{503, "", blob.ErrThrottled},
		{429, "", blob.ErrThrottled},
		{200, "SlowDown", blob.ErrThrottled},
		{200, "InternalError", blob.ErrTemporary},
		{500, "InternalError", blob.ErrTemporary},
		{500, "", blob.ErrTemporary},
		{502, "", blob.ErrTemporary},
		{504, "", blob.ErrTemporary},
		{400, "RequestTimeout", blob.ErrTemporary},
		{403, "InvalidObjectState", blob.ErrArchived},
		{400, "BadDigest", blob.ErrCorrupt},
		{400, "XAmzContentChecksumMismatch", blob.ErrCorrupt},
		{400, "InvalidPart", blob.ErrCorrupt},
		{400, "InvalidArgument", blob.ErrUnsupported},
		{413, "", blob.ErrUnsupported},
		{409, "ObjectParentIsFile", blob.ErrUnsupported},
	} {
		if got := (answer{status: c.status, code: c.code}).class(); got != c.want {
			t.Errorf("%d %s is %v, want %v", c.status, c.code, got, c.want)
		}
	}
}

// TestErrorsBelongToOneClass: whatever happened below, also timeouts of the
// network, which match context errors.
func TestErrorsBelongToOneClass(t *testing.T) {
	f := newFake(t)
	gone := f.open("", Options{})
	f.Close()
	_, err := gone.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrTemporary)
	var e *blob.Error
	if !errors.As(err, &e) || e.Op != "stat" || e.Key != "k" {
		t.Errorf("error %#v", err)
	}
	err = gone.fail(t.Context(), "stat", "k", fmt.Errorf("dial: %w", context.DeadlineExceeded))
	wantClass(t, err, blob.ErrTemporary)

	g := newFake(t)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	g.on(func(*call) bool { <-end; return true })
	b := g.open("", Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = b.Stat(ctx, "k")
	wantClass(t, err, context.DeadlineExceeded)
	why := errors.New("the node is going down")
	cctx, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { stop(why) })
	_, err = b.Put(cctx, "k", content(10), nil)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("error %v does not match the context and its cause", err)
	}
}

// TestUntrustedCertificate is denied, with what to do: trying again is no use.
func TestUntrustedCertificate(t *testing.T) {
	f := newFake(t)
	f.Close()
	f.Server = newTLS(f)
	t.Cleanup(f.Server.Close)
	_, err := f.open("", Options{}).Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	if !strings.Contains(err.Error(), "AWS_CA_BUNDLE") {
		t.Errorf("error %q does not say what to do", err)
	}
}

// TestNoCredentials is denied, with what to do.
func TestNoCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	f := newFake(t)
	_, err := f.open("", Options{}).Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	if !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("error %q does not say what to do", err)
	}
	if n := len(f.ops()); n != 0 {
		t.Errorf("%d requests without credentials", n)
	}
	_, err = f.open("&anonymous=true", Options{}).Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrNotExist)
}

// TestTLS: the same over https, with a certificate of one's own.
func TestTLS(t *testing.T) {
	f := newFake(t)
	f.Close()
	f.Server = newTLS(f)
	t.Cleanup(f.Server.Close)
	t.Setenv("AWS_CA_BUNDLE", certificate(t, f))
	f.on(func(c *call) bool {
		if c.R.ProtoMajor != 1 {
			t.Errorf("%s over %s, want HTTP/1.1", c.Op, c.R.Proto)
		}
		return false
	})
	b := mustOpen(t, "s3://"+fakeBucket+"/p?region=us-east-1&endpoint="+url.QueryEscape(f.URL), Options{})
	if !b.secure {
		t.Error("https is not taken for secure")
	}
	upDown(t, f, b)
	upDown(t, f, f.open("&checksum=none", Options{}))
}
