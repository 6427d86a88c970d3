package config

import (
	"net/url"

	"github.com/ckptsync/ckptsync/sync/notice"
)

// checkTrainer takes over and checks by what a trainer is known to have ended.
func (l *loader) checkTrainer(cfg *Config) {
	cfg.UntilPID = l.raw.UntilPID
	if _, given := l.where("until_pid"); given && cfg.UntilPID < 1 {
		l.ps.add(l.at("until_pid"), "until_pid: %d is not the number of a process", cfg.UntilPID)
	}
	if l.raw.UntilFile == "" {
		return
	}
	var err error
	if cfg.UntilFile, err = absolute(l.base("until_file"), l.raw.UntilFile); err != nil {
		l.ps.add(l.at("until_file"), "until_file: %v", err)
	}
}

// checkNotices takes over and checks whom to ask about the machine's end.
func (l *loader) checkNotices(cfg *Config) {
	cfg.Notices, cfg.NoticesEndpoint = l.raw.Notices, l.raw.NoticesEndpoint
	if cfg.Notices == "off" {
		cfg.Notices = ""
	}
	if cfg.Notices != "" {
		if err := notice.Check(cfg.Notices); err != nil {
			l.ps.add(l.at("notices"), "notices: %v, off", err)
		}
	}
	if cfg.NoticesEndpoint == "" {
		return
	}
	if u, err := url.Parse(cfg.NoticesEndpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		l.ps.add(l.at("notices_endpoint"), "notices_endpoint: %q is not http://host:port", cfg.NoticesEndpoint)
	}
}
