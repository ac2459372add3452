package limit

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// BenchmarkReserve is what limits cost a request: reserve, headers, settle, with all kinds of limits on its key, its
// member and its tenant. Keys are many, the tenant is one.
func BenchmarkReserve(b *testing.B) {
	big := int64(1e15)
	all := store.Caps{RequestsPerMinute: &big, TokensPerMinute: &big, Concurrency: &big, TokensPerMonth: &big, NanosPerMonth: &big}
	const keys = 64
	for name, c := range map[string]struct{ key, member, tenant bool }{
		"none": {}, "key": {key: true}, "key_member_tenant": {true, true, true},
	} {
		b.Run(name, func(b *testing.B) {
			limits := []store.LimitUse{of(store.ScopeKey, "another", all)}
			for n := range keys {
				if c.key {
					limits = append(limits, of(store.ScopeKey, fmt.Sprint("k", n), all))
				}
				if c.member {
					limits = append(limits, of(store.ScopeMember, fmt.Sprint("ann", n), all))
				}
			}
			if c.tenant {
				limits = append(limits, of(store.ScopeTenant, "research", all))
			}
			m := newMemory(limits...)
			m.prices = []store.Price{{Model: "m", PromptNanos: 1, CompletionNanos: 1}}
			l := New(m, "gateway", clock.System(), hclog.NewNullLogger(), NewMetrics(prometheus.NewRegistry()))
			ctx := b.Context()
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			for l.Err() != nil {
				if !l.await(ctx) {
					continue
				}
			}
			var next atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				a := ann(100, 200)
				n := next.Add(1) % keys
				a.KeyID, a.Member = fmt.Sprint("k", n), fmt.Sprint("ann", n)
				h, spent := http.Header{}, used(90, 100)
				for pb.Next() {
					r, refusal := l.Reserve(ctx, a)
					if refusal != nil {
						b.Error(refusal.Message())
					}
					r.SetHeaders(h, false)
					r.Settle(spent)
				}
			})
		})
	}
}
