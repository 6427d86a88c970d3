package config

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
