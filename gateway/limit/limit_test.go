package limit

import (
	"context"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

func TestReserve_NoLimitCostsNothing(t *testing.T) {
	t.Parallel()
	i := newFleet(t, of(store.ScopeKey, "another", store.Caps{RequestsPerMinute: ptr[int64](0)})).start()
	r, refusal := i.reserve(ann(10))
	if r != nil || refusal != nil {
		t.Fatalf("%+v %+v", r, refusal)
	}
	r.SetHeaders(http.Header{}, false)
	r.Settle(used(1, 1))
}

// TestReserve_ExactlyTheLimitInAnyMinute over three instances that share requests in turns.
func TestReserve_ExactlyTheLimitInAnyMinute(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1, 2, 10, 60, 1000} {
		f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: &limit}))
		gateways := []*instance{f.start(), f.start(), f.start()}
		through := int64(0)
		for n := range 2 * limit {
			r, _ := gateways[n%3].reserve(ann(1, 1))
			if r != nil {
				through++
				r.Settle(used(1, 1))
			}
			f.clock.Advance(time.Millisecond)
		}
		f.clock.Advance(syncEvery)
		for n := range 3 * limit { // what one held is asked back for the others
			if r, _ := gateways[n%3].reserve(ann(1, 1)); r != nil {
				through++
				r.Settle(used(1, 1))
			}
			if n%limit == 0 {
				f.clock.Advance(syncEvery)
				for _, g := range gateways {
					g.Sync(t.Context())
				}
			}
		}
		if through != limit {
			t.Errorf("limit %d: %d went through", limit, through)
		}
		_, refusal := gateways[0].reserve(ann(1, 1))
		if refusal == nil || refusal.wait > time.Minute+time.Second || refusal.wait < 50*time.Second {
			t.Fatalf("limit %d: %+v", limit, refusal)
		}
		f.clock.Advance(refusal.wait)
		if r, refusal := gateways[0].reserve(ann(1, 1)); r == nil {
			t.Errorf("limit %d: refused again after the time that was told: %+v", limit, refusal)
		}
	}
}

// TestReserve_TheTightestWins of key, member, tenant and endpoint, for the model and for all, and leaves nothing in the others.
func TestReserve_TheTightestWins(t *testing.T) {
	t.Parallel()
	loose, tight := store.Caps{RequestsPerMinute: ptr[int64](100)}, store.Caps{RequestsPerMinute: ptr[int64](3)}
	for name, c := range map[string]struct{ scope, subject, model string }{
		"key": {store.ScopeKey, "k1", ""}, "member": {store.ScopeMember, "ann", ""}, "tenant": {store.ScopeTenant, "research", ""},
		"key and model": {store.ScopeKey, "k1", "m"}, "member and model": {store.ScopeMember, "ann", "m"}, "tenant and model": {store.ScopeTenant, "research", "m"},
		"endpoint": {store.ScopeEndpoint, "e1", ""},
	} {
		limits := []store.LimitUse{
			of(store.ScopeKey, "k1", loose), of(store.ScopeMember, "ann", loose), of(store.ScopeTenant, "research", loose),
		}
		for _, l := range limits[:3] {
			l.ID, l.Model = l.ID+" m", "m"
			limits = append(limits, l)
		}
		limits = append(limits, of(store.ScopeEndpoint, "e1", loose))
		for i := range limits {
			if l := &limits[i]; l.Scope == c.scope && l.Model == c.model {
				l.Caps = tight
			}
		}
		f := newFleet(t, limits...)
		i := f.start()
		through := 0
		for range 20 {
			if r, refusal := i.reserve(ann(1, 1)); r != nil {
				through++
				r.Settle(used(1, 1))
			} else if refusal.limit.Scope != c.scope || refusal.limit.Model != c.model {
				t.Errorf("%s: refused by %+v", name, refusal.limit)
			}
		}
		f.rest(i)
		if through != 3 {
			t.Errorf("%s: %d went through", name, through)
		}
		for _, l := range limits {
			_, s := f.store.state(l.ID)
			requests := int64(0)
			for _, u := range s.Slots {
				requests += u.Requests
			}
			if requests != 3 {
				t.Errorf("%s: %d requests counted at %s", name, requests, l.ID)
			}
		}
		other := ann(1, 1)
		other.Model = "other"
		if r, _ := i.reserve(other); (r != nil) != (c.model != "") {
			t.Errorf("%s: another model is let through: %v", name, r != nil)
		}
	}
}

