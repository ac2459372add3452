package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Follow is a container under supervision. It travels to the supervisor in its spec.
type Follow struct {
	Host      string    `json:"host"`
	Container string    `json:"container"`
	Since     time.Time `json:"since"` // output until then was written by an earlier supervisor
	Mark      string    `json:"mark"`  // file that keeps the time of the last output written, empty for none
	TLS       *TLS      `json:"tls,omitempty"`
	NoLogs    bool      `json:"no_logs,omitempty"` // the output is left to the daemon
}

// MarkFile is the name of the file, in a task's state folder, that keeps how far its output was written.
const MarkFile = "written"

// markFormat has one length, so that a mark is replaced in one write.
const markFormat = "2006-01-02T15:04:05.000000000Z"

// markEvery is the time of output between two marks. So much may be written twice when a supervisor is killed.
const markEvery = 100 * time.Millisecond

// ReadMark reads how far a task's output was written; the zero time when that is not known.
func ReadMark(path string) time.Time {
	body, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}
	}
	at, err := time.Parse(markFormat, string(body))
	if err != nil {
		return time.Time{}
	}
	return at
}

// Workload is a container that is started, followed and waited for.
type Workload struct {
	follow Follow
	engine *Engine
	resume bool
	tty    bool
	mark   *os.File      // nil when no mark is kept
	marked time.Time     // the last mark
	logs   chan struct{} // closed when the output has been written to its end
	cancel context.CancelFunc
}

var _ supervisor.Workload = (*Workload)(nil)

// Times of the supervisor's patience.
const (
	retryEvery  = time.Second           // between tries to reach a daemon that is being restarted
	settleEvery = 20 * time.Millisecond // for the daemon to note the end of a container whose output has ended
	oomWait     = 200 * time.Millisecond
	drainLogs   = 10 * time.Second // for the rest of the output once the container has ended
)

// NewWorkload makes the workload of a container. With resume it is not started, only taken over.
func NewWorkload(f Follow, resume bool) (*Workload, error) {
	engine, err := DialTLS(f.Host, f.TLS)
	if err != nil {
		return nil, err
	}
	w := &Workload{follow: f, engine: engine, resume: resume, logs: make(chan struct{})}
	if f.Mark != "" {
		if w.mark, err = os.OpenFile(f.Mark, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return nil, fmt.Errorf("keep how far output was written: %w", err)
		}
	}
	return w, nil
}

// Start starts the container and begins to copy its output.
func (w *Workload) Start(ctx context.Context, stdout, stderr *os.File) (supervisor.Started, error) {
	if !w.resume {
		if err := w.engine.Start(ctx, w.follow.Container); err != nil {
			return supervisor.Started{}, err
		}
	}
	state, err := w.engine.State(ctx, w.follow.Container)
	if err != nil {
		return supervisor.Started{}, err
	}
	started := supervisor.Started{Ref: w.follow.Container, At: state.StartedAt}
	if started.At.IsZero() {
		started.At = time.Now().UTC()
	}
	logCtx, cancel := context.WithCancel(ctx)
	w.cancel = cancel
	w.tty = state.TTY
	go func() {
		defer close(w.logs)
		if !w.follow.NoLogs {
			w.copyLogs(logCtx, stdout, stderr)
		}
	}()
	return started, nil
}

// Wait blocks until the container has ended, also across restarts of the daemon.
func (w *Workload) Wait(ctx context.Context) supervisor.Exit {
	defer w.cancel()
	exit := w.waitExit(ctx)
	timer := time.NewTimer(drainLogs)
	defer timer.Stop()
	select {
	case <-w.logs:
	case <-timer.C: // nobody reads the log FIFO: the end of the task does not wait for it
	}
	return exit
}

