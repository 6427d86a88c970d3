package config

import "testing"

// The address of a webhook is its password.
func TestShownSettingsHoldNoSecret(t *testing.T) {
	for in, want := range map[string]string{
		"https://hooks.example.com/T0/hunter2": "https://hooks.example.com/redacted",
		"https://u:hunter2@example.com":        "https://example.com/redacted",
		"https://example.com?key=hunter2":      "https://example.com/redacted",
		"https://example.com":                  "https://example.com",
		"/etc/ckptsync/sign.key":               "/etc/ckptsync/sign.key",
		"127.0.0.1:9464":                       "127.0.0.1:9464",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}
