package vendorcli

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"sync"
	"time"
)

// A Failure says why a tool has no exit status.
type Failure string

// The failures of calls.
const (
	Absent     Failure = "absent"      // no such program
	NotStarted Failure = "not_started" // it is there and cannot be started, see Call.Why
	TimeLimit  Failure = "time_limit"  // it did not end in time
)

// Call is one call of a tool and what became of it.
type Call struct {
	Argv     []string      // the name or path as it was called, and its arguments
	ExitCode int           // -1 where Failure is set
	Failure  Failure       // empty when the tool ended
	Why      string        // of NotStarted
	Took     time.Duration // wall time
	Stdout   string
	Stderr   string
}

// Recording is what was asked of a Runner, in the order in which it was asked.
type Recording struct {
	Calls []Call
	Looks map[string]string // program looked for → its path; empty when it was not found
	// Dropped is how many calls were left out because there were too many.
	Dropped int
}

const (
	mostCalls = 2000     // of one recording: a node of 16 cards and a dozen tools makes some 200
	mostBytes = 64 << 20 // of all output in one recording
)

// A Recorder notes what is asked of a Runner. It is safe for concurrent use.
type Recorder struct {
	runner Runner

	mu   sync.Mutex
	made Recording
	size int
}

var _ Runner = (*Recorder)(nil)

// Record returns a recorder of what is asked of a runner through it.
func Record(r Runner) *Recorder {
	return &Recorder{runner: r, made: Recording{Looks: map[string]string{}}}
}

// Run runs a tool and notes it. A call that never returns is noted as one that did not end in time.
func (r *Recorder) Run(ctx context.Context, name string, args ...string) (Output, error) {
	began := time.Now()
	at := r.begin(Call{Argv: append([]string{name}, args...), ExitCode: -1, Failure: TimeLimit})
	out, err := r.runner.Run(ctx, name, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if at < 0 {
		return out, err
	}
	c := &r.made.Calls[at]
	c.Took, c.ExitCode = time.Since(began), out.ExitCode
	c.Failure, c.Why = failure(err)
	if c.Failure != "" {
		c.ExitCode = -1
	}
	c.Stdout, c.Stderr = r.room(out.Stdout), r.room(out.Stderr)
	return out, err
}

func (r *Recorder) begin(c Call) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.made.Calls) >= mostCalls {
		r.made.Dropped++
		return -1
	}
	r.made.Calls = append(r.made.Calls, c)
	return len(r.made.Calls) - 1
}

// room is as much of a text as is still to be kept. The caller holds mu.
func (r *Recorder) room(text string) string {
	text = text[:min(len(text), mostBytes-r.size)]
	r.size += len(text)
	return text
}

func failure(err error) (Failure, string) {
	var start *fs.PathError
	switch {
	case err == nil:
		return "", ""
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return Absent, ""
	case errors.As(err, &start):
		return NotStarted, start.Err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return TimeLimit, ""
	}
	return NotStarted, err.Error()
}

// Look finds a program and notes it.
func (r *Recorder) Look(name string) (string, error) {
	path, err := r.runner.Look(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		path = ""
	}
	if len(r.made.Looks) < mostCalls {
		r.made.Looks[name] = path
	}
	return path, err
}

// Recording is what was noted until now.
func (r *Recorder) Recording() Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := Recording{Calls: append([]Call{}, r.made.Calls...), Looks: map[string]string{}, Dropped: r.made.Dropped}
	for name, path := range r.made.Looks {
		made.Looks[name] = path
	}
	return made
}