func (w *Workload) waitExit(ctx context.Context) supervisor.Exit {
	for {
		err := w.engine.WaitExit(ctx, w.follow.Container)
		state, stateErr := w.engine.State(ctx, w.follow.Container)
		switch {
		case errors.Is(err, ErrNotFound) || errors.Is(stateErr, ErrNotFound):
			return supervisor.Exit{Code: 137, Signal: 9, Err: "the container was removed by somebody else while the task ran"}
		case stateErr == nil && !state.Running:
			return ExitOf(w.lateOOM(ctx, state))
		}
		if !clock.Sleep(ctx, clock.System(), retryEvery) {
			return supervisor.Exit{Code: -1, Err: ctx.Err().Error()}
		}
	}
}

// lateOOM looks once more at a container that was killed: the daemon may learn of its end before it learns that the
// kernel killed it for want of memory.
func (w *Workload) lateOOM(ctx context.Context, s State) State {
	if s.ExitCode != 137 || s.OOMKilled || !clock.Sleep(ctx, clock.System(), oomWait) {
		return s
	}
	if again, err := w.engine.State(ctx, w.follow.Container); err == nil {
		return again
	}
	return s
}

// ExitOf reads how a container ended. The daemon reports a death by signal as 128 and the signal, as shells do.
func ExitOf(s State) supervisor.Exit {
	exit := supervisor.Exit{Code: s.ExitCode, OOMKilled: s.OOMKilled && s.ExitCode != 0}
	if s.ExitCode == 137 {
		exit.Signal = 9
	}
	if s.Error != "" && s.ExitCode != 0 {
		exit.Err = s.Error
	}
	return exit
}

// copyLogs copies the output until the container has ended. A connection that breaks is opened again behind the last
// frame that was written. The last pass begins after the end: daemons are known to end a stream that was opened
// before without the last words.
func (w *Workload) copyLogs(ctx context.Context, stdout, stderr io.Writer) {
	written := newProgress(w.follow.Since)
	for ctx.Err() == nil {
		state, err := w.engine.State(ctx, w.follow.Container)
		if errors.Is(err, ErrNotFound) {
			return
		}
		ended := err == nil && !state.Running
		broken := w.copyLogsOnce(ctx, stdout, stderr, written)
		if errors.Is(broken, ErrNoLogs) {
			return
		}
		if ended && broken == nil {
			return
		}
		wait := retryEvery
		if broken == nil {
			wait = settleEvery
		}
		if !clock.Sleep(ctx, clock.System(), wait) {
			return
		}
	}
}

func (w *Workload) copyLogsOnce(ctx context.Context, stdout, stderr io.Writer, written *progress) error {
	body, err := w.engine.Logs(ctx, w.follow.Container, written.since(time.Now()))
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // read to its end or broken
	written.again()
	next := frames(body)
	if w.tty {
		next = lines(body)
	}
	for {
		stream, content, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at, text := cutTime(content)
		if !written.isNew(stream, at, time.Now) {
			continue
		}
		out := stdout
		if stream == 2 {
			out = stderr
		}
		if _, err := out.Write(text); err != nil {
			fmt.Fprintln(os.Stderr, "write log:", err)
		}
		w.keepMark(written.last)
	}
}

// frames reads the output of a container without a terminal, piece by piece.
func frames(r io.Reader) func() (byte, []byte, error) {
	var buf []byte
	return func() (byte, []byte, error) {
		stream, content, err := readFrame(r, buf)
		buf = content[:0]
		return stream, content, err
	}
}

// lines reads the output of a container with a terminal: there is one stream, and it has no frames.
func lines(r io.Reader) func() (byte, []byte, error) {
	buffered := bufio.NewReader(r)
	return func() (byte, []byte, error) {
		line, err := buffered.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = nil
		}
		return 1, line, err
	}
}

// keepMark notes how far the output was written.
func (w *Workload) keepMark(at time.Time) {
	if w.mark == nil || at.Sub(w.marked) < markEvery {
		return
	}
	if _, err := w.mark.WriteAt([]byte(at.UTC().Format(markFormat)), 0); err != nil {
		fmt.Fprintln(os.Stderr, "keep how far output was written:", err)
	}
	w.marked = at
}
