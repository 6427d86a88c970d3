package blob

import "context"

type sentKey struct{}

// OnSent returns a context for one Put or PutPart with which a driver that can
// tell calls f once the last byte of the source is on its way and only the
// store's answer is awaited. Drivers that cannot tell never call it. f must not
// block, and may be called again for another attempt.
func OnSent(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, sentKey{}, f)
}

// Sent returns what OnSent left for drivers in a context; it may be called always.
func Sent(ctx context.Context) func() {
	if f, ok := ctx.Value(sentKey{}).(func()); ok {
		return f
	}
	return func() {}
}
