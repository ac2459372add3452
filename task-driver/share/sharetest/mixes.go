package sharetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Bounds of the random mixes.
const (
	mixes      = 12
	mixSteps   = 20
	mostStrays = 3 // a card has room for a few strangers
)

// mixture is one random mix of strangers' things and ours, of processes that die and shares that come and go.
type mixture struct {
	*node
	rand    *rand.Rand
	live    map[int]bool // by index of Asks
	foreign []string     // things that strangers made
	told    []string     // what was done
}

// mixed lets strangers make things between any two steps of ours: at no moment may one of theirs go, and at the end nothing of
// ours may be left.
func (s Suite) mixed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(mixes) {
		n := s.node(t)
		m := &mixture{node: n, rand: rand.New(rand.NewPCG(seed, 4)), live: map[int]bool{}} //nolint:gosec // repeatable
		m.foreign = n.things()
		for range mixSteps {
			m.step()
			m.strangersStay()
			if t.Failed() {
				return
			}
		}
		for i := range s.Asks {
			m.release(m.process(nil), s.Asks[i].ID)
		}
		m.reconcile(m.process(nil))
		m.same(m.foreign, fmt.Sprintf("seed %d, at the end of %q", seed, m.told))
		if t.Failed() {
			return
		}
	}
}

func (m *mixture) step() {
	at := m.rand.IntN(len(m.s.Asks))
	a := m.s.Asks[at]
	what := m.rand.IntN(7)
	m.told = append(m.told, fmt.Sprintf("%d of %s", what, a.ID))
	switch what {
	case 0:
		m.stranger()
	case 1, 2:
		if _, err := m.process(nil).Prepare(m.ctx(), a, func(string) {}); err == nil {
			m.live[at] = true
		}
	case 3:
		m.release(m.process(nil), a.ID)
		delete(m.live, at)
	case 4:
		m.reconcile(m.process(nil), m.lives()...)
	default:
		m.fault(at, a)
	}
}

// fault has a call of a tool fail, lie, or be the last of its process; then the reconciler looks, as it does after a start.
func (m *mixture) fault(at int, a share.Ask) {
	kinds := []fault{failBefore, failAfter, breaks, dieBefore, dieAfter, lies, stale}
	kind, prepare := kinds[m.rand.IntN(len(kinds))], m.rand.IntN(2) == 0
	call := 1 + m.rand.IntN(6)
	m.told = append(m.told, fmt.Sprintf("%s, call %d, prepare %t", kind, call, prepare))
	out, _ := m.under(call, kind, func(ctx context.Context, b share.Backend, event func(string)) error {
		if prepare {
			_, err := b.Prepare(ctx, a, event)
			return err
		}
		return b.Release(ctx, a.ID)
	})
	m.live[at] = prepare && !out.died && out.err == nil
	if !m.live[at] {
		delete(m.live, at)
	}
	m.strangersStay()
	m.reconcile(m.process(nil), m.lives()...)
}

func (m *mixture) lives() []share.Ask {
	var out []share.Ask
	for i, a := range m.s.Asks {
		if m.live[i] {
			out = append(out, a)
		}
	}
	return out
}

// stranger makes something, and notes what it is.
func (m *mixture) stranger() {
	if m.m.Foreign == nil || len(m.foreign) >= mostStrays {
		return
	}
	before := m.things()
	m.m.Foreign()
	for _, thing := range m.things() {
		if at := slices.Index(before, thing); at >= 0 {
			before = slices.Delete(before, at, at+1)
			continue
		}
		m.foreign = append(m.foreign, thing)
	}
	slices.Sort(m.foreign)
}

func (m *mixture) strangersStay() {
	m.t.Helper()
	now := m.things()
	var left []string
	for _, thing := range m.foreign {
		if at := slices.Index(now, thing); at >= 0 {
			now = slices.Delete(now, at, at+1)
			left = append(left, thing)
		}
	}
	if diff := cmp.Diff(m.foreign, left, cmpopts.EquateEmpty()); diff != "" {
		m.t.Errorf("after %q strangers miss what they made (-want +got):\n%s", m.told, diff)
	}
}
