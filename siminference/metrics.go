package siminference

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics carries vLLM's metric names, so that whatever reads vLLM reads this too. Source: vLLM's documentation of
// its production metrics.
type metrics struct {
	registry          *prometheus.Registry
	running, waiting  prometheus.Gauge
	prompt, generated prometheus.Counter
	ttft, e2e         prometheus.Observer
	success           *prometheus.CounterVec
}

func newMetrics(model string) *metrics {
	labels := prometheus.Labels{"model_name": model}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)})
	}
	kv := gauge("vllm:kv_cache_usage_perc", "Simulated: always 0, there is no cache.")
	ttft := histogram("vllm:time_to_first_token_seconds", "Time to the first token.")
	e2e := histogram("vllm:e2e_request_latency_seconds", "Time of whole requests.")
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		running:   gauge("vllm:num_requests_running", "Requests being answered."),
		waiting:   gauge("vllm:num_requests_waiting", "Requests waiting for a slot."),
		prompt:    counter("vllm:prompt_tokens_total", "Prompt tokens taken in."),
		generated: counter("vllm:generation_tokens_total", "Tokens given out."),
		ttft:      ttft, e2e: e2e,
		success: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Finished requests by reason.", ConstLabels: labels}, []string{"finished_reason"}),
	}
	m.registry.MustRegister(m.running, m.waiting, m.prompt, m.generated, kv, ttft, e2e, m.success)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
