//go:build unix

package limit

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

// run starts an instance that exchanges by itself, and ends it with the test.
func run(t *testing.T, s Store, name string) *Limiter {
	t.Helper()
	l := New(s, name, clock.System(), hclog.NewNullLogger(), NewMetrics(prometheus.NewRegistry()))
	l.patience = time.Minute // a busy machine is no store that is away
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	for l.Err() != nil {
		if !l.await(t.Context()) && t.Context().Err() != nil {
			t.Fatal("limits are never read")
		}
	}
	return l
}

// TestP62_ThreeInstancesOneKey: a burst on three instances at the same time lets through the limit, neither three times
// it nor a third of it.
func TestP62_ThreeInstancesOneKey(t *testing.T) {
	t.Parallel()
	for engine, open := range storetest.Engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			const requests, tokens = 200, 3000
			for subject, caps := range map[string]store.Caps{"k1": {RequestsPerMinute: ptr[int64](requests)}, "k2": {TokensPerMinute: ptr[int64](tokens)}, "k3": {TokensPerMonth: ptr[int64](tokens)}} {
				if _, err := s.SetLimit(t.Context(), store.Limit{Tenant: "research", Scope: store.ScopeKey, Subject: subject, Caps: caps}); err != nil {
					t.Fatal(err)
				}
			}
			gateways := []*Limiter{run(t, s, "g1"), run(t, s, "g2"), run(t, s, "g3")}
			var through [3]atomic.Int64
			var wg sync.WaitGroup
			for _, l := range gateways {
				for k := range through {
					for range 4 {
						wg.Go(func() {
							a := ann(5, 5)
							a.KeyID = fmt.Sprint("k", k+1)
							for refused := 0; refused < 40; {
								r, refusal := l.Reserve(t.Context(), a)
								if refusal != nil {
									refused++ // others may give back what they hold
									clock.Sleep(t.Context(), clock.System(), syncEvery/4)
									continue
								}
								through[k].Add(1)
								r.Settle(used(5, 5))
							}
						})
					}
				}
			}
			wg.Wait()
			for k, most := range []int64{requests, tokens / 10, tokens / 10} {
				if n := through[k].Load(); n > most || n < most*95/100 {
					t.Errorf("key %d: %d went through, the limit is %d", k+1, n, most)
				}
			}
		})
	}
}

// TestP71_InstancesSettleTheSameKeys: fifty keys, three instances, no deadlock and nothing lost.
func TestP71_InstancesSettleTheSameKeys(t *testing.T) {
	t.Parallel()
	s := storetest.PostgreSQL(t)
	big := int64(1e12)
	for n := range 50 {
		if _, err := s.SetLimit(t.Context(), store.Limit{Tenant: "research", Scope: store.ScopeKey, Subject: fmt.Sprint("k", n), Caps: store.Caps{TokensPerMonth: &big}}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var gateways []*Limiter
	for _, name := range []string{"g1", "g2", "g3"} {
		l := run(t, s, name)
		gateways = append(gateways, l)
		wg.Go(func() {
			for n := range 1000 {
				a := ann(5, 5)
				a.KeyID = fmt.Sprint("k", n*7%50)
				r, refusal := l.Reserve(t.Context(), a)
				if refusal != nil {
					t.Error(refusal.Message())
					return
				}
				r.Settle(used(3, 4))
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; {
		list, _, err := s.ListLimits(t.Context(), "", store.Page{})
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, l := range list {
			total += l.Spent.Tokens
		}
		if total == 3*1000*7 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tokens are counted", total)
		}
		gateways[0].await(t.Context())
	}
}
