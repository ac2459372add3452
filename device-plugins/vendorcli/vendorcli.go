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
	"runtime"
)

// maxOutput bounds what is kept of each stream, and with it what a parser can be made to work on. The longest real
// output, a full query of 16 cards in XML, is below 0.8 MiB: 46 KiB a card.
const maxOutput = 1 << 20

// mostPrinted is how much a tool may print on one stream before it counts as one that never ends. Reading on until its
// time is over would take a processor from the jobs at every reading.
const mostPrinted = 32 << 20

// Output is what a tool printed. Many tools exit with an error while most of what they printed is right, so a status
// other than 0 is a fact here, not an error.
type Output struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run runs one tool to its end. The error says that the tool could not be started (errors.Is exec.ErrNotFound when it
// is not installed) or that ctx ended first, also for a tool that prints without end; the tool and all it started are
// killed then. What was printed until then is returned beside the error. What a tool that ends leaves behind in its group is
// killed too.
func Run(ctx context.Context, name string, args ...string) (Output, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "LANG=C"), mark()...)
	ownGroup(cmd)
	runtime.LockOSThread() // a tool ends with the thread that started it, see endWithUs
	defer runtime.UnlockOSThread()
	out, err := printed(ctx, cmd, func() { stop(errEndless) })
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), context.Cause(ctx))
	case errors.As(err, &exit):
		return out, nil
	case err != nil:
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), notStarted(name, err))
	}
	return out, nil
}

// errEndless is of a tool that was stopped because it printed too much: it would not have ended in time.
var errEndless = fmt.Errorf("it prints without end: %w", context.DeadlineExceeded)

// printed runs a command to its end and returns what it printed. The function is called where it prints too much.
func printed(ctx context.Context, cmd *exec.Cmd, tooMuch func()) (Output, error) {
	out := Output{ExitCode: -1}
	stdout, err := newStream()
	if err != nil {
		return out, err
	}
	stderr, err := newStream()
	if err != nil {
		stdout.from.Close()
		stdout.to.Close()
		return out, err
	}
	cmd.Stdout, cmd.Stderr = stdout.to, stderr.to
	err = cmd.Start()
	stdout.to.Close()
	stderr.to.Close()
	go stdout.read(tooMuch)
	go stderr.read(tooMuch)
	if err == nil {
		endGroup(cmd.Process.Pid)
		err = cmd.Wait()
		out.ExitCode = cmd.ProcessState.ExitCode()
	}
	out.Stdout, out.Stderr = stdout.close(ctx, grace), stderr.close(ctx, grace)
	return out, err
}

// notStarted gives all that keeps a tool that is there from being started one form.
func notStarted(name string, err error) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) && !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "start", Path: name, Err: lookup.Err}
	}
	return err
}
