//go:build !linux || !amd64

package main

import "os"

func main() {
	os.Stderr.WriteString("faults: it watches the calls of a program, which it can do on linux/amd64 alone\n")
	os.Exit(1)
}
