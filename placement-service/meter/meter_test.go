//go:build unix

package meter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
	"github.com/heteroflow/heteroflow/placement-service/meter"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// flaky is a store that breaks off now and then, before or after it did what was asked: as one does whose answer is lost.
type flaky struct {
	*store.Store
	mu sync.Mutex
	r  *rand.Rand
}

var errBroken = errors.New("broken off")

func (f *flaky) breaks() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.IntN(4) == 0
}

func (f *flaky) SettleCards(ctx context.Context, from, to time.Time, uses []store.CardUse) (bool, error) {
	if f.breaks() {
		return false, errBroken
	}
	won, err := f.Store.SettleCards(ctx, from, to, uses)
	if err == nil && f.breaks() {
		return false, errBroken
	}
	return won, err
}

// TestSettle_ExactOverRestarts: jobs come, grow, shrink and go, and requests are answered, while two instances settle that
// are started anew each time and lose answers of the database. What all have in the end is what was held, to the
// microsecond.
func TestSettle_ExactOverRestarts(t *testing.T) {
	t.Parallel()
	for name, open := range storetest.Engines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := clock.NewFake(noon)
			db := open(t, store.WithClock(now))
			r := rand.New(rand.NewPCG(3, 9))
			var pools []store.Pool
			for n := range 4 {
				pools = append(pools, store.Pool{Group: fmt.Sprint("nvidia/vgpu/A100-", n), Capacity: 80, UnitMiB: 1024})
			}
			must(t, db.PutPools(t.Context(), "n1", append(pools, store.Pool{Group: "nvidia/gpu/H100", Capacity: 64})))
			must(t, meter.New(db, now, hclog.NewNullLogger()).Settle(t.Context())) // the clock begins
			held := ledger{}
			for step := range 120 {
				n := r.IntN(4)
				job, live := fmt.Sprint("j", n), claims(r, n, step)
				if len(live) == 0 && r.IntN(2) == 0 {
					must(t, db.Release(t.Context(), "default", job))
				} else {
					must(t, db.Settle(t.Context(), "default", job, live, 0))
				}
				held.change(job, live, now.Now())
				var rows []store.Usage
				for n := range r.IntN(5) {
					rows = append(rows, store.Usage{
						ID: fmt.Sprint(step, "-", n), Tenant: "t", KeyID: fmt.Sprint("k", r.IntN(3)), Model: "m", Backend: backend(r.IntN(4), r.IntN(15)),
						PromptTokens: new(r.Int64N(100)), CompletionTokens: new(r.Int64N(100)), StartedAt: now.Now(), Duration: time.Duration(r.IntN(200_000)) * time.Millisecond,
					})
					if len(live) > 0 {
						rows[n].Backend = "_nomad-task-" + live[0].AllocID + "-serve-llm-http"
					}
				}
				must(t, db.AddUsage(t.Context(), rows))
				now.Advance(time.Duration(r.IntN(200_000_000)) * time.Microsecond)
				settleTwice(t, db, now, r)
			}
			now.Advance(time.Hour)
			for range 3 {
				settleTwice(t, db, now, r)
			}
			must(t, meter.New(db, now, hclog.NewNullLogger()).Settle(t.Context()))
			to, err := db.CardsSettledTo(t.Context())
			must(t, err)
			for _, by := range []string{"model", "key", "endpoint", "tenant"} {
				sums, err := db.SumUsage(t.Context(), store.UsageQuery{GroupBy: by})
				must(t, err)
				got, asked := int64(0), int64(0)
				for _, s := range sums {
					got += s.CardMicros
					if s.Requests > 0 {
						asked += s.CardMicros
					}
				}
				if want := held.until(to); got != want {
					t.Errorf("by %s: %d µs were held, %d are settled", by, want, got)
				}
				if by == "key" && asked == 0 {
					t.Error("no request has a share")
				}
			}
		})
	}
}

