// Command screenshots makes the pictures of the README: what commands print on a
// terminal with colours, and the status page. It runs the real program on what
// the demo's trainer saves, with a real S3 server, in a file system and under a
// host name of its own (namespaces of Linux), so that paths and names are those
// of the README on any machine. It takes about three minutes, and needs
// chromium.
//
//	go run ./test/screenshots                 # all, into .docs
//	go run ./test/screenshots -only status    # of the status page and command alone
//
// It fails where a line does not fit the terminal that it is drawn as. How they
// look is for a person to judge, on light and dark: see -light.
package main
