//go:build unix

package storetest

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/store"
)

// ledgerRuns is how many random histories testLedger goes through, each of ledgerSteps steps.
const (
	ledgerRuns  = 25
	ledgerSteps = 25
)

// testLedger drives the ledger through random histories. After each step what is taken from a pool is the sum of the
// open claims on it, a reservation that was granted has put no pool over capacity, and one that was not has changed
// nothing.
func testLedger(t *testing.T, open Open) {
	s := open(t)
	run, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		// rapid's own number of runs suits functions, not databases: the rest pass at once, unless a history has
		// failed and rapid runs it again to make it smaller.
		if run++; run > ledgerRuns && !failed {
			return
		}
		passed := false
		defer func() { failed = failed || !passed }()
		m := newLedgerModel(rt, s, run)
		for range ledgerSteps {
			m.step(rt)
			m.check(rt)
		}
		m.end(rt)
		passed = true
	})
}

// ledgerModel names nodes and jobs of its own, so that runs share one store.
type ledgerModel struct {
	s     *store.Store
	nodes []string
	jobs  []string
	next  int
	now   time.Time
	cap   map[string]int // what is offered now, by "node group"
}

func newLedgerModel(rt *rapid.T, s *store.Store, run int) *ledgerModel {
	m := &ledgerModel{s: s, now: epoch, cap: map[string]int{}}
	for n := range 2 {
		m.nodes = append(m.nodes, fmt.Sprintf("run%d-n%d", run, n))
		m.offer(rt, m.nodes[n])
	}
	for j := range 3 {
		m.jobs = append(m.jobs, fmt.Sprintf("run%d-job%d", run, j))
	}
	return m
}

var ledgerGroups = []string{"a", "b"}

func must(rt *rapid.T, err error) {
	if err != nil {
		rt.Fatalf("unexpected: %v", err)
	}
}

// offer puts random pools on the node.
func (m *ledgerModel) offer(rt *rapid.T, node string) {
	var pools []store.Pool
	for _, g := range ledgerGroups {
		delete(m.cap, node+" "+g)
		if rapid.IntRange(0, 4).Draw(rt, "present") > 0 {
			c := rapid.IntRange(0, 8).Draw(rt, "capacity")
			pools = append(pools, pool(node, g, c))
			m.cap[node+" "+g] = c
		}
	}
	must(rt, m.s.PutPools(rt.Context(), node, pools))
}

func (m *ledgerModel) claims(rt *rapid.T, least int) []store.Claim {
	var out []store.Claim
	for range rapid.IntRange(least, 3).Draw(rt, "claims") {
		out = append(out, claim(
			rapid.SampledFrom(m.nodes).Draw(rt, "node"),
			rapid.SampledFrom(ledgerGroups).Draw(rt, "group"),
			rapid.IntRange(1, 3).Draw(rt, "units"),
		))
	}
	return out
}

func (m *ledgerModel) step(rt *rapid.T) {
	job := rapid.SampledFrom(m.jobs).Draw(rt, "job")
	switch rapid.SampledFrom([]string{"reserve", "reserve", "submit", "settle", "settle", "expire", "release", "offer"}).Draw(rt, "step") {
	case "reserve":
		m.reserve(rt, job)
	case "submit":
		if r, found := m.open(rt, job); found {
			won, err := m.s.MarkSubmitted(rt.Context(), r.ID)
			must(rt, err)
			if won != (r.State == store.Reserved) {
				rt.Fatalf("submitted from %s: %v", r.State, won)
			}
		}
	case "settle":
		m.settle(rt, job)
	case "expire":
		m.now = m.now.Add(time.Duration(rapid.IntRange(0, 60).Draw(rt, "minutes")) * time.Minute)
		_, err := m.s.Expire(rt.Context(), m.now)
		must(rt, err)
	case "release":
		must(rt, m.s.Release(rt.Context(), "default", job))
		if _, found := m.open(rt, job); found {
			rt.Fatalf("%s holds something after its release", job)
		}
	case "offer":
		m.offer(rt, rapid.SampledFrom(m.nodes).Draw(rt, "node"))
	}
}

func (m *ledgerModel) open(rt *rapid.T, job string) (store.Reservation, bool) {
	r, err := m.s.ReservationOf(rt.Context(), "default", job)
	if errors.Is(err, store.ErrNotFound) {
		return r, false
	}
	must(rt, err)
	return r, true
}