// settleTwice has two instances settle at once; that one breaks off is no matter.
func settleTwice(t *testing.T, db *store.Store, now clock.Clock, r *rand.Rand) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		f := &flaky{Store: db, r: rand.New(rand.NewPCG(r.Uint64(), 1))}
		wg.Go(func() {
			if err := meter.New(f, now, hclog.NewNullLogger()).Settle(t.Context()); err != nil && !errors.Is(err, errBroken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func alloc(job, version int) string { return fmt.Sprintf("%08x-0000-0000-0000-%012x", job, version) }

func backend(job, version int) string {
	return "_nomad-task-" + alloc(job, version) + "-serve-llm-http"
}

// claims are what a job holds next: nothing, some whole cards, or shares of some.
func claims(r *rand.Rand, job, step int) (live []store.Claim) {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return []store.Claim{{NodeID: "n1", Group: "nvidia/gpu/H100", Units: 1 + r.IntN(8), TaskGroup: "g", Task: "t", AllocID: alloc(job, step/8)}}
	}
	for n := range 1 + r.IntN(3) {
		live = append(live, store.Claim{NodeID: "n1", Group: fmt.Sprint("nvidia/vgpu/A100-", n), Units: 1 + r.IntN(79), TaskGroup: "g", Task: "t", AllocID: alloc(job, step/8)})
	}
	return live
}

// ledger is what the test itself knows of what was held.
type ledger struct{ spans []store.CardSpan }

func (l *ledger) change(job string, live []store.Claim, now time.Time) {
	for i := range l.spans {
		s := &l.spans[i]
		if s.JobID != job || !s.Ended.IsZero() {
			continue
		}
		goesOn := false
		for j, c := range live {
			if c.AllocID == s.AllocID && c.Group == s.Group && int64(c.Units) == s.Units {
				live = append(append([]store.Claim{}, live[:j]...), live[j+1:]...)
				goesOn = true
				break
			}
		}
		if !goesOn {
			s.Ended = now
		}
	}
	for _, c := range live {
		s := store.CardSpan{JobID: job, AllocID: c.AllocID, Group: c.Group, Units: int64(c.Units), UnitsACard: 80, Began: now}
		if c.Group == "nvidia/gpu/H100" {
			s.UnitsACard = 1
		}
		l.spans = append(l.spans, s)
	}
}

func (l *ledger) until(at time.Time) (sum int64) {
	for _, s := range l.spans {
		sum += s.Until(at)
	}
	return sum
}

// A row that comes late has no share, and nothing is counted twice; a clock that is set back changes nothing that is
// settled.
func TestSettle_LateAndBack(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(noon)
	db := storetest.SQLite(t, store.WithClock(now))
	m := meter.New(db, now, hclog.NewNullLogger())
	must(t, m.Settle(t.Context()))
	live := []store.Claim{{NodeID: "n1", Group: "nvidia/gpu/H100", Units: 1, TaskGroup: "g", Task: "t", AllocID: alloc(1, 1)}}
	must(t, db.Settle(t.Context(), "default", "llm", live, 0))
	now.Advance(2 * time.Hour)
	must(t, m.Settle(t.Context()))
	must(t, db.AddUsage(t.Context(), []store.Usage{{ID: "u", KeyID: "k", Model: "m", Backend: backend(1, 1), StartedAt: noon, Duration: time.Minute}}))
	must(t, m.Settle(t.Context()))

	behind := clock.NewFake(noon)
	same, err := db.CardsSettledTo(t.Context())
	must(t, err)
	must(t, meter.New(db, behind, hclog.NewNullLogger()).Settle(t.Context()))
	if at, err := db.CardsSettledTo(t.Context()); err != nil || !at.Equal(same) {
		t.Errorf("settled to %s, was %s, %v", at, same, err)
	}
	if to := told(t, m.Collectors()[0]); to != float64(same.Unix()) {
		t.Errorf("it tells of %f", to)
	}
	sums, err := db.SumUsage(t.Context(), store.UsageQuery{GroupBy: "key"})
	must(t, err)
	if len(sums) != 2 || sums[0].Name != "" || sums[0].CardMicros != same.Sub(noon).Microseconds() || sums[1].CardMicros != 0 {
		t.Errorf("%+v, settled to %s", sums, same)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// told is what a metric tells, all of its labels together.
func told(t *testing.T, c prometheus.Collector) (sum float64) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
