package server

import (
	"net/http"
	"strconv"
	"sync"

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

	mu     sync.RWMutex
	series map[labels]*series
}

// labels are what tells one request's numbers from another's, and which of them it has.
type labels struct {
	model, operation, end string
	status                int
	stream, first         bool // first: it had a first byte
	prompt, completion    known
}

// known is what is known of a number of tokens.
type known uint8

const (
	unknown known = iota
	nothing
	some
	guessed
)

func knownOf(n *int64, isGuess bool) known {
	switch {
	case n == nil:
		return unknown
	case isGuess:
		return guessed
	case *n == 0:
		return nothing
	}
	return some
}

// series are the numbers that requests with the same labels count, nil where they have none: to find each by its labels
// would cost a request more than to count it.
type series struct {
	requests, prompt, completion prometheus.Counter
	duration, firstByte          prometheus.Observer
	genAI                        genAISeries
}

// of gives the numbers of requests like this one.
func (m *metrics) of(u *store.Usage) *series {
	key := labels{
		model: u.Model, operation: u.Operation, end: u.End, status: u.Status, stream: u.Stream, first: u.FirstByte > 0,
		prompt: knownOf(u.PromptTokens, u.Estimated), completion: knownOf(u.CompletionTokens, u.Estimated),
	}
	m.mu.RLock()
	s := m.series[key]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	s = &series{
		requests: m.requests.WithLabelValues(u.Model, strconv.Itoa(u.Status), u.End), duration: m.duration.WithLabelValues(u.Model),
		genAI: m.genAI.of(key),
	}
	if key.first {
		s.firstByte = m.firstByte.WithLabelValues(u.Model)
	}
	if key.prompt != unknown {
		s.prompt = m.tokens.WithLabelValues(u.Model, "prompt")
	}
	if key.completion != unknown {
		s.completion = m.tokens.WithLabelValues(u.Model, "completion")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.series[key] = s // of two that are made at once, both count to the same
	return s
}

func newMetrics() *metrics {
	buckets := prometheus.ExponentialBuckets(0.005, 2, 16)
	m := &metrics{
		series:    map[labels]*series{},
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

func (m *metrics) observe(u *store.Usage) {
	s := m.of(u)
	s.requests.Inc()
	s.duration.Observe(u.Duration.Seconds())
	s.genAI.observe(u)
	if s.firstByte != nil {
		s.firstByte.Observe(u.FirstByte.Seconds())
	}
	if u.Tries > 1 {
		m.tries.Add(float64(u.Tries - 1))
	}
	if s.prompt != nil {
		s.prompt.Add(float64(*u.PromptTokens))
	}
	if s.completion != nil {
		s.completion.Add(float64(*u.CompletionTokens))
	}
}
