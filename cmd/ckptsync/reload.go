package main

import (
	"context"
	"strings"
)

// reload reads the configuration again and applies it. One that is wrong
// changes nothing.
func (s *server) reload(ctx context.Context) {
	next, err := s.reread()
	if err != nil {
		s.log.Error("the configuration was not read again, and stays what it was", "err", err)
		return
	}
	warn(next, s.log)
	kept, reopen := next.Reload(s.cfg)
	if reopen {
		o, err := s.openEngines(ctx, next, nil, s.log)
		if err != nil {
			s.log.Error("the configuration was not read again, and stays what it was", "err", err)
			return
		}
		o.bars = s.store.bars
		s.old, s.store = append(s.old, s.store), o
	}
	if len(kept) > 0 {
		s.log.Warn("these settings need a restart, and stay what they were", "settings", strings.Join(kept, ", "))
	}
	s.level.Set(next.Log.Level)
	s.cfg = next
	s.log.Info("configuration read again", "file", next.File)
	s.look(ctx)
}