// TestP61_ReserveBeforeSettleAfter: parallel calls that want more than is left do not pass together.
func TestP61_ReserveBeforeSettleAfter(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{TokensPerMinute: ptr[int64](100)}))
	i := f.start()
	for range 5 {
		if r, refusal := i.reserve(ann(10, 150)); r != nil || !refusal.never || refusal.need != 160 {
			t.Fatalf("%+v", refusal)
		}
	}
	var running []*Reservation
	for range 5 {
		if r, _ := i.reserve(ann(10, 30)); r != nil {
			running = append(running, r)
		}
	}
	if len(running) != 2 {
		t.Fatalf("%d of 40 tokens each went through", len(running))
	}
	for _, r := range running {
		r.Settle(used(10, 5)) // 30 in all: 70 are left
		r.Settle(used(10, 5))
	}
	f.clock.Advance(syncEvery)
	through := 0
	for range 5 {
		if r, _ := i.reserve(ann(10, 25)); r != nil {
			through++
		}
	}
	if through != 2 {
		t.Errorf("%d of 35 tokens each went through after settling", through)
	}
}

// TestReserve_WithoutAMaximum: the mean of what answers had is reserved, and no more than the limit.
func TestReserve_WithoutAMaximum(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{TokensPerMonth: ptr[int64](1000)}))
	i := f.start()
	through := int64(0)
	for range 100 {
		r, refusal := i.reserve(ann(10))
		if r == nil {
			if refusal.Code() != "insufficient_quota" {
				t.Fatalf("%+v", refusal)
			}
			break
		}
		through++
		r.Settle(used(10, 10))
		f.clock.Advance(time.Second)
	}
	if through != 50 {
		t.Errorf("%d requests of 20 tokens for 1000", through)
	}
	small := newFleet(t, of(store.ScopeKey, "k1", store.Caps{TokensPerMinute: ptr[int64](50)})).start()
	if r, refusal := small.reserve(ann(10)); r == nil || r.need[Tokens] != 50 {
		t.Errorf("%+v %+v", r, refusal)
	}
}

// TestSettle_Ends: what is charged for each way in which a request ends.
func TestSettle_Ends(t *testing.T) {
	t.Parallel()
	price := store.Price{Model: "m", PromptNanos: 1000, CachedNanos: 100, CompletionNanos: 2000, RequestNanos: 7}
	for name, c := range map[string]struct {
		used          Used
		tokens, nanos int64
	}{
		"done":             {Used{Prompt: ptr[int64](20), Completion: ptr[int64](5), Ran: true}, 25, 30_007},
		"cached":           {Used{Prompt: ptr[int64](20), Cached: ptr[int64](15), Completion: ptr[int64](5), Ran: true}, 25, 5_000 + 1_500 + 10_000 + 7},
		"cut short":        {Used{Prompt: ptr[int64](20), Completion: ptr[int64](0), Ran: true}, 20, 20_007},
		"no model ran":     {Used{}, 0, 0},
		"nothing is known": {Used{Ran: true}, 110, 10_000 + 200_000 + 7},
		"more than asked":  {Used{Prompt: ptr[int64](200), Completion: ptr[int64](300), Ran: true}, 500, 800_007},
		"nonsense":         {Used{Prompt: ptr[int64](-1), Cached: ptr[int64](99), Completion: ptr[int64](-5), Ran: true}, 0, 7},
	} {
		f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{TokensPerMonth: ptr[int64](1e6), NanosPerMonth: ptr[int64](1e12), TokensPerMinute: ptr[int64](1e6)}))
		f.store.prices = []store.Price{price}
		i := f.start()
		r, refusal := i.reserve(ann(10, 100))
		if r == nil {
			t.Fatalf("%s: %+v", name, refusal)
		}
		i.Sync(t.Context())
		r.Settle(c.used)
		f.rest(i)
		got, s := f.store.state("key k1")
		minute := int64(0)
		for _, u := range s.Slots {
			minute += u.Tokens
		}
		if got.Tokens != c.tokens || got.Nanos != c.nanos || minute != c.tokens {
			t.Errorf("%s: %d tokens, %d nanos, %d in the minute, want %d and %d", name, got.Tokens, got.Nanos, minute, c.tokens, c.nanos)
		}
	}
}

