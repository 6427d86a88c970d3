package main

import (
	"log/slog"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/machine"
	"github.com/ckptsync/ckptsync/sync/pagecache"
)

// beNice yields the machine to others if the configuration asks for that. A
// command that starts a trainer does it afterwards.
func beNice(cfg *config.Config, log *slog.Logger) {
	if cfg.Nice {
		machine.BeNice(log)
	}
}

// transferSettings are the settings of commands that move steps: how they treat
// the network, the store and, if they run beside a trainer, the machine.
func transferSettings(besideTrainer bool) []string {
	flags := []string{"concurrency", "memory", "bandwidth", "patience", "stall", "sign-key", "verify-key"}
	if besideTrainer {
		flags = append(flags, "nice", "drop-cache")
	}
	return flags
}

// nodeSettings say which node of a job this is.
func nodeSettings() []string { return []string{"nodes", "node", "join"} }

// dropCache is what the configuration says to drop from the page cache.
func dropCache(cfg *config.Config) pagecache.Policy {
	switch cfg.DropCache {
	case config.DropAlways:
		return pagecache.All
	case config.DropNever:
		return pagecache.Keep
	}
	return pagecache.Added
}
