package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/sync/notice"
)

// watchNotices asks the cloud, if that is configured, whether this machine is to
// be taken away, and calls hurry when it is. stop ends that. A notice ends
// nothing: the trainer may still save, and whoever takes the machine away sends
// a signal.
func watchNotices(ctx context.Context, cfg *config.Config, log *slog.Logger, hurry func()) (stop func()) {
	if cfg.Notices == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var g sync.WaitGroup
	g.Go(func() {
		o := notice.Options{Cloud: cfg.Notices, Endpoint: cfg.NoticesEndpoint, Log: log}
		err := notice.Watch(ctx, o, func(n notice.Notice) {
			args := []any{"cloud", n.Cloud, "notice", n.Kind}
			if !n.At.IsZero() {
				args = append(args, "not_before", n.At.UTC().Format(time.RFC3339), "left", time.Until(n.At).Round(time.Second).String())
			}
			if n.Advice {
				log.Warn("the cloud may take this machine away, or pause it", args...)
				return
			}
			log.Warn("this machine is to be taken away: what is complete is committed at once, newest first", args...)
			hurry()
		})
		if err != nil && ctx.Err() == nil {
			log.Warn("no notices of the cloud", "err", err)
		}
	})
	return func() { cancel(); g.Wait() }
}
