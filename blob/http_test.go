package blob

import (
	"errors"
	"testing"
)

func TestHTTPClass(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{
		401: ErrDenied, 403: ErrDenied, 404: ErrDenied, 301: ErrDenied, 307: ErrDenied, 412: ErrPrecondition, 429: ErrThrottled, 503: ErrThrottled,
		408: ErrTemporary, 409: ErrTemporary, 500: ErrTemporary, 502: ErrTemporary, 504: ErrTemporary, 200: ErrTemporary, 400: ErrUnsupported,
		405: ErrUnsupported, 501: ErrUnsupported,
	} {
		if got := HTTPClass(status); !errors.Is(got, want) {
			t.Errorf("%d is %v, want %v", status, got, want)
		}
	}
}

func TestParseContentRange(t *testing.T) {
	t.Parallel()
	if r, ok := ParseContentRange("bytes 3-9/100"); !ok || r != (ContentRange{3, 9, 100}) {
		t.Error(r, ok)
	}
	for _, s := range []string{"", "bytes 3-9", "bytes */100", "bytes 9-3/100", "bytes 3-100/100", "bytes -3-9/100", "bytes 3-9/*", "bytes 3-9/9223372036854775808"} {
		if r, ok := ParseContentRange(s); ok {
			t.Errorf("%q is %v", s, r)
		}
	}
}
