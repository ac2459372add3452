//go:build unix

package storetest

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
)

func live(alloc, node, group string, units int) store.Claim {
	c := claim(node, group, units)
	c.AllocID = alloc
	return c
}

// held is what the job holds, as "alloc node group" and units; unconfirmed claims add up under alloc "".
func held(tb testing.TB, s *store.Store, job string) map[string]int {
	tb.Helper()
	out := map[string]int{}
	for _, c := range ok2(s.ReservationOf(tb.Context(), "default", job))(tb).Claims {
		out[c.AllocID+" "+c.NodeID+" "+c.Group] += c.Units
	}
	return out
}

func testSettle(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *store.Store){
		"confirms step by step":                       settleConfirms,
		"moves what Nomad placed elsewhere":           settleElsewhere,
		"keeps at most what is pending":               settlePending,
		"keeps all that Nomad cannot know of yet":     settleUnsubmitted,
		"adopts a job that has no reservation":        settleAdopts,
		"goes over capacity when Nomad did":           settleForces,
		"releases when nothing is left":               settleReleases,
		"adds up the blocks of one task on one pool":  settleMerges,
		"refuses live claims that can never be right": settleInvalid,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			ok(t, s.PutPools(t.Context(), "n1", []store.Pool{pool("n1", "a", 8), pool("n1", "b", 8)}))
			test(t, s)
			same(t, 0, ok2(s.RecountPools(t.Context()))(t))
		})
	}
}

// submit reserves the claims for job llm and marks them submitted.
func submit(t *testing.T, s *store.Store, claims ...store.Claim) {
	t.Helper()
	ok(t, s.Reserve(t.Context(), reservation("r1", "llm", claims...)))
	if !ok2(s.MarkSubmitted(t.Context(), "r1"))(t) {
		t.Fatal("not submitted")
	}
}

// settle settles twice: the second time must change nothing.
func settle(t *testing.T, s *store.Store, pending int, claims ...store.Claim) {
	t.Helper()
	ok(t, s.Settle(t.Context(), "default", "llm", claims, pending))
	before, beforeErr := s.ReservationOf(t.Context(), "default", "llm")
	ok(t, s.Settle(t.Context(), "default", "llm", claims, pending))
	after, afterErr := s.ReservationOf(t.Context(), "default", "llm")
	same(t, before, after)
	same(t, beforeErr == nil, afterErr == nil)
}

func settleConfirms(t *testing.T, s *store.Store) {
	submit(t, s, claim("n1", "a", 2), claim("n1", "a", 2), claim("n1", "b", 2))
	settle(t, s, 2, live("al1", "n1", "a", 2))
	same(t, map[string]int{"al1 n1 a": 2, " n1 a": 2, " n1 b": 2}, held(t, s, "llm"))
	same(t, store.Submitted, stateOf(t, s, "llm"))
	settle(t, s, 1, live("al1", "n1", "a", 2), live("al2", "n1", "b", 2))
	same(t, map[string]int{"al1 n1 a": 2, " n1 a": 2, "al2 n1 b": 2}, held(t, s, "llm"))
	settle(t, s, 0, live("al1", "n1", "a", 2), live("al2", "n1", "b", 2), live("al3", "n1", "a", 2))
	same(t, store.Confirmed, stateOf(t, s, "llm"))
	same(t, map[string]int{"n1 a": 4, "n1 b": 2}, taken(t, s))
}

func settleElsewhere(t *testing.T, s *store.Store) {
	submit(t, s, claim("n1", "a", 2))
	settle(t, s, 0, live("al1", "n1", "b", 2))
	same(t, map[string]int{"al1 n1 b": 2}, held(t, s, "llm"))
	same(t, map[string]int{"n1 a": 0, "n1 b": 2}, taken(t, s))
	// Rescheduled: the old allocation is gone, the new one is the truth.
	settle(t, s, 0, live("al2", "n1", "a", 2))
	same(t, map[string]int{"n1 a": 2, "n1 b": 0}, taken(t, s))
}

func settlePending(t *testing.T, s *store.Store) {
	other := claim("n1", "b", 1)
	other.Task = "side"
	submit(t, s, claim("n1", "a", 2), other, claim("n1", "a", 3))
	// vllm runs elsewhere than reserved: its claim goes first, then the last.
	settle(t, s, 2, live("al1", "n1", "b", 2))
	same(t, map[string]int{"al1 n1 b": 2, " n1 b": 1, " n1 a": 3}, held(t, s, "llm"))
	settle(t, s, 1, live("al1", "n1", "b", 2))
	same(t, map[string]int{"al1 n1 b": 2, " n1 b": 1}, held(t, s, "llm"))
	settle(t, s, -1, live("al1", "n1", "b", 2))
	same(t, map[string]int{"al1 n1 b": 2}, held(t, s, "llm"))
}

func settleUnsubmitted(t *testing.T, s *store.Store) {
	ok(t, s.Reserve(t.Context(), reservation("r1", "llm", claim("n1", "a", 2))))
	settle(t, s, 0)
	same(t, store.Reserved, stateOf(t, s, "llm"))
	settle(t, s, 0, live("old", "n1", "b", 1))
	same(t, map[string]int{"old n1 b": 1, " n1 a": 2}, held(t, s, "llm"))
}

