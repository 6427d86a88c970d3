package config

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/hook"
)

type fileHook struct {
	Events      []string             `yaml:"events"`
	Command     []string             `yaml:"command"`
	Webhook     string               `yaml:"webhook"`
	WebhookFrom fileValue            `yaml:"webhook_from"`
	Headers     map[string]fileValue `yaml:"headers"`
	File        string               `yaml:"file"`
	Timeout     *Duration            `yaml:"timeout"`
}

// fileValue says where a secret is.
type fileValue struct {
	Env  string `yaml:"env"`
	File string `yaml:"file"`
}

// hooks takes over and checks the hooks.
func (l *loader) hooks() (out []hook.Spec) {
	for i, f := range l.raw.Hooks {
		key := fmt.Sprintf("hooks[%d]", i)
		s := hook.Spec{Events: f.Events, Command: f.Command, Webhook: hook.Value{Text: f.Webhook}, Header: map[string]hook.Value{}}
		l.checkEvents(f.Events, key)
		if f.WebhookFrom != (fileValue{}) {
			s.Webhook = l.secret(f.WebhookFrom, key+".webhook_from")
		}
		l.checkWebhook(f, key)
		for name, v := range f.Headers {
			at := key + ".headers." + name
			if v == (fileValue{}) {
				l.ps.add(l.at(at, key), "hooks: header %s has neither env nor file", name)
			}
			s.Header[http.CanonicalHeaderKey(name)] = l.secret(v, at)
		}
		if f.File != "" {
			var err error
			if s.File, err = absolute(l.base(key), f.File); err != nil {
				l.ps.add(l.at(key+".file"), "hooks: file: %v", err)
			}
		}
		if f.Timeout != nil {
			s.Timeout = time.Duration(*f.Timeout)
			if s.Timeout < time.Second {
				l.ps.add(l.at(key+".timeout"), "hooks: timeout: %v is less than 1s", s.Timeout)
			}
		}
		out = append(out, s)
	}
	return out
}

func (l *loader) checkEvents(events []string, key string) {
	for _, e := range events {
		if !slices.Contains(hook.Names(), e) {
			l.ps.add(l.at(key+".events", key), "hooks: there is no event %q; there are %s", e, strings.Join(hook.Names(), ", "))
		}
	}
}

// checkWebhook checks that a hook does one thing, and the webhook's URL.
func (l *loader) checkWebhook(f fileHook, key string) {
	kinds := 0
	for _, is := range []bool{len(f.Command) > 0, f.Webhook != "" || f.WebhookFrom != (fileValue{}), f.File != ""} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		l.ps.add(l.at(key), "hooks: entry needs exactly one of command, webhook (or webhook_from) and file")
	case len(f.Command) > 0 && f.Command[0] == "":
		l.ps.add(l.at(key+".command", key), "hooks: command: the program is empty")
	case f.Webhook != "" && f.WebhookFrom != (fileValue{}):
		l.ps.add(l.at(key+".webhook", key), "hooks: webhook and webhook_from cannot stand together")
	}
	if len(f.Headers) > 0 && f.Webhook == "" && f.WebhookFrom == (fileValue{}) {
		l.ps.add(l.at(key+".headers", key), "hooks: headers are for a webhook")
	}
	if f.Webhook == "" {
		return
	}
	u, err := url.Parse(f.Webhook)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		l.ps.add(l.at(key+".webhook"), "hooks: webhook: it is not http://host/path or https://host/path")
	case u.User != nil:
		l.ps.add(l.at(key+".webhook"), "hooks: webhook: it holds a password; give the whole URL by webhook_from, or a header by headers")
	}
}

// secret is where a secret is.
func (l *loader) secret(f fileValue, key string) hook.Value {
	v := hook.Value{Env: f.Env}
	if f.Env != "" && f.File != "" {
		l.ps.add(l.at(key), "hooks: env and file cannot stand together")
	}
	if f.File != "" {
		var err error
		if v.File, err = absolute(l.base(key), f.File); err != nil {
			l.ps.add(l.at(key), "hooks: file: %v", err)
		}
	}
	return v
}
