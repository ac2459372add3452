package sharetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// maxCalls bounds how many calls of a tool one step may make: a loop without end is a failure too.
const maxCalls = 200

// outcome is how a step under a fault ended.
type outcome struct {
	died bool
	err  error
}

// under runs one step in a process of its own whose tool has the fault at the call. ok is false when the step makes fewer
// calls.
func (n *node) under(at int, kind fault, step func(ctx context.Context, b share.Backend, event func(string)) error) (out outcome, ok bool) {
	n.t.Helper()
	f := newFaulty(n.m.Tool, at, kind)
	b := n.process(f)
	ctx, cancel := context.WithCancel(n.ctx())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- step(ctx, b, f.event) }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	hung := f.hung
	for {
		select {
		case err := <-ended:
			return outcome{err: err}, f.happened()
		case <-f.dead:
			return outcome{died: true}, true
		case <-hung:
			hung = nil
			cancel() // whoever called gives up
		case <-timer.C:
			n.t.Fatalf("%s, call %d: the backend hangs", kind, at)
		}
	}
}

// everyFault runs a case for every fault at every call that the step makes.
func (s Suite) everyFault(t *testing.T, try func(n *node, at int, kind fault, when string) bool) {
	s.every(t, []fault{failBefore, failAfter, hangBefore, hangAfter, breaks, dieBefore, dieAfter}, try)
}

// every is everyFault for some faults, which do not wait for each other.
func (s Suite) every(t *testing.T, kinds []fault, try func(n *node, at int, kind fault, when string) bool) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				if at > maxCalls {
					t.Fatalf("%s: more than %d calls of a tool", kind, maxCalls)
				}
				n := s.node(t)
				if !try(n, at, kind, fmt.Sprintf("%s, call %d", kind, at)) {
					break
				}
			}
		})
	}
}

func (s Suite) prepareFaults(t *testing.T) {
	s.everyFault(t, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1]) // a neighbour, which must not notice
		before := n.things()
		a := s.Asks[0]
		out, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, event func(string)) error {
			_, err := b.Prepare(ctx, a, event)
			return err
		})
		if !reached {
			return false
		}
		switch {
		case out.died && at%2 == 0: // the task is started again: what is there is finished
			want := n.prepare(n.process(nil), a)
			if diff := cmp.Diff(want, n.prepare(n.process(nil), a)); diff != "" {
				n.t.Errorf("%s: setup (-first +second):\n%s", when, diff)
			}
			n.reconcile(n.process(nil), a, s.Asks[1])
			n.release(n.process(nil), a.ID)
		case out.died, kind == breaks:
			n.reconcile(n.process(nil), s.Asks[1])
		case out.err == nil: // it did without the call
			n.release(n.process(nil), a.ID)
		}
		n.same(before, when)
		return !n.t.Failed()
	})
}

func (s Suite) releaseFaults(t *testing.T) {
	s.everyFault(t, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1])
		before := n.things()
		n.prepare(n.process(nil), s.Asks[0])
		out, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, _ func(string)) error {
			return b.Release(ctx, s.Asks[0].ID)
		})
		if !reached {
			return false
		}
		if out.died && at%2 == 0 {
			n.reconcile(n.process(nil), s.Asks[1])
		} else if out.died || out.err != nil {
			n.release(n.process(nil), s.Asks[0].ID)
		}
		n.same(before, when)
		return !n.t.Failed()
	})
}

func (s Suite) reconcileFaults(t *testing.T) {
	s.everyFault(t, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1])
		before := n.things()
		n.prepare(n.process(nil), s.Asks[0])
		out, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, _ func(string)) error {
			return b.Reconcile(ctx, liveOf(s.Asks[1]))
		})
		if !reached {
			return false
		}
		if out.died || out.err != nil {
			n.reconcile(n.process(nil), s.Asks[1])
		}
		n.same(before, when)
		return !n.t.Failed()
	})
}
