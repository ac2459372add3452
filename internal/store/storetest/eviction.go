//go:build unix

package storetest

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testEvictions(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "n1", []store.Pool{{NodeID: "n1", Group: "g", Capacity: 8}}))
	victim := ok2(s.PutJob(ctx, store.Job{Namespace: "default", ID: "victim", State: store.JobSubmitted, Priority: 10}))(t)
	asker := ok2(s.PutJob(ctx, store.Job{Namespace: "default", ID: "asker", State: store.JobWaiting, Priority: 50}))(t)
	ok(t, s.Reserve(ctx, store.Reservation{ID: "r1", Namespace: "default", JobID: "victim", Claims: []store.Claim{{NodeID: "n1", Group: "g", Units: 8}}}))

	room := store.Reservation{ID: "r2", Namespace: "default", JobID: "asker", Claims: []store.Claim{{NodeID: "n1", Group: "g", Units: 4}}}
	want := store.Eviction{
		Namespace: "default", JobID: "asker", Tenant: "t", Reason: "no room", Deadline: epoch.Add(time.Minute),
		Victims: []store.Victim{{Namespace: "default", JobID: "victim", Tenant: "u", Priority: 10, MilliCards: 8000, Signal: "SIGUSR1"}},
	}
	stale := victim
	stale.Version++
	_, err := s.PutEviction(ctx, want, []store.Job{asker, stale}, room)
	wantErr(t, err, store.ErrJobChanged)
	same(t, 0, len(ok2(s.OpenEvictions(ctx))(t)))                             // nothing of it is there
	same(t, asker.Version, ok2(s.Job(ctx, "default", "asker"))(t).Version)    // nor of the other row
	same(t, 8, ok2(s.Pools(ctx))(t)[0].Taken)                                 // nor of the room
	victim.State, victim.ReasonCode = store.JobWaiting, "preempting"          // as it is to be
	e := ok2(s.PutEviction(ctx, want, []store.Job{victim, asker}, room))(t)   // rows in any order
	same(t, 12, ok2(s.Pools(ctx))(t)[0].Taken)                                // beyond what there is
	same(t, "preempting", ok2(s.Job(ctx, "default", "victim"))(t).ReasonCode) // together
	want.ID, want.State, want.Version, want.CreatedAt, want.UpdatedAt = e.ID, store.EvictionWanted, 1, epoch, epoch
	same(t, want, e)
	same(t, []store.Eviction{e}, ok2(s.OpenEvictions(ctx))(t))
	_, err = s.PutEviction(ctx, store.Eviction{Namespace: "default", JobID: "asker"}, nil, room)
	wantErr(t, err, store.ErrConflict) // one at a time

	c.Advance(time.Second)
	moved := e
	moved.State, moved.Deadline = store.EvictionStopping, epoch.Add(2*time.Minute)
	moved = ok2(s.MoveEviction(ctx, moved, nil, ""))(t)
	same(t, []store.Eviction{moved}, ok2(s.OpenEvictions(ctx))(t))
	if moved.Version != 2 || !moved.UpdatedAt.Equal(epoch.Add(time.Second)) || !moved.Open() {
		t.Errorf("moved: %+v", moved)
	}
	_, err = s.MoveEviction(ctx, e, nil, "")
	wantErr(t, err, store.ErrConflict) // it was moved since
	victim = ok2(s.Job(ctx, "default", "victim"))(t)
	victim.ReasonCode = "preempted"
	stale.Version = victim.Version + 1
	over := moved
	over.State, over.Reason = store.EvictionRolledBack, "too late"
	_, err = s.MoveEviction(ctx, over, []store.Job{stale}, "r2")
	wantErr(t, err, store.ErrJobChanged)
	same(t, 12, ok2(s.Pools(ctx))(t)[0].Taken)
	over = ok2(s.MoveEviction(ctx, over, []store.Job{victim}, "r2"))(t)
	same(t, 8, ok2(s.Pools(ctx))(t)[0].Taken)
	same(t, "preempted", ok2(s.Job(ctx, "default", "victim"))(t).ReasonCode)
	same(t, 0, len(ok2(s.OpenEvictions(ctx))(t)))
	_, err = s.MoveEviction(ctx, over, nil, "")
	wantErr(t, err, store.ErrConflict) // it is over
	_, err = s.ReservationOf(ctx, "default", "asker")
	wantErr(t, err, store.ErrNotFound)

	// Another one, whose reservation is replaced before it is over.
	again := ok2(s.PutEviction(ctx, store.Eviction{Namespace: "default", JobID: "asker", Victims: []store.Victim{}}, nil, store.Reservation{
		ID: "r3", Namespace: "default", JobID: "asker", Claims: room.Claims,
	}))(t)
	ok(t, s.Reserve(ctx, store.Reservation{ID: "r4", Replaces: "r3", Namespace: "default", JobID: "asker", Claims: room.Claims}))
	again.State = store.EvictionDone
	again = ok2(s.MoveEviction(ctx, again, nil, "r3"))(t)
	same(t, "r4", ok2(s.ReservationOf(ctx, "default", "asker"))(t).ID)

	same(t, []store.Eviction{again, over}, ok2(s.EvictionsSince(ctx, epoch))(t))
	same(t, 0, len(ok2(s.EvictionsSince(ctx, again.UpdatedAt.Add(time.Microsecond)))(t)))
	c.Advance(time.Hour)
	same(t, 2, ok2(s.ForgetEvictions(ctx, epoch.Add(time.Hour)))(t))
	_, err = s.PutEviction(ctx, store.Eviction{Namespace: "default", JobID: "a\x00"}, nil, room)
	wantErr(t, err, store.ErrInvalid)
}

