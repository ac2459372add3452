//go:build unix

package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testGangs(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	member := func(alloc, visit string) store.GangMember {
		return store.GangMember{Namespace: "default", JobID: "train", AllocID: alloc, Visit: visit, Body: []byte(`{"port":1}`)}
	}
	first := ok2(s.ArriveGangMember(ctx, member("a", "v1")))(t)
	want := member("a", "v1")
	want.CameAt, want.SeenAt = epoch, epoch
	same(t, want, first)
	c.Advance(time.Second)
	again := ok2(s.ArriveGangMember(ctx, member("a", "v1")))(t)
	want.SeenAt = epoch.Add(time.Second)
	same(t, want, again) // a sign of life: it came when it came
	ok2(s.ArriveGangMember(ctx, member("b", "v2")))(t)
	other := member("a", "v1")
	other.JobID = "other"
	ok2(s.ArriveGangMember(ctx, other))(t)
	same(t, 2, len(ok2(s.GangMembers(ctx, "default", "train"))(t)))
	for _, bad := range []store.GangMember{member("", "v"), member("a", ""), {Namespace: "default", JobID: "x\x00", AllocID: "a", Visit: "v"}} {
		_, err := s.ArriveGangMember(ctx, bad)
		wantErr(t, err, store.ErrInvalid)
	}

	// All begin, or none.
	start := func(attempt int, members ...store.GangMember) bool {
		for i := range members {
			members[i].Attempt, members[i].Rank = attempt, i
		}
		return ok2(s.StartGang(ctx, members))(t)
	}
	if start(1, member("a", "v1"), member("c", "v3")) {
		t.Error("began without a member that never came")
	}
	if start(1, member("b", "v2"), member("a", "v0")) {
		t.Error("began with a visit that is over")
	}
	if !start(1, member("b", "v2"), member("a", "v1")) || start(2, member("b", "v2"), member("a", "v1")) {
		t.Error("a gang that waits begins once")
	}
	same(t, []store.StartedGang{{Namespace: "default", JobID: "train"}}, ok2(s.StartedGangs(ctx))(t)) // once, and not the other, which waits
	rows := ok2(s.GangMembers(ctx, "default", "train"))(t)
	same(t, []int{1, 1, 0, 1}, []int{rows[0].Attempt, rows[0].Rank, rows[1].Rank, rows[1].Attempt})
	same(t, 1, ok2(s.ArriveGangMember(ctx, member("a", "v1")))(t).Attempt)

	// One comes back in another visit, and the others are called back, once.
	same(t, 0, ok2(s.ArriveGangMember(ctx, member("a", "v4")))(t).Attempt)
	called := ok2(s.RecallGang(ctx, "default", "train"))(t)
	if len(called) != 1 || called[0].AllocID != "b" || called[0].Attempt != -1 {
		t.Errorf("called back: %+v", called)
	}
	same(t, 0, len(ok2(s.RecallGang(ctx, "default", "train"))(t)))
	same(t, -1, ok2(s.ArriveGangMember(ctx, member("b", "v2")))(t).Attempt) // it has not begun anew yet
	same(t, 0, ok2(s.ArriveGangMember(ctx, member("b", "v5")))(t).Attempt)

	ok(t, s.ForgetGang(ctx, "default", "train", "a"))
	same(t, 1, len(ok2(s.GangMembers(ctx, "default", "train"))(t)))
	ok(t, s.ForgetGang(ctx, "default", "train"))
	same(t, 0, len(ok2(s.GangMembers(ctx, "default", "train"))(t)))
	same(t, 0, ok2(s.ForgetGangsBefore(ctx, epoch.Add(time.Second)))(t))
	same(t, 1, ok2(s.ForgetGangsBefore(ctx, epoch.Add(2*time.Second)))(t)) // the other job's
	gangsBeginOnce(t, s)
}

// gangsBeginOnce: several instances see a gang complete at once; one of them lets it begin, with all members in one start.
func gangsBeginOnce(t *testing.T, s *store.Store) {
	ctx := t.Context()
	var members []store.GangMember
	for i := range 8 {
		m := store.GangMember{Namespace: "default", JobID: "race", AllocID: fmt.Sprint("alloc", i), Visit: "v"}
		ok2(s.ArriveGangMember(ctx, m))(t)
		members = append(members, m)
	}
	var won atomic.Int64
	together(6, func(i int) {
		mine := slices.Clone(members)
		for k := range mine {
			mine[k].Attempt, mine[k].Rank = 1+i, (k+i)%len(mine)
		}
		did, err := s.StartGang(ctx, mine)
		if err != nil {
			t.Error(err)
		}
		if did {
			won.Add(1)
		}
	})
	same(t, int64(1), won.Load())
	rows := ok2(s.GangMembers(ctx, "default", "race"))(t)
	seen := map[int]bool{}
	for _, m := range rows {
		if m.Attempt != rows[0].Attempt || seen[m.Rank] {
			t.Errorf("two starts are mixed: %+v", rows)
		}
		seen[m.Rank] = true
	}
}
