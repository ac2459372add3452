package server

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/heteroflow/heteroflow/internal/store"
)

// metrics are the gateway's own. A model label is used only for models that exist, so that its values are few.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	inFlight  prometheus.Gauge
	duration  *prometheus.HistogramVec
	firstByte *prometheus.HistogramVec
	tries     prometheus.Counter
	dropped   prometheus.Counter
	genAI     *genAI
}

func newMetrics() *metrics {
	buckets := prometheus.ExponentialBuckets(0.005, 2, 16)
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		requests:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heteroflow_gateway_requests_total", Help: "Requests by model, status and end."}, []string{"model", "code", "end"}),
		tokens:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heteroflow_gateway_tokens_total", Help: "Tokens that engines reported, or the gateway estimated, by model and kind."}, []string{"model", "kind"}),
		inFlight:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "heteroflow_gateway_requests_in_flight", Help: "Requests being answered."}),
		duration:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "heteroflow_gateway_request_duration_seconds", Help: "Time of whole requests.", Buckets: buckets}, []string{"model"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "heteroflow_gateway_time_to_first_byte_seconds", Help: "Time to the first byte of the answer.", Buckets: buckets}, []string{"model"}),
		tries:     prometheus.NewCounter(prometheus.CounterOpts{Name: "heteroflow_gateway_retries_total", Help: "Tries of a further backend after one failed."}),
		dropped:   prometheus.NewCounter(prometheus.CounterOpts{Name: "heteroflow_gateway_usage_rows_dropped_total", Help: "Usage rows given up because the store was away for too long."}),
	}
	m.genAI = newGenAI(m.registry)
	m.registry.MustRegister(m.requests, m.tokens, m.inFlight, m.duration, m.firstByte, m.tries, m.dropped)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) observe(u store.Usage) {
	m.requests.WithLabelValues(u.Model, strconv.Itoa(u.Status), u.End).Inc()
	m.duration.WithLabelValues(u.Model).Observe(u.Duration.Seconds())
	m.genAI.observe(u)
	if u.FirstByte > 0 {
		m.firstByte.WithLabelValues(u.Model).Observe(u.FirstByte.Seconds())
	}
	if u.Tries > 1 {
		m.tries.Add(float64(u.Tries - 1))
	}
	if u.PromptTokens != nil {
		m.tokens.WithLabelValues(u.Model, "prompt").Add(float64(*u.PromptTokens))
	}
	if u.CompletionTokens != nil {
		m.tokens.WithLabelValues(u.Model, "completion").Add(float64(*u.CompletionTokens))
	}
}