func TestReserve_MoneyNeedsAPrice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeTenant, "research", store.Caps{NanosPerMonth: ptr[int64](5000)}))
	i := f.start()
	_, refusal := i.reserve(ann(1, 1))
	if refusal == nil || refusal.Status() != http.StatusForbidden || !strings.Contains(refusal.Message(), "has no price, and tenant research has a budget of money") {
		t.Fatalf("%+v", refusal)
	}
	f.store.set(func(m *memory) { m.prices = []store.Price{{Model: "m", PromptNanos: 1000, CompletionNanos: 1000}} })
	i.Sync(t.Context())
	through := 0
	for range 10 {
		if r, _ := i.reserve(ann(1, 1)); r != nil {
			through++
			r.Settle(used(1, 1))
		}
	}
	if through != 2 {
		t.Errorf("%d requests of 2000 for 5000", through)
	}
}

func TestReserve_Concurrency(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{Concurrency: ptr[int64](5)}))
	gateways := []*instance{f.start(), f.start(), f.start()}
	var running []*Reservation
	for n := range 30 {
		f.clock.Advance(syncEvery)
		if r, _ := gateways[n%3].reserve(ann(1)); r != nil {
			running = append(running, r)
		}
	}
	if len(running) != 5 {
		t.Fatalf("%d run at the same time", len(running))
	}
	for range 10 { // a long time: the holds are renewed
		f.rest(gateways...)
		if r, refusal := gateways[1].reserve(ann(1)); r != nil || refusal.wait != time.Second {
			t.Fatalf("one more: %+v", refusal)
		}
	}
	running[0].Settle(Used{})
	f.clock.Advance(syncEvery)
	for _, g := range gateways {
		g.Sync(t.Context())
	}
	f.clock.Advance(syncEvery)
	if r, _ := gateways[2].reserve(ann(1)); r == nil {
		t.Error("a place that became free is not given to another instance")
	}
}

// TestLimit_ChangesAndGoes within one exchange.
func TestLimit_ChangesAndGoes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](100)}))
	i := f.start()
	count := func() (n int) {
		for range 200 {
			if r, _ := i.reserve(ann(1)); r != nil {
				r.Settle(Used{})
				n++
			}
		}
		return n
	}
	i.reserve(ann(1))
	f.store.set(func(m *memory) { m.limits[0].Caps.RequestsPerMinute = ptr[int64](10) })
	i.Sync(t.Context())
	f.clock.Advance(syncEvery)
	if n := count(); n != 9 {
		t.Errorf("%d more after the limit was lowered to 10", n)
	}
	f.store.set(func(m *memory) { m.limits[0].Caps.RequestsPerMinute = ptr[int64](15) })
	f.clock.Advance(syncEvery)
	i.Sync(t.Context())
	if n := count(); n != 5 {
		t.Errorf("%d more after the limit was raised to 15", n)
	}
	f.store.set(func(m *memory) { m.limits = nil })
	i.Sync(t.Context())
	if n := count(); n != 0 {
		t.Errorf("%d reservations without a limit", n)
	}
	if r, refusal := i.reserve(ann(1)); r != nil || refusal != nil {
		t.Errorf("%+v %+v", r, refusal)
	}
}

