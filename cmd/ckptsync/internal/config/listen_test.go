package config

import "testing"

func TestListen(t *testing.T) {
	for in, want := range map[string]string{
		"9464": "127.0.0.1:9464", ":9464": "127.0.0.1:9464", "0": "127.0.0.1:0", "0.0.0.0:9464": "0.0.0.0:9464", "[::1]:80": "[::1]:80",
		"host:1": "host:1", "unix:/run/c.sock": "unix:/run/c.sock", "unix:c.sock": "unix:/etc/c.sock",
		"": "", "nowhere": "", ":port": "", "1:2:3": "", "host:": "", "host:70000": "", "unix:": "",
	} {
		got, err := parseListen(in, "/etc")
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v, want %q", in, got, err, want)
		}
	}
}