func (m *ledgerModel) reserve(rt *rapid.T, job string) {
	m.next++
	r := reservation(fmt.Sprintf("%s-r%d", job, m.next), job, m.claims(rt, 1)...)
	r.ExpiresAt = m.now.Add(hour)
	old, found := m.open(rt, job)
	if found && rapid.Bool().Draw(rt, "replace") {
		r.Replaces = old.ID
	}
	before := m.taken(rt)
	err := m.s.Reserve(rt.Context(), r)
	after := m.taken(rt)
	var full *store.NoRoomError
	switch {
	case err == nil && found && r.Replaces == "":
		rt.Fatalf("%s has two open reservations", job)
	case err == nil:
		for name, n := range after {
			if n > before[name] && n > m.cap[name] {
				rt.Fatalf("granted %d units of %s, which has %d", n, name, m.cap[name])
			}
		}
	case errors.As(err, &full), found && errors.Is(err, store.ErrConflict):
		if !maps.Equal(before, after) {
			rt.Fatalf("refused, and changed %v to %v", before, after)
		}
	default:
		rt.Fatalf("reserve: %v", err)
	}
}

func (m *ledgerModel) settle(rt *rapid.T, job string) {
	alloc := 0
	now := m.claims(rt, 0)
	want := map[store.Claim]bool{}
	for i := range now {
		now[i].AllocID = fmt.Sprintf("%s-al%d", job, alloc+rapid.IntRange(0, 1).Draw(rt, "new"))
		alloc += 2
		want[now[i]] = true
	}
	pending := rapid.IntRange(0, 3).Draw(rt, "pending")
	before, _ := m.open(rt, job)
	must(rt, m.s.Settle(rt.Context(), "default", job, now, pending))
	first := m.taken(rt)
	after, _ := m.open(rt, job)
	unconfirmed, confirmed := 0, 0
	for _, c := range after.Claims {
		c.ReservationID = ""
		switch {
		case c.AllocID == "":
			unconfirmed++
		case !want[c]:
			rt.Fatalf("settled to %+v, which is not live", c)
		default:
			confirmed++
		}
	}
	if confirmed != len(want) || (unconfirmed > pending && before.State != store.Reserved) {
		rt.Fatalf("%d of %d live, %d of at most %d pending", confirmed, len(want), unconfirmed, pending)
	}
	must(rt, m.s.Settle(rt.Context(), "default", job, now, pending))
	if again := m.taken(rt); !maps.Equal(first, again) {
		rt.Fatalf("settled twice: %v, then %v", first, again)
	}
}

// taken is what is taken from the run's pools that are offered.
func (m *ledgerModel) taken(rt *rapid.T) map[string]int {
	pools, err := m.s.Pools(rt.Context())
	must(rt, err)
	out := map[string]int{}
	for _, p := range pools {
		if p.NodeID == m.nodes[0] || p.NodeID == m.nodes[1] {
			out[p.NodeID+" "+p.Group] = p.Taken
		}
	}
	return out
}

// check compares what is taken with the sum of the open claims.
func (m *ledgerModel) check(rt *rapid.T) {
	sum := map[string]int{}
	for name := range m.cap {
		sum[name] = 0
	}
	for _, job := range m.jobs {
		r, _ := m.open(rt, job)
		for _, c := range r.Claims {
			if name := c.NodeID + " " + c.Group; hasKey(m.cap, name) {
				sum[name] += c.Units
			}
		}
	}
	if got := m.taken(rt); !maps.Equal(sum, got) {
		rt.Fatalf("claims are %v, taken is %v", sum, got)
	}
}

func hasKey(m map[string]int, k string) bool { _, found := m[k]; return found }

// end releases everything: nothing may stay taken.
func (m *ledgerModel) end(rt *rapid.T) {
	for _, job := range m.jobs {
		must(rt, m.s.Release(rt.Context(), "default", job))
	}
	for name, n := range m.taken(rt) {
		if n != 0 {
			rt.Fatalf("%d units of %s are taken by nobody", n, name)
		}
	}
	fixed, err := m.s.RecountPools(rt.Context())
	must(rt, err)
	if fixed != 0 {
		rt.Fatalf("%d pools were counted wrong", fixed)
	}
}
