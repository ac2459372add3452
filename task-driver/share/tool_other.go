//go:build !linux

package share

import "os/exec"

// runBound runs a command. Nothing is shared but on Linux.
func runBound(cmd *exec.Cmd) (Output, error) {
	var stdout, stderr capped
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: -1}
	if cmd.ProcessState != nil {
		out.ExitCode = cmd.ProcessState.ExitCode()
	}
	return out, err
}
