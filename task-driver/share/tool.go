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

// stuckAfter is how long a tool that was killed may take to end. One that does not is stuck in the kernel, where no signal
// reaches it; it is not waited for.
const stuckAfter = time.Second

// Run runs a tool in a process group of its own; the whole group is killed when ctx ends.
func (Exec) Run(ctx context.Context, name string, args ...string) (Output, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
	type result struct {
		out Output
		err error
	}
	ended := make(chan result, 1)
	go func() {
		out, err := runBound(cmd)
		ended <- result{out, err}
	}()
	r := result{out: Output{ExitCode: -1}}
	select {
	case r = <-ended:
	case <-ctx.Done():
		select {
		case r = <-ended:
		case <-time.After(stuckAfter):
		}
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r.out, fmt.Errorf("run %s: %w", filepath.Base(name), ctx.Err())
	case r.err != nil && !errors.As(r.err, &exit):
		return r.out, fmt.Errorf("run %s: %w", filepath.Base(name), r.err)
	}
	return r.out, nil
}

// Look finds a program.
func (Exec) Look(name string) (string, error) { return exec.LookPath(name) }

// capped keeps the first maxOutput bytes, so that a tool gone wild cannot fill the memory.
type capped struct{ kept strings.Builder }

func (c *capped) String() string { return c.kept.String() }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxOutput - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