func settleAdopts(t *testing.T, s *store.Store) {
	settle(t, s, 3)
	_, err := s.ReservationOf(t.Context(), "default", "llm")
	wantErr(t, err, store.ErrNotFound)
	settle(t, s, 3, live("al1", "n1", "a", 2))
	same(t, map[string]int{"n1 a": 2, "n1 b": 0}, taken(t, s))
	got := ok2(s.ReservationOf(t.Context(), "default", "llm"))(t)
	same(t, store.Confirmed, got.State)
	same(t, "", got.Tenant)

	ok2(s.PutJob(t.Context(), store.Job{Namespace: "default", ID: "known", Tenant: "research", State: store.JobSubmitted}))(t)
	ok(t, s.Settle(t.Context(), "default", "known", []store.Claim{live("al2", "n1", "b", 1)}, 0))
	same(t, "research", ok2(s.ReservationOf(t.Context(), "default", "known"))(t).Tenant)
}

func settleForces(t *testing.T, s *store.Store) {
	ok(t, s.Reserve(t.Context(), reservation("r2", "other", claim("n1", "a", 7))))
	settle(t, s, 0, live("al1", "n1", "a", 5), live("al2", "n7", "x", 3))
	same(t, map[string]int{"n1 a": 12, "n1 b": 0}, taken(t, s))
	var full *store.NoRoomError
	asNoRoom(t, s.Reserve(t.Context(), reservation("r3", "third", claim("n1", "a", 1))), &full)
	same(t, 0, full.Free)
	// The pool that nobody had offered comes with its claims.
	ok(t, s.PutPools(t.Context(), "n7", []store.Pool{pool("n7", "x", 4)}))
	same(t, map[string]int{"n1 a": 12, "n1 b": 0, "n7 x": 3}, taken(t, s))
}

func settleReleases(t *testing.T, s *store.Store) {
	submit(t, s, claim("n1", "a", 2))
	settle(t, s, 0, live("al1", "n1", "a", 2))
	settle(t, s, 0)
	_, err := s.ReservationOf(t.Context(), "default", "llm")
	wantErr(t, err, store.ErrNotFound)
	same(t, map[string]int{"n1 a": 0, "n1 b": 0}, taken(t, s))
	rs, _, err := s.Reservations(t.Context(), "", store.Page{})
	ok(t, err)
	same(t, store.Released, rs[0].State)
}

func settleMerges(t *testing.T, s *store.Store) {
	// Two allocations of two blocks each: the first uses up its two claims, not all four.
	submit(t, s, claim("n1", "a", 2), claim("n1", "a", 1), claim("n1", "a", 2), claim("n1", "a", 1))
	settle(t, s, 9, live("al1", "n1", "a", 2), live("al1", "n1", "a", 1))
	same(t, map[string]int{"al1 n1 a": 3, " n1 a": 3}, held(t, s, "llm"))
	settle(t, s, 9, live("al1", "n1", "a", 3), live("al2", "n1", "a", 3))
	same(t, map[string]int{"al1 n1 a": 3, "al2 n1 a": 3}, held(t, s, "llm"))
	same(t, store.Confirmed, stateOf(t, s, "llm"))
}

func settleInvalid(t *testing.T, s *store.Store) {
	for _, c := range []store.Claim{claim("n1", "a", 1), live("al1", "n1", "a", 0), live("al1", "", "a", 1), live("al1", "n1", "", 1)} {
		wantErr(t, s.Settle(t.Context(), "default", "llm", []store.Claim{c}, 0), store.ErrInvalid)
	}
}

func testExpire(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 8)}))
	ok(t, s.Reserve(ctx, reservation("r1", "waits", claim("n1", "a", 1))))
	ok(t, s.Reserve(ctx, reservation("r2", "half", claim("n1", "a", 1), claim("n1", "a", 2))))
	ok(t, s.Reserve(ctx, reservation("r3", "done", claim("n1", "a", 3))))
	ok2(s.MarkSubmitted(ctx, "r2"))(t)
	ok(t, s.Settle(ctx, "default", "half", []store.Claim{live("al1", "n1", "a", 1)}, 1))
	ok(t, s.Settle(ctx, "default", "done", []store.Claim{live("al2", "n1", "a", 3)}, 0))
	ok2(s.MarkSubmitted(ctx, "r3"))(t)
	same(t, 0, len(ok2(s.Expire(ctx, epoch.Add(hour-1)))(t)))
	if !ok2(s.Extend(ctx, "r1", epoch.Add(2*hour)))(t) || ok2(s.Extend(ctx, "r3", epoch))(t) {
		t.Error("only what is open and unconfirmed can be extended")
	}

	expired := ok2(s.Expire(ctx, epoch.Add(hour)))(t)
	if len(expired) != 1 || expired[0].ID != "r2" || expired[0].State != store.Confirmed ||
		len(expired[0].Claims) != 1 || expired[0].Claims[0].Units != 2 {
		t.Errorf("expired %+v", expired)
	}
	same(t, map[string]int{"n1 a": 5}, taken(t, s))
	expired = ok2(s.Expire(ctx, epoch.Add(2*hour)))(t)
	if len(expired) != 1 || expired[0].ID != "r1" || expired[0].State != store.Expired || len(expired[0].Claims) != 1 {
		t.Errorf("expired %+v", expired)
	}
	same(t, map[string]int{"n1 a": 4}, taken(t, s))
	same(t, 0, len(ok2(s.Expire(ctx, epoch.Add(9*hour)))(t)))
	if ok2(s.MarkSubmitted(ctx, "r1"))(t) {
		t.Error("an expired reservation was submitted")
	}
	same(t, 0, ok2(s.RecountPools(ctx))(t))
}
