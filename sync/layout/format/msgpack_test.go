package format_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// msgpackSample has one value of each kind that MessagePack knows.
var msgpackSample = []byte("\x8e" + // a map of 14 pairs
	"\xa3opt\x80" + "\xd9\x01b\x90" + "\xda\x00\x01c\xc0" + "\xdb\x00\x00\x00\x01d\xc3" +
	"\x07\xc2" + "\xa1e\xc4\x02xy" + "\xa1f\xc5\x00\x01x" + "\xa1g\xc6\x00\x00\x00\x01x" +
	"\xa1h\xc7\x02\x01xy" + "\xa1i\xd5\x01xy" + "\xa1j\x93\xca\x00\x00\x00\x00\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xff" +
	"\xa1k\xdc\x00\x04\xcc\x00\xcd\x00\x00\xce\x00\x00\x00\x00\xcf\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\xa1l\xdd\x00\x00\x00\x04\xd0\x00\xd1\x00\x00\xd2\x00\x00\x00\x00\xd3\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\xa1m\xde\x00\x01\xa1n\xdf\x00\x00\x00\x01\xa1o\xc8\x00\x01\x02z")

func TestMsgpackKeys(t *testing.T) {
	var keys []string
	if err := format.MsgpackKeys(bytes.NewReader(msgpackSample), int64(len(msgpackSample)), func(k string) { keys = append(keys, k) }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("opt b c d e f g h i j k l m n o", strings.Join(keys, " ")); d != "" {
		t.Error(d)
	}
	for n := range msgpackSample {
		if err := format.MsgpackKeys(bytes.NewReader(msgpackSample[:n]), int64(n), nil); err == nil {
			t.Errorf("whole with %d of %d bytes", n, len(msgpackSample))
		}
	}
	for want, text := range map[string]string{
		"has 1 bytes after its end":             "\x80\x80",
		"no known type at byte 1":               "\x91\xc1",
		"ends in the middle of a value":         "\xdf\xff\xff\xff\xff\xa1a\x01",
		"a pickle that is too large to look at": strings.Repeat("\x91", 1000),
	} {
		if err := format.MsgpackKeys(strings.NewReader(text), int64(len(text)), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func FuzzMsgpackKeys(f *testing.F) {
	f.Add(msgpackSample)
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = format.MsgpackKeys(bytes.NewReader(data), int64(len(data)), func(string) {})
	})
}
