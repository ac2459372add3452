// Package sharetest is the suite that every backend of package share must pass, over a fake machine that keeps state and
// whose tools can fail, hang or take the process with them at any call. The fakes of a maker's tools live with its backend;
// tests of what only one backend does belong there too.
package sharetest

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Tools is a machine's set of fake tools: each a function that may keep state. It runs one at a time.
type Tools struct {
	mu    sync.Mutex
	tools map[string]func(args []string) share.Output
	calls []string
}

var _ share.Tool = (*Tools)(nil)

// NewTools is a machine with these tools, by the name they are called by.
func NewTools(tools map[string]func(args []string) share.Output) *Tools { return &Tools{tools: tools} }

// Run runs a tool.
func (t *Tools) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	if err := ctx.Err(); err != nil {
		return share.Output{ExitCode: -1}, fmt.Errorf("run %s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	run, ok := t.tools[name]
	if !ok {
		return share.Output{ExitCode: -1}, missing(name)
	}
	t.calls = append(t.calls, strings.Join(append([]string{name}, args...), " "))
	return run(slices.Clone(args)), nil
}

// Look finds a tool.
func (t *Tools) Look(name string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.tools[name]; !ok {
		return "", missing(name)
	}
	return "/usr/bin/" + name, nil
}

// Calls are the command lines so far.
func (t *Tools) Calls() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.calls)
}

func missing(name string) error {
	return fmt.Errorf("run %s: %w", name, &exec.Error{Name: name, Err: exec.ErrNotFound})
}

// none is a machine without any tool.
type none struct{}

func (none) Run(_ context.Context, name string, _ ...string) (share.Output, error) {
	return share.Output{ExitCode: -1}, missing(name)
}
func (none) Look(name string) (string, error) { return "", missing(name) }
