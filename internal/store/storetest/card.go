//go:build unix

package storetest

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// testCards: what is held is logged as it changes, in the transaction in which it does.
func testCards(t *testing.T, open Open) {
	s, now := openAt(t, open)
	ctx := t.Context()
	const whole, shared = "nvidia/gpu/A100", "nvidia/vgpu/A100-12345678"
	ok(t, s.PutPools(ctx, "n1", []store.Pool{{Group: whole, Capacity: 8}, {Group: shared, Capacity: 80, UnitMiB: 1024}}))
	ok(t, s.Reserve(ctx, store.Reservation{ID: "r1", Tenant: "research", Namespace: "default", JobID: "llm", Claims: []store.Claim{{NodeID: "n1", Group: whole, Units: 4, TaskGroup: "g", Task: "t"}}}))
	held := func() (out []store.CardSpan) {
		t.Helper()
		for _, span := range ok2(s.CardSpans(ctx, epoch, now.Now().Add(time.Microsecond)))(t) {
			if span.ID == "" {
				t.Error("a span without id")
			}
			span.ID = ""
			out = append(out, span)
		}
		return out
	}
	same(t, 0, len(held())) // what is only reserved is not held yet
	settle := func(claims ...store.Claim) {
		t.Helper()
		ok(t, s.Settle(ctx, "default", "llm", claims, 0))
	}
	four := store.Claim{NodeID: "n1", Group: whole, Units: 4, TaskGroup: "g", Task: "t", AllocID: "a1"}
	part := store.Claim{NodeID: "n1", Group: shared, Units: 20, TaskGroup: "g", Task: "t", AllocID: "a2"}
	spanOf := func(c store.Claim, perCard int64, from, to time.Duration) store.CardSpan {
		span := store.CardSpan{
			Tenant: "research", Namespace: "default", JobID: "llm", TaskGroup: c.TaskGroup, Task: c.Task, AllocID: c.AllocID, NodeID: c.NodeID, Group: c.Group,
			Units: int64(c.Units), UnitsACard: perCard, Began: epoch.Add(from),
		}
		if to > 0 {
			span.Ended = epoch.Add(to)
		}
		return span
	}
	settle(four)
	settle(four)
	same(t, []store.CardSpan{spanOf(four, 1, 0, 0)}, held())
	now.Advance(time.Minute)
	settle(four, part)
	now.Advance(time.Minute)
	one := four
	one.Units = 1
	settle(part, one)
	now.Advance(time.Minute)
	ok(t, s.Release(ctx, "default", "llm"))
	now.Advance(time.Minute)
	spans := held()
	want := []store.CardSpan{spanOf(four, 1, 0, 2*time.Minute), spanOf(part, 80, time.Minute, 3*time.Minute), spanOf(one, 1, 2*time.Minute, 3*time.Minute)}
	same(t, len(want), len(spans))
	sum := int64(0)
	for _, span := range spans {
		sum += span.Until(now.Now())
		found := false
		for _, w := range want {
			found = found || w == span
		}
		if !found {
			t.Errorf("%+v", span)
		}
	}
	same(t, (8*time.Minute + 30*time.Second + time.Minute).Microseconds(), sum)
	same(t, 0, len(ok2(s.CardSpans(ctx, epoch.Add(3*time.Minute), epoch.Add(time.Hour)))(t)))
	cardWork(t, s)
	cardUse(t, s)

	// What is settled does not change: a clock that was set back begins and ends spans where it is settled to.
	ok2(s.SettleCards(ctx, epoch.Add(10*time.Minute), epoch.Add(20*time.Minute), nil))(t)
	settle(four)
	spans = ok2(s.CardSpans(ctx, epoch.Add(20*time.Minute), epoch.Add(30*time.Minute)))(t)
	if len(spans) != 1 || !spans[0].Began.Equal(epoch.Add(20*time.Minute)) {
		t.Errorf("%+v", spans)
	}
	settle()
	same(t, 0, len(ok2(s.CardSpans(ctx, epoch.Add(20*time.Minute), epoch.Add(30*time.Minute)))(t)))
}

