// Package vendorcli runs the command line tools of card makers: with a time limit that a hanging tool cannot
// outlive, in a process group of its own, with bounded output and a fixed language. It records what they answer, and
// plays it again. What the output means belongs to the package of the vendor.
package vendorcli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// maxOutput bounds what is kept of each stream, and with it what a parser can be made to work on. The longest real
// output, a full query of 16 cards in XML, is below 0.8 MiB: 46 KiB a card.
const maxOutput = 1 << 20

// Output is what a tool printed. Many tools exit with an error while most of what they printed is right, so a status
// other than 0 is a fact here, not an error.
type Output struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run runs one tool to its end. The error says that the tool could not be started (errors.Is exec.ErrNotFound when it
// is not installed) or that ctx ended first; the tool and all it started are killed then. What was printed until
// then is returned beside the error.
func Run(ctx context.Context, name string, args ...string) (Output, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
	ownGroup(cmd)
	// A tool stuck in the kernel cannot be killed. Do not wait for it: its pipes are closed after a moment.
	cmd.WaitDelay = 200 * time.Millisecond
	stdout, stderr := &capped{}, &capped{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: -1}
	if cmd.ProcessState != nil {
		out.ExitCode = cmd.ProcessState.ExitCode()
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), ctx.Err())
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		return out, nil
	case err != nil:
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), notStarted(name, err))
	}
	return out, nil
}

// notStarted gives all that keeps a tool that is there from being started one form.
func notStarted(name string, err error) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) && !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "start", Path: name, Err: lookup.Err}
	}
	return err
}

// capped keeps the first maxOutput bytes and drops the rest, so that a tool gone wild cannot fill the memory.
type capped struct{ kept strings.Builder }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxOutput - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (c *capped) String() string { return c.kept.String() }
