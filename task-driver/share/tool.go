package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Exec runs the tools of this machine. A tool dies with the driver: one that went on alone would make something that nobody
// waits for, after the next process has looked. A daemon that a tool leaves behind lives on.
type Exec struct{}

var _ Tool = Exec{}

// maxOutput bounds what is kept of each stream of a tool.
const maxOutput = 1 << 20

// Run runs a tool in a process group of its own; the whole group is killed when ctx ends.
func (Exec) Run(ctx context.Context, name string, args ...string) (Output, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
	cmd.WaitDelay = 200 * time.Millisecond // a tool stuck in the kernel cannot be killed: it is not waited for
	stdout, stderr := &capped{}, &capped{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := runBound(cmd)
	out := Output{Stdout: stdout.kept.String(), Stderr: stderr.kept.String(), ExitCode: -1}
	if cmd.ProcessState != nil {
		out.ExitCode = cmd.ProcessState.ExitCode()
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), ctx.Err())
	case err == nil, errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		return out, nil
	}
	return out, fmt.Errorf("run %s: %w", filepath.Base(name), err)
}

// Look finds a program.
func (Exec) Look(name string) (string, error) { return exec.LookPath(name) }

// capped keeps the first maxOutput bytes, so that a tool gone wild cannot fill the memory.
type capped struct{ kept strings.Builder }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxOutput - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
