package sharetest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// fault is what happens at one call of a tool.
type fault string

const (
	failBefore fault = "the tool fails and does nothing"
	failAfter  fault = "the tool does it and fails"
	hangBefore fault = "the tool hangs and does nothing"
	hangAfter  fault = "the tool does it and hangs"
	breaks     fault = "the tool fails from then on"
	lies       fault = "the tool says nothing, does nothing and ends well"
	stale      fault = "the tool says again what it said before and does nothing"
	dieBefore  fault = "the process dies before the tool is called"
	dieAfter   fault = "the process dies after the tool was called"
)

func (f fault) dies() bool { return f == dieBefore || f == dieAfter }

// faulty lets a fault happen at one call, counted from 1; events count as calls, since the process may die there too.
type faulty struct {
	tool share.Tool
	at   int
	kind fault

	mu    sync.Mutex
	n     int
	fired bool
	said  map[string]share.Output // the last answer to each call
	dead  chan struct{}           // closed when the process has died
	hung  chan struct{}           // closed when the tool hangs
}

var _ share.Tool = (*faulty)(nil)

func newFaulty(tool share.Tool, at int, kind fault) *faulty {
	return &faulty{tool: tool, at: at, kind: kind, said: map[string]share.Output{}, dead: make(chan struct{}), hung: make(chan struct{})}
}

// next counts a call and tells what happens at it.
func (f *faulty) next() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if f.n == f.at || f.kind == breaks && f.at > 0 && f.n > f.at {
		f.fired = true
		return f.kind
	}
	return ""
}

// happened reports whether the call was reached.
func (f *faulty) happened() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// die stops the caller for ever, as a killed process does: nothing deferred runs.
func (f *faulty) die() {
	close(f.dead)
	select {}
}

func (f *faulty) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	failed := share.Output{Stderr: name + ": internal error", ExitCode: 255}
	call := name + " " + strings.Join(args, " ")
	switch kind := f.next(); kind {
	case failBefore, breaks:
		return failed, nil
	case lies, stale:
		out := share.Output{}
		if kind == stale {
			f.mu.Lock()
			defer f.mu.Unlock()
			out = f.said[call]
		}
		return out, nil
	case failAfter:
		_, err := f.tool.Run(ctx, name, args...)
		return failed, err
	case hangBefore, hangAfter:
		if kind == hangAfter {
			if _, err := f.tool.Run(ctx, name, args...); err != nil {
				return failed, err
			}
		}
		close(f.hung)
		<-ctx.Done()
		return share.Output{ExitCode: -1}, fmt.Errorf("run %s: %w", name, ctx.Err())
	case dieBefore:
		f.die()
	case dieAfter:
		if _, err := f.tool.Run(ctx, name, args...); err == nil {
			f.die()
		}
	}
	out, err := f.tool.Run(ctx, name, args...)
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.said[call] = out
	}
	return out, err
}

func (f *faulty) Look(name string) (string, error) { return f.tool.Look(name) }

// event is what a backend tells its texts to.
func (f *faulty) event(string) {
	f.mu.Lock()
	die := f.kind.dies() && f.n+1 == f.at
	if f.kind.dies() {
		f.n++
		f.fired = f.fired || die
	}
	f.mu.Unlock()
	if die {
		f.die()
	}
}
