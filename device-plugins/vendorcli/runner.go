package vendorcli

import (
	"context"
	"os/exec"
)

// A Runner runs the tools of a machine: of this one, of this one while it is recorded, or of a recorded one.
type Runner interface {
	// Run is as the function Run.
	Run(ctx context.Context, name string, args ...string) (Output, error)
	// Look finds a program on PATH, or at its path. The error says that it is not there or may not be started.
	Look(name string) (string, error)
}

// Host runs the tools of this machine.
type Host struct{}

var _ Runner = Host{}

// Run runs a tool.
func (Host) Run(ctx context.Context, name string, args ...string) (Output, error) {
	return Run(ctx, name, args...)
}

// Look finds a program.
func (Host) Look(name string) (string, error) { return exec.LookPath(name) }
