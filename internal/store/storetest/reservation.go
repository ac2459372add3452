//go:build unix

package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

const hour = time.Hour

func asNoRoom(tb testing.TB, err error, target **store.NoRoomError) {
	tb.Helper()
	if !errors.As(err, target) {
		tb.Fatalf("got %v, want no room", err)
	}
}

func stateOf(tb testing.TB, s *store.Store, job string) string {
	tb.Helper()
	return ok2(s.ReservationOf(tb.Context(), "default", job))(tb).State
}

func testReservations(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *store.Store){
		"all or nothing":                   reserveAllOrNothing,
		"one open per job":                 reserveOneOpen,
		"replaces in one step":             reserveReplaces,
		"submitted once":                   reserveSubmitted,
		"refuses what can never be stored": reserveInvalid,
		"listed by pages":                  reserveListed,
		"alone on a pool":                  reserveAlone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			ok(t, s.PutPools(t.Context(), "n1", []store.Pool{pool("n1", "a", 4), pool("n1", "b", 4)}))
			test(t, s)
		})
	}
}

// reserveAlone: a reservation that is to be alone on a pool is refused beside another tenant, but for those it may be beside.
func reserveAlone(t *testing.T, s *store.Store) {
	ctx := t.Context()
	of := func(id, tenant string, units int, beside ...string) store.Reservation {
		r := reservation(id, "job-"+id, claim("n1", "a", units))
		r.Tenant, r.Alone = tenant, []store.Alone{{NodeID: "n1", Group: "a", Beside: beside}}
		return r
	}
	ok(t, s.Reserve(ctx, of("r1", "red", 1)))
	ok(t, s.Reserve(ctx, of("r2", "red", 1))) // its own
	wantErr(t, s.Reserve(ctx, of("r3", "blue", 1)), store.ErrConflict)
	wantErr(t, s.Reserve(ctx, of("r3", "blue", 1, "re", "r_d", "redd", "%")), store.ErrConflict)
	same(t, 2, ok2(s.Pools(ctx))(t)[0].Taken) // nothing of it is there
	ok(t, s.Reserve(ctx, of("r3", "blue", 1, "green", "red")))
	same(t, []store.Holder{{NodeID: "n1", Group: "a", Tenant: "blue", Units: 1}, {NodeID: "n1", Group: "a", Tenant: "red", Units: 2}}, ok2(s.Holders(ctx))(t))
	wantErr(t, s.Reserve(ctx, of("r4", "green", 1, "red")), store.ErrConflict)
	ok(t, s.Release(ctx, "default", "job-r1"))
	ok(t, s.Release(ctx, "default", "job-r2"))
	wantErr(t, s.Reserve(ctx, of("r4", "green", 1, "red")), store.ErrConflict)
	ok(t, s.Release(ctx, "default", "job-r3"))
	ok(t, s.Reserve(ctx, of("r4", "green", 1)))
	same(t, []store.Holder{{NodeID: "n1", Group: "a", Tenant: "green", Units: 1}}, ok2(s.Holders(ctx))(t))
	ok(t, s.Release(ctx, "default", "job-r4"))
	ok(t, s.Reserve(ctx, of("r5", "", 1)))
	ok(t, s.Reserve(ctx, of("r6", "green", 1))) // of the other nobody knows whose it is
}

func reserveAllOrNothing(t *testing.T, s *store.Store) {
	ctx := t.Context()
	r := reservation("r1", "llm", claim("n1", "b", 3), claim("n1", "a", 4))
	ok(t, s.Reserve(ctx, r))
	got := ok2(s.ReservationOf(ctx, "default", "llm"))(t)
	want := r
	want.State, want.Version = store.Reserved, 1
	for i := range want.Claims {
		want.Claims[i].ReservationID = "r1"
	}
	same(t, want, got)

	var full *store.NoRoomError
	asNoRoom(t, s.Reserve(ctx, reservation("r2", "two", claim("n1", "b", 1), claim("n1", "a", 1))), &full)
	same(t, store.NoRoomError{NodeID: "n1", Group: "a", Want: 1, Free: 0}, *full)
	asNoRoom(t, s.Reserve(ctx, reservation("r3", "three", claim("n1", "b", 1), claim("n1", "b", 1))), &full)
	same(t, store.NoRoomError{NodeID: "n1", Group: "b", Want: 2, Free: 1}, *full)
	asNoRoom(t, s.Reserve(ctx, reservation("r4", "four", claim("n9", "b", 1))), &full)
	same(t, map[string]int{"n1 a": 4, "n1 b": 3}, taken(t, s))
	_, err := s.ReservationOf(ctx, "default", "two")
	wantErr(t, err, store.ErrNotFound)

	ok(t, s.Release(ctx, "default", "llm"))
	ok(t, s.Release(ctx, "default", "llm"))
	same(t, map[string]int{"n1 a": 0, "n1 b": 0}, taken(t, s))
}

