package blob

import (
	"context"
	"net/http"
	"strconv"
	"strings"
)

// This file holds what drivers of stores that speak HTTP have in common, and
// what decorators do with every call of an upload.

// HTTPClass is the class of an answer of which nothing but its status is known.
// A 404 that does not say what is missing is no proof that an object is absent,
// and a redirect leads to another place than was named: both are ErrDenied.
func HTTPClass(status int) error {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound, status >= 300 && status < 400:
		return ErrDenied
	case status == http.StatusPreconditionFailed:
		return ErrPrecondition
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return ErrThrottled
	case status == http.StatusConflict, status == http.StatusRequestTimeout:
		return ErrTemporary
	case status == http.StatusNotImplemented, status >= 400 && status < 500:
		return ErrUnsupported
	}
	return ErrTemporary
}

// ContentRange is the header of that name: the bytes from First to Last, that
// one included, of Total.
type ContentRange struct{ First, Last, Total int64 }

// ParseContentRange reads "bytes 0-9/100". False: it is no such thing, or the
// range is not within the total.
func ParseContentRange(s string) (r ContentRange, ok bool) {
	span, total, ok1 := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	first, last, ok2 := strings.Cut(span, "-")
	if !ok1 || !ok2 {
		return r, false
	}
	for _, f := range []struct {
		text string
		to   *int64
	}{{first, &r.First}, {last, &r.Last}, {total, &r.Total}} {
		v, err := strconv.ParseUint(f.text, 10, 63)
		if err != nil {
			return r, false
		}
		*f.to = int64(v)
	}
	return r, r.First <= r.Last && r.Last < r.Total
}

// WrapUpload returns an upload under key whose every call of the store goes
// through do, with the name of the operation, for decorators.
func WrapUpload(inner Upload, key string, do func(ctx context.Context, op, key string, call func() error) error) Upload {
	return &wrappedUpload{inner, key, do}
}

type wrappedUpload struct {
	inner Upload
	key   string
	do    func(ctx context.Context, op, key string, call func() error) error
}

// ID implements Upload.
func (u *wrappedUpload) ID() string { return u.inner.ID() }

// PutPart implements Upload.
func (u *wrappedUpload) PutPart(ctx context.Context, n int, src Source, crc32c uint32) (p Part, err error) {
	err = u.do(ctx, "put part", u.key, func() (err error) {
		p, err = u.inner.PutPart(ctx, n, src, crc32c)
		return err
	})
	return p, err
}

// Parts implements Upload.
func (u *wrappedUpload) Parts(ctx context.Context) (parts []Part, err error) {
	err = u.do(ctx, "list parts", u.key, func() (err error) {
		parts, err = u.inner.Parts(ctx)
		return err
	})
	return parts, err
}

// Complete implements Upload.
func (u *wrappedUpload) Complete(ctx context.Context, parts []Part) (info Info, err error) {
	err = u.do(ctx, "complete", u.key, func() (err error) {
		info, err = u.inner.Complete(ctx, parts)
		return err
	})
	return info, err
}

// Abort implements Upload.
func (u *wrappedUpload) Abort(ctx context.Context) error {
	return u.do(ctx, "abort", u.key, func() error { return u.inner.Abort(ctx) })
}
