package config

import (
	"fmt"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Encrypts reports whether runs that are begun are encrypted, and those that are
// can be read.
func (c *Config) Encrypts() bool { return c.AgeIdentity != "" }

// Content is how many bytes of file content may be in memory at once, of Memory: as
// many again are in memory encrypted, if they are.
func (c *Config) Content() int64 {
	if c.Encrypts() {
		return int64(c.Memory) / 2
	}
	return int64(c.Memory)
}

// settleEncryption reads what runs are encrypted with. The file is read by the
// commands that need it.
func (l *loader) settleEncryption(cfg *Config) {
	const identity, recipient = "age_identity", "age_recipient"
	f := &l.raw
	if strings.Contains(strings.ToUpper(f.AgeIdentity), "AGE-SECRET-KEY-") {
		l.ps.add(l.at(identity), "%s: it is the key itself; put that into a file that only who may read the run can read, and name the file", identity)
		return
	}
	if f.AgeIdentity != "" {
		path, err := absolute(l.base(identity), f.AgeIdentity)
		if err != nil {
			l.ps.add(l.at(identity), "%s: %v", identity, err)
			return
		}
		cfg.AgeIdentity = path
	} else if len(f.AgeRecipients) > 0 {
		l.ps.add(l.at(recipient), "%s: without an identity this node could not read what it writes; give %s too", recipient, identity)
	}
	for i, text := range f.AgeRecipients {
		r, err := commit.ParseRecipient(text)
		if err != nil {
			l.ps.add(l.at(recipient, fmt.Sprintf("%s[%d]", recipient, i)), "%s: %v", recipient, err)
			continue
		}
		cfg.AgeRecipients = append(cfg.AgeRecipients, r)
	}
}
