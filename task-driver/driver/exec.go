package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// maxExecOutput bounds what Exec keeps of each stream: it serves checks, whose output nobody reads beyond the first
// lines, and must not fill the memory.
const maxExecOutput = 4 << 20

// Exec runs a command beside the task and collects its output.
func (d *Driver) Exec(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, res *driverpb.ExitResult, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var out, errOut capped
	res, err = d.ExecStream(ctx, id, &nomadplugin.ExecStream{Command: cmd, Stdout: &out, Stderr: &errOut})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("command %q did not end within %s", cmd[0], timeout)
	}
	return out.Bytes(), errOut.Bytes(), res, err
}

// ExecStream runs an interactive command beside the task.
func (d *Driver) ExecStream(ctx context.Context, id string, s *nomadplugin.ExecStream) (*driverpb.ExitResult, error) {
	t, err := d.asked(id)
	if err != nil {
		return nil, err
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return nil, errors.New("exec has no command")
	}
	if t.hasEnded() {
		return nil, errors.New("the task has ended, nothing can be run in it")
	}
	return t.runtime.exec(ctx, t, s)
}

// capped keeps the first bytes of what is written and drops the rest.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxExecOutput - c.Len(); room > 0 {
		c.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// sizesOf hands on the sizes of a terminal, in a runtime's own words, until ctx ends. It is nil without a terminal.
func sizesOf[Size any](ctx context.Context, s *nomadplugin.ExecStream, as func(nomadplugin.TerminalSize) Size) <-chan Size {
	if !s.TTY || s.Resize == nil {
		return nil
	}
	sizes := make(chan Size)
	go func() {
		defer close(sizes)
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-s.Resize:
				if !ok {
					return
				}
				select {
				case <-ctx.Done():
					return
				case sizes <- as(size):
				}
			}
		}
	}()
	return sizes
}
