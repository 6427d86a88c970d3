package s3blob

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// aliases are the names that other tools have for a parameter.
var aliases = map[string]string{
	"use_path_style": "path_style", "s3ForcePathStyle": "path_style",
	"ssetype": "sse", "kmskeyid": "kms_key_id", "request_payer": "requester_pays",
}

// set takes the parameters of a store URL.
func (t *target) set(query url.Values) error {
	known := t.params()
	given := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		canonical := name
		if a, ok := aliases[name]; ok {
			canonical = a
		}
		set, ok := known[canonical]
		if !ok {
			return fmt.Errorf("unknown parameter %q; known are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if len(query[name]) != 1 {
			return fmt.Errorf("parameter %s is given %d times", name, len(query[name]))
		}
		if other := given[canonical]; other != "" {
			return fmt.Errorf("parameters %s and %s are the same: give one", other, name)
		}
		given[canonical] = name
		if err := set(query[name][0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

func text(p *string) func(string) error {
	return func(v string) error { *p = v; return nil }
}

func flag(p *bool) func(string) error {
	return func(v string) (err error) { *p, err = strconv.ParseBool(v); return err }
}

// perhaps is a flag for which "not given" is an answer too.
func perhaps(p **bool) func(string) error {
	return func(v string) error {
		b, err := strconv.ParseBool(v)
		*p = &b
		return err
	}
}

// oneOf takes the values of allowed, in their order, for what stands beside
// them.
func oneOf(p *string, allowed ...[2]string) func(string) error {
	return func(v string) error {
		var names []string
		for _, a := range allowed {
			if v == a[0] {
				*p = a[1]
				return nil
			}
			names = append(names, a[0])
		}
		return fmt.Errorf("it is %q, not one of %s", v, strings.Join(names, ", "))
	}
}

// same are values that stand for themselves.
func same[T ~string](values []T) (pairs [][2]string) {
	for _, v := range values {
		pairs = append(pairs, [2]string{string(v), string(v)})
	}
	return pairs
}

// params are the parameters of a store URL, by name.
func (t *target) params() map[string]func(string) error {
	return map[string]func(string) error{
		"region": text(&t.region), "endpoint": text(&t.endpoint), "profile": text(&t.profile),
		"path_style": perhaps(&t.pathStyle), "anonymous": flag(&t.anonymous), "disable_https": flag(&t.plainHTTP),
		"dualstack": flag(&t.dualstack), "fips": flag(&t.fips), "accelerate": flag(&t.accelerate),
		"provider": oneOf(&t.provider, same(providerNames())...),
		"sse": oneOf(&t.sse, [][2]string{
			{"AES256", "AES256"}, {"s3", "AES256"}, {"aws:kms", "aws:kms"}, {"kms", "aws:kms"}, {"aws:kms:dsse", "aws:kms:dsse"}, {"kms:dsse", "aws:kms:dsse"},
		}...),
		"kms_key_id": text(&t.kmsKey), "bucket_key": perhaps(&t.bucketKey),
		"storage_class":  t.setClass,
		"tags":           t.setTags,
		"acl":            oneOf(&t.acl, same(types.ObjectCannedACL("").Values())...),
		"requester_pays": oneOf(&t.payer, [][2]string{{"true", "requester"}, {"requester", "requester"}, {"false", ""}}...),
		"checksum":       t.setChecksum,
	}
}

// setClass refuses classes whose objects cannot be read at once: a checkpoint
// there would be committed and not restorable. Stores other than Amazon's have
// classes of their own, so the name is otherwise theirs to judge.
func (t *target) setClass(v string) error {
	word := strings.ToUpper(v)
	if word == "GLACIER" || strings.Contains(word, "ARCHIVE") {
		return fmt.Errorf("objects of the class %s cannot be read when a restore needs them", v)
	}
	t.class = v
	return nil
}

// setTags reads tags=team=ml,env=prod.
func (t *target) setTags(v string) error {
	const maxTags, maxKey, maxValue = 10, 128, 256 // of the store
	tags := url.Values{}
	for pair := range strings.SplitSeq(v, ",") {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || key == "":
			return fmt.Errorf("%q is not name=value (tags=team=ml,env=prod)", pair)
		case len([]rune(key)) > maxKey || len([]rune(value)) > maxValue:
			return fmt.Errorf("the tag %q is longer than %d characters for its name or %d for its value", pair, maxKey, maxValue)
		case tags.Has(key):
			return fmt.Errorf("the tag %q is given twice", key)
		}
		tags.Set(key, value)
	}
	if len(tags) > maxTags {
		return fmt.Errorf("%d tags are given, an object has at most %d", len(tags), maxTags)
	}
	t.tags = tags.Encode()
	return nil
}

func (t *target) setChecksum(v string) error {
	t.autoDetects = v == "auto"
	if t.autoDetects {
		t.checksum = crc32c
		return nil
	}
	for m := crc32c; m <= none; m++ {
		if m.String() == v {
			t.checksum = m
			return nil
		}
	}
	return fmt.Errorf("it is %q, not one of auto, crc32c, md5, none", v)
}

// check completes the endpoint and looks at parameters together.
func (t *target) check() error {
	if t.endpoint != "" && !strings.Contains(t.endpoint, "://") {
		scheme := "https://"
		if t.plainHTTP {
			scheme = "http://"
		}
		t.endpoint = scheme + t.endpoint
	}
	if t.endpoint != "" {
		u, err := url.Parse(t.endpoint)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return fmt.Errorf("endpoint %q is not the http or https url of a server", t.endpoint)
		}
		if t.plainHTTP && u.Scheme == "https" {
			return fmt.Errorf("disable_https does not go with the endpoint %s", t.endpoint)
		}
	}
	if t.kmsKey != "" && t.sse == "" {
		t.sse = "aws:kms"
	}
	return t.contradiction()
}

// contradiction names two parameters that exclude each other.
func (t *target) contradiction() error {
	yes := func(p *bool) bool { return p != nil && *p }
	for _, c := range []struct {
		both bool
		what string
	}{
		{t.kmsKey != "" && t.sse == "AES256", "kms_key_id does not go with sse=AES256: that encrypts with the store's own key"},
		{t.bucketKey != nil && t.sse != "aws:kms", "bucket_key goes with sse=aws:kms only"},
		{t.accelerate && yes(t.pathStyle), "accelerate does not go with path_style: the bucket is found by its host name"},
		{t.accelerate && t.fips, "accelerate does not go with fips: there is no such endpoint"},
		{t.accelerate && strings.Contains(t.bucket, "."), "accelerate does not go with a bucket that has a dot in its name"},
		{t.fips && t.plainHTTP, "fips does not go with disable_https"},
		{t.anonymous && t.payer != "", "requester_pays does not go with anonymous: the store must know who pays"},
		{t.anonymous && t.profile != "", "profile does not go with anonymous"},
		{t.anonymous && t.acl != "", "acl does not go with anonymous"},
	} {
		if c.both {
			return fmt.Errorf("%s", c.what)
		}
	}
	return t.checkEndpoint(t.endpoint)
}

// checkEndpoint refuses what only Amazon's own endpoints have. The endpoint may
// be that of the environment; "" is Amazon's.
func (t *target) checkEndpoint(endpoint string) error {
	if endpoint != "" {
		for i, set := range []bool{t.accelerate, t.fips, t.dualstack} {
			if set {
				name := []string{"accelerate", "fips", "dualstack"}[i]
				return fmt.Errorf("%s does not go with the endpoint %s: it chooses one of Amazon's", name, endpoint)
			}
		}
	}
	return nil
}

// checkClass refuses a storage class that Amazon's store at the endpoint, which
// may be that of the environment, does not have.
func (t *target) checkClass(endpoint string) error {
	p, _ := t.recognize(endpoint)
	if p.amazon && t.class != "" && !slices.Contains(types.StorageClass("").Values(), types.StorageClass(t.class)) {
		return fmt.Errorf("storage_class %s is none of Amazon's: %s", t.class, strings.Join(readable(), ", "))
	}
	return nil
}

// readable are Amazon's storage classes that setClass takes.
func readable() (names []string) {
	for _, c := range types.StorageClass("").Values() {
		if new(target).setClass(string(c)) == nil {
			names = append(names, string(c))
		}
	}
	return names
}

// recognize returns what is known of the store at an endpoint, and the region
// that its host name tells.
func (t *target) recognize(endpoint string) (provider, string) {
	p, region := providerOf(endpoint)
	if named, ok := providerNamed(t.provider); ok {
		p = named
	}
	return p, region
}
