package vendorcli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// ErrNotRecorded says that a tool is there, and that nobody called it so while it was recorded.
var ErrNotRecorded = errors.New("the recording has no such call")

// A Player runs the tools of a recorded machine. Calls that were made several times are answered in their order, and
// with the last answer from then on. Nothing is started, and a tool that did not end says so at once. It is safe for
// concurrent use.
type Player struct {
	looks map[string]string
	tools map[string]bool // programs that were called and were there

	mu    sync.Mutex
	calls map[string][]Call // by what was called; never empty
}

var _ Runner = (*Player)(nil)

// Replay returns a runner that answers as it was recorded.
func Replay(made Recording) *Player {
	p := &Player{looks: made.Looks, tools: map[string]bool{}, calls: map[string][]Call{}}
	for _, c := range made.Calls {
		if len(c.Argv) == 0 {
			continue
		}
		if c.Failure != Absent {
			p.tools[c.Argv[0]] = true
		}
		p.calls[key(c.Argv)] = append(p.calls[key(c.Argv)], c)
	}
	return p
}

func key(argv []string) string { return strings.Join(argv, "\x00") }

// Run answers as the tool did. The errors are those of the function Run, and ErrNotRecorded.
func (p *Player) Run(ctx context.Context, name string, args ...string) (Output, error) {
	out := Output{ExitCode: -1}
	if err := ctx.Err(); err != nil {
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), err)
	}
	c, ok := p.next(key(append([]string{name}, args...)))
	var err error
	switch {
	case !ok && !p.tools[name] || ok && c.Failure == Absent:
		err = exec.ErrNotFound
	case !ok:
		err = ErrNotRecorded
	default:
		out = Output{Stdout: c.Stdout, Stderr: c.Stderr, ExitCode: c.ExitCode}
		switch c.Failure {
		case NotStarted:
			err = &fs.PathError{Op: "start", Path: name, Err: errors.New(c.Why)}
		case TimeLimit:
			err = context.DeadlineExceeded
		}
	}
	if err != nil {
		return out, fmt.Errorf("run %s: %w", filepath.Base(name), err)
	}
	return out, nil
}

func (p *Player) next(key string) (Call, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.calls[key]
	if len(left) == 0 {
		return Call{}, false
	}
	if len(left) > 1 {
		p.calls[key] = left[1:]
	}
	return left[0], true
}

// Look finds a program as it was found.
func (p *Player) Look(name string) (string, error) {
	if path := p.looks[name]; path != "" {
		return path, nil
	}
	return "", fmt.Errorf("look for %s: %w", filepath.Base(name), exec.ErrNotFound)
}
