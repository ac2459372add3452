package limit

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the limits' own. No label names a key, a member or a tenant.
type Metrics struct {
	refusals *prometheus.CounterVec
	failures prometheus.Counter
}

// NewMetrics makes them and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heteroflow_gateway_limited_total", Help: "Requests refused by a limit, by what the limit is of (key, member, tenant, endpoint) and what it counts."}, []string{"scope", "kind"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "heteroflow_gateway_limit_exchange_failures_total", Help: "Exchanges of limits with the database that failed."}),
	}
	r.MustRegister(m.refusals, m.failures)
	return m
}

func (m *Metrics) refused(r *Refusal) {
	m.refusals.WithLabelValues(r.limit.Scope, r.kind.String()).Inc()
}
