package submit

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	decision  prometheus.Histogram
	decisions *prometheus.CounterVec
	conflicts prometheus.Counter
	submitted *prometheus.CounterVec
	faults    *prometheus.CounterVec
	evictions *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		decision: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "heteroflow_placement_decision_seconds", Help: "Time of one decision, snapshot included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_placement_decisions_total", Help: "Decisions by outcome.",
		}, []string{"outcome"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heteroflow_placement_conflicts_total", Help: "Decisions that lost a race for their room and were taken again.",
		}),
		submitted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_placement_submissions_total", Help: "Jobs by what became of their submission.",
		}, []string{"outcome"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_plugin_faults_total", Help: "Decisions in which a placement plugin panicked.",
		}, []string{"plugin"}),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_evictions_total", Help: "Evictions that are over, by how they ended.",
		}, []string{"state"}),
	}
}

// Collectors are the metrics of the submitter.
func (s *Submitter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.metrics.decision, s.metrics.decisions, s.metrics.conflicts, s.metrics.submitted, s.metrics.faults, s.metrics.evictions}
}
