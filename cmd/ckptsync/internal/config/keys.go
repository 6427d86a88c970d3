package config

import (
	"fmt"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// VerifyKey is a minisign public key that restores trust: the key itself, or
// the absolute path of its file.
type VerifyKey struct {
	Key  *commit.PublicKey
	File string // if Key is nil
}

// settleKeys reads which keys markers are signed and verified with. Files are
// read by the commands that need them.
func (l *loader) settleKeys(cfg *Config) {
	var err error
	if cfg.SignKey = l.raw.SignKey; cfg.SignKey != "" {
		if cfg.SignKey, err = absolute(l.base("sign_key"), cfg.SignKey); err != nil {
			l.ps.add(l.at("sign_key"), "sign_key: %v", err)
		}
	}
	for i, text := range l.raw.VerifyKeys {
		at := l.at("verify_key", fmt.Sprintf("verify_key[%d]", i))
		text = strings.TrimSpace(text)
		if text == "" {
			l.ps.add(at, "verify_key: one is empty")
			continue
		}
		if k, err := commit.ParsePublicKey(text); err == nil {
			cfg.VerifyKeys = append(cfg.VerifyKeys, VerifyKey{Key: &k})
			continue
		}
		path, err := absolute(l.base("verify_key"), text)
		if err != nil {
			l.ps.add(at, "verify_key: %v", err)
			continue
		}
		cfg.VerifyKeys = append(cfg.VerifyKeys, VerifyKey{File: path})
	}
}
