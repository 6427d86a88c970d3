package config

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/nodes"
)

// Doubts says what is allowed, and may not be what was meant: Warnings, and
// combinations of settings that a person should look at once.
func (c *Config) Doubts() []string {
	out := append([]string{}, c.Warnings...)
	add := func(when bool, format string, args ...any) {
		if when {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(c.Grace > 30*time.Second, "grace %v: what ends the daemon must wait longer than that (Kubernetes: terminationGracePeriodSeconds, 30 s if not set; systemd: TimeoutStopSec; Slurm: --signal=…@)", c.Grace)
	add(c.Grace < 2*time.Second, "grace %v: hardly anything is committed in that after SIGTERM", c.Grace)
	add(c.ScanInterval > 5*time.Minute, "scan_interval %v: where the file system gives no events, a step is seen that late", c.ScanInterval)
	if rate := c.leastUp(); rate > 0 {
		add(rate*int64(c.Grace.Seconds()) < 1<<30, "bandwidth of %s/s up: within a grace of %v no more than %v is sent after SIGTERM", Size(rate), c.Grace, Size(rate*int64(c.Grace.Seconds())))
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && host != "localhost" && host != "unix" {
		ip := net.ParseIP(host)
		add(ip == nil || !ip.IsLoopback(), "listen %s: everybody who reaches this host reads it; it asks for no password", c.Listen)
	}
	if !c.Store.IsZero() {
		add(strings.HasPrefix(c.Store.Params()["endpoint"], "http://") && !loopback(c.Store.Params()["endpoint"]), "store: its endpoint is plain http, so that everybody on the way reads the data")
		add(c.Store.Dir() != "" && within(c.Store.Dir(), "/tmp"), "store: %s is lost when the host is", c.Store.Dir())
	}
	if _, err := nodes.Resolve(c.Nodes, nodes.Environment{Getenv: func(string) string { return "" }}); err != nil && c.Nodes.Nodes != nodes.Auto {
		add(c.Nodes.Nodes == "", "%v", err)
	}
	add(len(c.Runs)+len(c.Patterns) > 1 && c.Nodes != nodes.Asked{} && c.Nodes.Nodes != "1", "nodes: of every run each node saves a part")
	for _, r := range c.Runs {
		of := ""
		if r.Name != "" {
			of = "run " + r.Name + ": "
		}
		add(r.Settle != nil && *r.Settle == 0, "%ssettle 0s: a step counts as whole the moment its evidence is there", of)
		add(r.Retention.Enabled && r.Retention.Grace < time.Hour, "%sretention grace %v: a restore that takes longer may lose its step on the way", of, r.Retention.Grace)
		add(r.Retention.Enabled && r.Retention.Policy.Aside < time.Hour, "%sretention keep_abandoned %v: an upload that is interrupted for longer begins anew", of, r.Retention.Policy.Aside)
	}
	return out
}

// leastUp is the least rate that a transfer up may be held to; 0: none.
func (c *Config) leastUp() int64 {
	least := int64(0)
	for _, w := range c.Bandwidth {
		if w.Limit.Up > 0 && (least == 0 || w.Limit.Up < least) {
			least = w.Limit.Up
		}
	}
	return least
}

func loopback(endpoint string) bool {
	host := strings.TrimPrefix(endpoint, "http://")
	return strings.HasPrefix(host, "127.") || strings.HasPrefix(host, "localhost") || strings.HasPrefix(host, "[::1]")
}
