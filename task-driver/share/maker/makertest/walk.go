// Package makertest walks a backend through random starts, ends, faults and deaths, and holds it to what must be true at every
// step. The fixed cases of one fault at every call are sharetest's.
package makertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// Walk says what is walked through.
type Walk struct {
	// Machine makes a fresh machine, the root of whose file system is given; sharetest says what is in it.
	Machine func(t *rapid.T, root string) sharetest.Machine
	New     func(h share.Host) share.Backend
	// Asks are those that come and go, more of them than fit at once. Two of one ID are one task in other sizes.
	Asks []share.Ask
}

// errFault is what a tool says at a fault.
var errFault = errors.New("fault of the walk")

// crash is thrown where a process dies.
type crash struct{}

// faulty is a tool that at one call fails, before or after it did what it was asked, or at which the process dies.
type faulty struct {
	share.Tool
	in   int // calls until the fault; below 0: never
	kind string
}

func (f *faulty) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	f.in--
	if f.in != 0 {
		return f.Tool.Run(ctx, name, args...)
	}
	switch f.kind {
	case "fails":
		return share.Output{ExitCode: 255}, nil
	case "is gone":
		return share.Output{ExitCode: -1}, errFault
	case "dies before":
		panic(crash{})
	}
	out, err := f.Tool.Run(ctx, name, args...)
	if f.kind == "dies after" {
		panic(crash{})
	}
	if err != nil {
		return out, err
	}
	return share.Output{ExitCode: 255}, nil
}

// Run walks. Two tasks never have one node or are shown as one thing; what a setup said stays so until the task has ended; at
// the end, when nobody lives, the machine is as it was.
func Run(t *testing.T, w Walk) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		m := w.Machine(rt, t.TempDir())
		before := m.Things()
		s := &state{w: w, m: m, held: map[share.ID]share.Setup{}, asks: map[share.ID]share.Ask{}}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			s.step(rt)
		}
		if err := s.process(nil).Reconcile(context.Background(), nil); err != nil {
			rt.Fatalf("reconcile at the end: %v", err)
		}
		if diff := cmp.Diff(sorted(before), sorted(m.Things()), cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("things on the machine at the end (-before +after):\n%s", diff)
		}
	})
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// state is what the tasks know.
type state struct {
	w    Walk
	m    sharetest.Machine
	held map[share.ID]share.Setup
	asks map[share.ID]share.Ask
}

func (s *state) process(tool share.Tool) share.Backend {
	if tool == nil {
		tool = s.m.Tool
	}
	return s.w.New(share.Host{Tool: tool, Root: s.m.Root, Dir: "/var/lib/heteroflow/shares"})
}

func (s *state) step(rt *rapid.T) {
	tool := &faulty{Tool: s.m.Tool, in: -1}
	if rapid.Bool().Draw(rt, "fault") {
		tool.in = rapid.IntRange(1, 8).Draw(rt, "at")
		tool.kind = rapid.SampledFrom([]string{"fails", "does it and fails", "is gone", "dies before", "dies after"}).Draw(rt, "kind")
	}
	b := s.process(tool)
	a := rapid.SampledFrom(s.w.Asks).Draw(rt, "ask")
	switch rapid.IntRange(0, 4).Draw(rt, "what") {
	case 0, 1, 2:
		s.prepare(rt, b, a)
	case 3:
		delete(s.held, a.ID) // the task has ended, whatever the release says
		delete(s.asks, a.ID)
		_ = attempt(func() error { return b.Release(context.Background(), a.ID) })
	case 4:
		_ = attempt(func() error { return b.Reconcile(context.Background(), s.asks) })
	}
	for id, a := range s.asks {
		s.still(rt, id, a)
	}
}

// attempt runs a step of a process that may die in it.
func attempt(step func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, died := p.(crash); !died {
				panic(p)
			}
			err = errFault
		}
	}()
	return step()
}

func (s *state) prepare(rt *rapid.T, b share.Backend, a share.Ask) {
	var setup share.Setup
	err := attempt(func() (err error) {
		setup, err = b.Prepare(context.Background(), a, func(string) {})
		return err
	})
	if err != nil {
		// The task does not start; what it may have had under this ID is not its own any more.
		delete(s.held, a.ID)
		delete(s.asks, a.ID)
		return
	}
	for id, other := range s.held {
		if id == a.ID {
			continue
		}
		for _, node := range setup.Nodes {
			if slices.Contains(other.Nodes, node) {
				rt.Fatalf("node %s is of %s and of %s", node, id, a.ID)
			}
		}
		if setup.Visible != "" && setup.Visible == other.Visible {
			rt.Fatalf("%s is shown to %s and to %s", setup.Visible, id, a.ID)
		}
	}
	s.held[a.ID], s.asks[a.ID] = setup, a
}

// still asks a healthy process for the setup of a task that runs.
func (s *state) still(rt *rapid.T, id share.ID, a share.Ask) {
	now, err := s.process(nil).Prepare(context.Background(), a, func(string) {})
	if err != nil {
		rt.Fatalf("%s runs and its share is gone: %v", id, err)
	}
	if diff := cmp.Diff(s.held[id], now); diff != "" {
		rt.Fatalf("%s runs and its setup changed (-before +after):\n%s", id, diff)
	}
}

// Sizes makes asks of n tasks out of a function of a task's name and a size.
func Sizes(n int, ask func(task string, mib uint64) share.Ask, mib ...uint64) []share.Ask {
	var asks []share.Ask
	for i := range n {
		for _, size := range mib {
			asks = append(asks, ask(fmt.Sprintf("task/%d", i), size))
		}
	}
	return asks
}