// testMoves states an eviction whose victim starts again elsewhere: it has and holds both rooms, until it ends or time is
// up, and whoever it moves for has its old one.
func testMoves(t *testing.T, open Open) {
	s, _ := openAt(t, open)
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "m1", []store.Pool{{NodeID: "m1", Group: "g", Capacity: 4}}))
	ok(t, s.PutPools(ctx, "m2", []store.Pool{{NodeID: "m2", Group: "g", Capacity: 4}}))
	taken := func() map[string]int {
		out := map[string]int{}
		for _, p := range ok2(s.Pools(ctx))(t) {
			out[p.NodeID] = p.Taken
		}
		return out
	}
	has := store.Claim{NodeID: "m1", Group: "g", Units: 2, TaskGroup: "g", Task: "t", AllocID: "a"}
	ok(t, s.Settle(ctx, "default", "mover", []store.Claim{has}, 0))
	was := ok2(s.ReservationOf(ctx, "default", "mover"))(t)
	gets := store.Claim{NodeID: "m2", Group: "g", Units: 2, TaskGroup: "g", Task: "t"}
	move := store.Eviction{Namespace: "default", JobID: "wants", Victims: []store.Victim{{Namespace: "default", JobID: "mover", Room: "m-r2"}}}
	wants := store.Reservation{ID: "m-r1", Namespace: "default", JobID: "wants", Claims: []store.Claim{{NodeID: "m1", Group: "g", Units: 4}}}
	both := store.Reservation{ID: "m-r2", Replaces: "another", Namespace: "default", JobID: "mover", Claims: []store.Claim{has, gets}, ExpiresAt: epoch.Add(time.Hour)}
	_, err := s.PutEviction(ctx, move, nil, wants, both)
	wantErr(t, err, store.ErrConflict)
	same(t, map[string]int{"m1": 2, "m2": 0}, taken())
	both.Replaces = was.ID
	e := ok2(s.PutEviction(ctx, move, nil, wants, both))(t)
	same(t, map[string]int{"m1": 6, "m2": 2}, taken())
	same(t, "m-r2", ok2(s.OpenEvictions(ctx))(t)[0].Victims[0].Room)
	ok(t, s.Settle(ctx, "default", "mover", nil, 0)) // it ended, and keeps where it starts again
	same(t, map[string]int{"m1": 4, "m2": 2}, taken())
	same(t, "m-r2", ok2(s.ReservationOf(ctx, "default", "mover"))(t).ID)
	e.State = store.EvictionRolledBack
	same(t, store.EvictionRolledBack, ok2(s.MoveEviction(ctx, e, nil, "m-r1"))(t).State)
	same(t, map[string]int{"m1": 0, "m2": 2}, taken())
	same(t, 1, len(ok2(s.Expire(ctx, epoch.Add(time.Hour)))(t)))
	same(t, map[string]int{"m1": 0, "m2": 0}, taken())
}