func reserveOneOpen(t *testing.T, s *store.Store) {
	ctx := t.Context()
	ok(t, s.Reserve(ctx, reservation("r1", "llm", claim("n1", "a", 1))))
	wantErr(t, s.Reserve(ctx, reservation("r2", "llm", claim("n1", "a", 1))), store.ErrConflict)
	wantErr(t, s.Reserve(ctx, reservation("r1", "other", claim("n1", "a", 1))), store.ErrConflict)
	elsewhere := reservation("r3", "llm", claim("n1", "a", 1))
	elsewhere.Namespace = "team"
	ok(t, s.Reserve(ctx, elsewhere))
	same(t, map[string]int{"n1 a": 2, "n1 b": 0}, taken(t, s))
	ok(t, s.Release(ctx, "default", "llm"))
	ok(t, s.Reserve(ctx, reservation("r4", "llm", claim("n1", "a", 1))))
}

func reserveReplaces(t *testing.T, s *store.Store) {
	ctx := t.Context()
	ok(t, s.Reserve(ctx, reservation("r1", "llm", claim("n1", "a", 3), claim("n1", "b", 1))))
	more := reservation("r2", "llm", claim("n1", "a", 4))
	more.Replaces = "r1"
	ok(t, s.Reserve(ctx, more))
	same(t, map[string]int{"n1 a": 4, "n1 b": 0}, taken(t, s))

	tooMuch := reservation("r3", "llm", claim("n1", "a", 2), claim("n1", "b", 5))
	tooMuch.Replaces = "r2"
	var full *store.NoRoomError
	asNoRoom(t, s.Reserve(ctx, tooMuch), &full)
	same(t, "r2", ok2(s.ReservationOf(ctx, "default", "llm"))(t).ID)
	same(t, map[string]int{"n1 a": 4, "n1 b": 0}, taken(t, s))

	stale := reservation("r4", "llm", claim("n1", "a", 1))
	stale.Replaces = "r1"
	wantErr(t, s.Reserve(ctx, stale), store.ErrConflict)

	// Over capacity by Nomad's truth, the same or less is still room.
	ok(t, s.Settle(ctx, "default", "llm", []store.Claim{live("al1", "n1", "a", 6)}, 0))
	less := reservation("r5", "llm", claim("n1", "a", 5))
	less.Replaces = "r2"
	ok(t, s.Release(ctx, "default", "none"))
	wantErr(t, s.Reserve(ctx, reservation("r6", "llm", claim("n1", "b", 1))), store.ErrConflict)
	ok(t, s.Reserve(ctx, less))
	same(t, map[string]int{"n1 a": 5, "n1 b": 0}, taken(t, s))
}

func reserveSubmitted(t *testing.T, s *store.Store) {
	ctx := t.Context()
	ok(t, s.Reserve(ctx, reservation("r1", "llm", claim("n1", "a", 1))))
	first := ok2(s.MarkSubmitted(ctx, "r1"))(t)
	second := ok2(s.MarkSubmitted(ctx, "r1"))(t)
	none := ok2(s.MarkSubmitted(ctx, "r9"))(t)
	if !first || second || none {
		t.Errorf("won %v, again %v, of none %v", first, second, none)
	}
	same(t, store.Submitted, stateOf(t, s, "llm"))
}

func reserveInvalid(t *testing.T, s *store.Store) {
	for name, r := range map[string]store.Reservation{
		"no claims":  reservation("r1", "llm"),
		"no units":   reservation("r1", "llm", claim("n1", "a", 0)),
		"units < 0":  reservation("r1", "llm", claim("n1", "a", -1)),
		"no node":    reservation("r1", "llm", claim("", "a", 1)),
		"no group":   reservation("r1", "llm", claim("n1", "", 1)),
		"no id":      reservation("", "llm", claim("n1", "a", 1)),
		"no job":     reservation("r1", "", claim("n1", "a", 1)),
		"one is bad": reservation("r1", "llm", claim("n1", "a", 1), claim("n1", "a", -1)),
	} {
		if err := s.Reserve(t.Context(), r); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func reserveListed(t *testing.T, s *store.Store) {
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "n1", []store.Pool{pool("n1", "a", 100)}))
	var all, ops []string
	for n := range 8 {
		r := reservation(fmt.Sprintf("r%d", n), fmt.Sprintf("job%d", n), claim("n1", "a", 1), claim("n1", "a", n+1))
		if n%2 == 1 {
			r.Tenant = "ops"
			ops = append(ops, r.ID)
		}
		all = append(all, r.ID)
		ok(t, s.Reserve(ctx, r))
	}
	list := func(tenant string) (ids []string) {
		rs := allPages(t, func(p store.Page) ([]store.Reservation, string, error) { return s.Reservations(ctx, tenant, p) })
		for _, r := range rs {
			ids = append(ids, r.ID)
			if len(r.Claims) != 2 || r.Claims[0].Units != 1 || r.Claims[1].ReservationID != r.ID {
				t.Errorf("claims of %s: %+v", r.ID, r.Claims)
			}
		}
		return ids
	}
	same(t, all, list(""))
	same(t, ops, list("ops"))

	ok(t, s.Release(ctx, "default", "job0"))
	var open []string
	for _, r := range allPages(t, func(p store.Page) ([]store.Reservation, string, error) { return s.OpenReservations(ctx, p) }) {
		open = append(open, r.ID)
	}
	same(t, all[1:], open)
	same(t, 0, ok2(s.ForgetClosed(ctx, epoch))(t))
	same(t, 1, ok2(s.ForgetClosed(ctx, epoch.Add(time.Second)))(t))
	same(t, all[1:], list(""))
}
