//go:build !unix

package hook

import "os/exec"

func inGroup(*exec.Cmd) {}