func cardWork(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	row := func(id, backend string, from, took time.Duration) store.Usage {
		return store.Usage{ID: id, Backend: backend, Tenant: "research", KeyID: "k", EndpointID: "e", Model: "m", StartedAt: epoch.Add(from), Duration: took, PromptTokens: number(5)}
	}
	ok(t, s.AddUsage(ctx, []store.Usage{
		row("1", "b", -2*time.Hour, 3*time.Hour), // began too long ago
		row("2", "b", -time.Minute, time.Minute), // ended
		row("3", "b", -time.Minute, time.Minute+time.Microsecond),
		row("4", "", 0, time.Minute), // nobody answered
		row("5", "c", time.Minute-time.Microsecond, time.Hour),
		row("6", "c", time.Minute, time.Hour), // too late
	}))
	var got []store.Work
	ok(t, s.Work(ctx, epoch, epoch.Add(time.Minute), func(w store.Work) { got = append(got, w) }))
	of := store.User{Tenant: "research", KeyID: "k", EndpointID: "e", Model: "m"}
	same(t, []store.Work{
		{Backend: "b", User: of, Prompt: number(5), Began: epoch.Add(-time.Minute), Duration: time.Minute + time.Microsecond},
		{Backend: "c", User: of, Prompt: number(5), Began: epoch.Add(time.Minute - time.Microsecond), Duration: time.Hour},
	}, got)
}

func cardUse(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	same(t, true, ok2(s.CardsSettledTo(ctx))(t).IsZero())
	hour := epoch.Truncate(time.Hour)
	use := store.CardUse{Hour: hour, User: store.User{Tenant: "research", KeyID: "k", EndpointID: "e", Model: "m"}, Namespace: "default", JobID: "llm", Group: "nvidia/gpu/A100", Micros: 7}
	own := store.CardUse{Hour: hour.Add(time.Hour), User: store.User{Tenant: "ops"}, Namespace: "default", JobID: "llm", Group: "nvidia/gpu/A100", Micros: 100}
	settle := func(from, to time.Time, want bool, uses ...store.CardUse) {
		t.Helper()
		same(t, want, ok2(s.SettleCards(ctx, from, to, uses))(t))
	}
	settle(time.Time{}, epoch, true)
	settle(time.Time{}, epoch, false, use)
	settle(epoch, epoch.Add(5*time.Minute), true, use, use, own)
	settle(epoch, epoch.Add(5*time.Minute), false, use, use, own)
	settle(epoch.Add(5*time.Minute), epoch.Add(10*time.Minute), true, use)
	same(t, epoch.Add(10*time.Minute), ok2(s.CardsSettledTo(ctx))(t))
	_, err := s.SettleCards(ctx, epoch.Add(10*time.Minute), epoch.Add(15*time.Minute), []store.CardUse{{Micros: -1}})
	wantErr(t, err, store.ErrInvalid)
	for by, want := range map[string]map[string]int64{
		"model": {"m": 21, "": 100}, "key": {"k": 21, "": 100}, "endpoint": {"e": 21, "": 100}, "tenant": {"research": 21, "ops": 100}, "": {"m": 21, "": 100},
	} {
		got := map[string]int64{}
		for _, sum := range ok2(s.SumUsage(ctx, store.UsageQuery{GroupBy: by}))(t) {
			if sum.CardMicros > 0 {
				got[sum.Name] = sum.CardMicros
			}
		}
		same(t, want, got)
	}
	cards := func(q store.UsageQuery) (n int64) {
		t.Helper()
		for _, sum := range ok2(s.SumUsage(ctx, q))(t) {
			n += sum.CardMicros
		}
		return n
	}
	same(t, int64(21), cards(store.UsageQuery{Tenant: "research"}))
	same(t, int64(100), cards(store.UsageQuery{From: hour.Add(time.Minute)}))
	same(t, int64(21), cards(store.UsageQuery{To: hour.Add(time.Hour)}))
}
