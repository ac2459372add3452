//go:build !linux

package share

import "os/exec"

func runBound(cmd *exec.Cmd) error { return cmd.Run() }
