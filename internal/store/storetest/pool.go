//go:build unix

package storetest

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
)

func pool(node, group string, capacity int) store.Pool {
	return store.Pool{NodeID: node, Group: group, Capacity: capacity, UnitMiB: 1024}
}

func claim(node, group string, units int) store.Claim {
	return store.Claim{NodeID: node, Group: group, Units: units, TaskGroup: "serve", Task: "vllm"}
}

func reservation(id, job string, claims ...store.Claim) store.Reservation {
	return store.Reservation{
		ID: id, Tenant: "research", Namespace: "default", JobID: job, Claims: claims,
		CreatedAt: epoch, ExpiresAt: epoch.Add(hour),
	}
}

// taken reads what is taken from each pool, by "node group".
func taken(tb testing.TB, s *store.Store) map[string]int {
	tb.Helper()
	out := map[string]int{}
	for _, p := range ok2(s.Pools(tb.Context()))(tb) {
		out[p.NodeID+" "+p.Group] = p.Taken
	}
	return out
}

func testPools(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	same(t, []store.PoolUse{}, ok2(s.Pools(ctx))(t))

	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "b", 80), {Group: "a", Capacity: 2}}))
	ok(t, s.PutPools(ctx, "n2", []store.Pool{pool("n2", "a", 8)}))
	same(t, []store.PoolUse{
		{Pool: store.Pool{NodeID: "n1", Group: "a", Capacity: 2}},
		{Pool: pool("n1", "b", 80)},
		{Pool: pool("n2", "a", 8)},
	}, ok2(s.Pools(ctx))(t))

	// A pool that vanishes and comes back still carries its claims; so does one whose capacity changed.
	ok(t, s.Reserve(ctx, reservation("r1", "llm", claim("n1", "b", 20), claim("n1", "a", 1))))
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 1)}))
	same(t, map[string]int{"n1 a": 1, "n2 a": 0}, taken(t, s))
	var full *store.NoRoomError
	asNoRoom(t, s.Reserve(ctx, reservation("r2", "other", claim("n1", "b", 1))), &full)
	same(t, store.NoRoomError{NodeID: "n1", Group: "b", Want: 1, Free: 0}, *full)
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "b", 40)}))
	same(t, map[string]int{"n1 b": 20, "n2 a": 0}, taken(t, s))
	ok(t, s.PutPools(ctx, "n1", nil))
	ok(t, s.Release(ctx, "default", "llm"))
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 1), pool("n1", "b", 40)}))
	same(t, map[string]int{"n1 a": 0, "n1 b": 0, "n2 a": 0}, taken(t, s))

	wantErr(t, s.PutPools(ctx, "n1", []store.Pool{pool("n2", "a", 1)}), store.ErrInvalid)
	wantErr(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 1), pool("n1", "a", 1)}), store.ErrInvalid)
	wantErr(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", -1)}), store.ErrInvalid)
	same(t, 0, ok2(s.RecountPools(ctx))(t))
}
