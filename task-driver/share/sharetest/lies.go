package sharetest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// lying are the faults of a tool that ends well and has done nothing, or shows what is not so. A share that such a tool hides
// must be given back once it tells the truth again, and one that it only promised must not be handed out.

func (s Suite) prepareLies(t *testing.T) {
	s.every(t, []fault{lies, stale}, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1])
		before := n.things()
		a := s.Asks[0]
		var setup share.Setup
		out, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, event func(string)) (err error) {
			setup, err = b.Prepare(ctx, a, event)
			return err
		})
		if !reached {
			return false
		}
		if out.err == nil {
			made := n.things()
			if diff := cmp.Diff(setup, n.prepare(n.process(nil), a)); diff != "" {
				n.t.Errorf("%s: setup (-lied +true):\n%s", when, diff)
			}
			n.same(made, when+", it says that it is made")
		}
		n.release(n.process(nil), a.ID)
		n.reconcile(n.process(nil), s.Asks[1])
		n.same(before, when)
		return !n.t.Failed()
	})
}

func (s Suite) releaseLies(t *testing.T) {
	s.every(t, []fault{lies, stale}, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1])
		before := n.things()
		n.prepare(n.process(nil), s.Asks[0])
		out, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, _ func(string)) error {
			return b.Release(ctx, s.Asks[0].ID)
		})
		if !reached {
			return false
		}
		if out.err != nil {
			n.release(n.process(nil), s.Asks[0].ID)
		}
		n.reconcile(n.process(nil), s.Asks[1])
		n.same(before, when)
		return !n.t.Failed()
	})
}

func (s Suite) reconcileLies(t *testing.T) {
	s.every(t, []fault{lies, stale}, func(n *node, at int, kind fault, when string) bool {
		n.prepare(n.process(nil), s.Asks[1])
		before := n.things()
		n.prepare(n.process(nil), s.Asks[0])
		if _, reached := n.under(at, kind, func(ctx context.Context, b share.Backend, _ func(string)) error {
			return b.Reconcile(ctx, liveOf(s.Asks[1]))
		}); !reached {
			return false
		}
		n.reconcile(n.process(nil), s.Asks[1])
		n.same(before, when)
		return !n.t.Failed()
	})
}