func TestBudget_BeginsAnewWithTheMonth(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{TokensPerMonth: ptr[int64](100)}))
	f.clock.Advance(time.Date(2026, 3, 31, 23, 59, 0, 0, time.UTC).Sub(epoch))
	i := f.start()
	late, _ := i.reserve(ann(50, 50))
	_, refusal := i.reserve(ann(5, 5))
	if late == nil || refusal == nil || refusal.wait != time.Minute || refusal.ends != time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC) {
		t.Fatalf("%+v", refusal)
	}
	f.clock.Advance(time.Minute)
	if r, refusal := i.reserve(ann(50, 50)); r == nil {
		t.Fatalf("in the new month: %+v", refusal)
	}
	late.Settle(used(50, 0)) // of the month before
	f.rest(i)
	if got, _ := f.store.state("key k1"); got.Month != 202604 || got.Tokens != 100 {
		t.Errorf("%+v", got.Spent)
	}
}

// TestStoreAway_EachKeepsToItsShare, and what was used meanwhile is told once.
func TestStoreAway_EachKeepsToItsShare(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](30), TokensPerMonth: ptr[int64](1000)}))
	gateways := []*instance{f.start(), f.start(), f.start()}
	f.clock.Advance(peersEvery)
	for range 2 {
		for _, g := range gateways {
			g.Sync(t.Context())
		}
		f.clock.Advance(peersEvery)
	}
	f.store.set(func(m *memory) { m.down = true })
	f.clock.Advance(holdFor)
	through := make([]int, 3)
	for second := range 60 {
		for n, g := range gateways {
			if second%5 == 0 {
				g.Sync(t.Context())
			}
			for range 2 {
				if r, refusal := g.reserve(ann(1, 1)); r != nil {
					through[n]++
					r.Settle(used(1, 1))
				} else if refusal.asksStore() {
					t.Fatalf("%+v", refusal)
				}
			}
		}
		f.clock.Advance(time.Second)
	}
	if diff := cmp.Diff([]int{10, 10, 10}, through); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	f.store.set(func(m *memory) { m.down = false })
	f.rest(gateways...)
	got, _ := f.store.state("key k1")
	if got.Tokens != 60 {
		t.Errorf("%d tokens were told, 60 were used", got.Tokens)
	}
}

// asksStore is never true of a refusal that a client gets.
func (r *Refusal) asksStore() bool { return r.limit.ID == "" }

// TestSync_AnAnswerThatIsLostIsNotCountedTwice.
func TestSync_AnAnswerThatIsLostIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](30), TokensPerMonth: ptr[int64](1000)}))
	i := f.start()
	for range 3 {
		r, _ := i.reserve(ann(5, 5))
		r.Settle(used(5, 5))
	}
	for range 3 {
		f.store.set(func(m *memory) { m.lost = true })
		f.clock.Advance(time.Second)
		i.Sync(t.Context())
		f.store.set(func(m *memory) { m.lost = false })
		f.clock.Advance(time.Second)
		i.Sync(t.Context())
	}
	f.rest(i)
	got, s := f.store.state("key k1")
	requests := int64(0)
	for _, u := range s.Slots {
		requests += u.Requests
	}
	if got.Tokens != 30 || requests != 3 {
		t.Errorf("%d tokens, %d requests", got.Tokens, requests)
	}
}

// TestSettle_AMillionRequestsLeaveNothingBehind, whatever becomes of them.
func TestSettle_AMillionRequestsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	caps := store.Caps{
		RequestsPerMinute: ptr[int64](1e9), TokensPerMinute: ptr[int64](5e8), Concurrency: ptr[int64](50), TokensPerMonth: ptr[int64](1e15), NanosPerMonth: ptr[int64](1e18),
	}
	f := newFleet(t, of(store.ScopeKey, "k1", caps), of(store.ScopeMember, "ann", caps), of(store.ScopeTenant, "research", caps))
	f.store.prices = []store.Price{{Model: "m", PromptNanos: 3, CompletionNanos: 7}}
	gateways := []*instance{f.start(), f.start()}
	random := rand.New(rand.NewPCG(1, 2))
	var running []*Reservation
	tokens, through := int64(0), 0
	for n := range 1_000_000 {
		if n%100 == 0 {
			f.clock.Advance(50 * time.Millisecond)
			for _, g := range gateways {
				g.Sync(t.Context())
			}
		}
		if r, _ := gateways[random.IntN(2)].reserve(ann(random.Int64N(100), random.Int64N(100))); r != nil {
			through++
			running = append(running, r)
		}
		for len(running) > 0 && random.IntN(100) < 60 {
			at := random.IntN(len(running))
			r := running[at]
			running[at] = running[len(running)-1]
			running = running[:len(running)-1]
			prompt, completion := random.Int64N(150), random.Int64N(150)
			switch random.IntN(4) {
			case 0: // gone before a model ran
				r.Settle(Used{})
			case 1: // nothing is known
				tokens += r.need[Tokens]
				r.Settle(Used{Ran: true})
			default:
				tokens += prompt + completion
				r.Settle(used(prompt, completion))
			}
			r.Settle(used(1e6, 1e6)) // a second time changes nothing
		}
	}
	for _, r := range running {
		r.Settle(Used{})
	}
	f.rest(gateways...)
	if through < 500_000 {
		t.Errorf("only %d requests went through", through)
	}
	for _, l := range f.store.limits {
		got, s := f.store.state(l.ID)
		if got.Tokens != tokens {
			t.Errorf("%s: %d tokens are counted, %d were used", l.ID, got.Tokens, tokens)
		}
		for name, h := range s.Holds {
			if h.Of != (amounts{}) {
				t.Errorf("%s: %s holds %v", l.ID, name, h.Of)
			}
		}
		for _, g := range gateways {
			acct := g.book.Load().byID[l.ID]
			if acct.running != 0 || acct.spare != (amounts{}) || acct.spent != (amounts{}) || acct.listed || acct.want != (amounts{}) {
				t.Errorf("%s: running %d, spare %v, spent %v, listed %v", l.ID, acct.running, acct.spare, acct.spent, acct.listed)
			}
		}
	}
	for _, g := range gateways {
		if len(g.listed) != 0 {
			t.Errorf("%d accounts have something to tell", len(g.listed))
		}
	}
}

// A burst far below the limit is let through: what is granted to a request that waited is not taken by one that has just come.
func TestReserve_ABurstFarBelowTheLimit(t *testing.T) {
	t.Parallel()
	plenty := int64(1e12)
	m := newMemory(of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: &plenty, TokensPerMinute: &plenty, Concurrency: &plenty}))
	l := New(busy{m}, "gateway", clock.NewFake(epoch), hclog.NewNullLogger(), NewMetrics(prometheus.NewRegistry()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		stop()
		<-ended
	}()
	for l.Err() != nil {
		l.await(ctx)
	}
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			for range 5 { // all of them run at once in the end
				if _, refusal := l.Reserve(ctx, ann(100, 200)); refusal != nil {
					t.Error(refusal.Message())
					return
				}
			}
		})
	}
	group.Wait()
}

// busy is a store that takes its time: whoever wants to run meanwhile runs.
type busy struct{ *memory }

func (b busy) ChangeAllowances(ctx context.Context, ids []string, change func(*store.Allowance) error) error {
	for range 200 {
		runtime.Gosched()
	}
	return b.memory.ChangeAllowances(ctx, ids, change)
}
