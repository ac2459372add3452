package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/inference"
)

// backends tells what is known of services and their backends, at the moment it is asked. A backend that is gone is told
// of no more, so that the values of the label are those of the live ones.
type backends struct {
	services func() []route.Service
	reading  func(service string) inference.Reading // of engines; nil where nobody asks them
	stale    func() map[string]int                  // nil where nobody looks
}

var _ prometheus.Collector = (*backends)(nil)

func perBackend(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("heteroflow_gateway_backend_"+name, help, append([]string{"service", "backend"}, more...), nil)
}

func perService(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("heteroflow_gateway_"+name, help, []string{"service"}, nil)
}

var (
	backendUp          = perBackend("up", "1 for a backend that takes requests, 0 for one that is left out while there is another.")
	backendBreaker     = perBackend("breaker_state", "1 for the state of the backend's breaker.", "state")
	backendShare       = perBackend("share_ratio", "Part of an equal share that the backend takes: less after it came back, and while it is busy.")
	backendInFlight    = perBackend("requests_in_flight", "Requests of this gateway at the backend.")
	backendOutstanding = perBackend("outstanding_tokens", "Tokens of prompts that the backend has to work off for this gateway.")
	backendRate        = perBackend("prompt_tokens_per_second", "How fast the backend works off prompts, measured; absent until it is known.")

	heldRequests  = perService("held_requests", "Requests that wait for a backend or a place at one.")
	sessionPins   = perService("session_keys", "Keys of sessions whose backend is known.")
	staleListed   = perService("stale_instances", "Instances that the registry lists though their allocations do not run; they get no traffic.")
	engineRunning = perService("engine_running_requests", "Requests that the engines say they work on.")
	engineWaiting = perService("engine_waiting_requests", "Requests that the engines say they have in their queues.")
	engineCache   = perService("engine_cache_use_ratio", "Part of its cache that the fullest engine says is taken.")
)

// Describe sends what may be told.
func (b *backends) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		backendUp, backendBreaker, backendShare, backendInFlight, backendOutstanding, backendRate,
		heldRequests, sessionPins, staleListed, engineRunning, engineWaiting, engineCache,
	} {
		to <- d
	}
}

// Collect sends what is so now.
func (b *backends) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, s := range b.services() {
		for _, one := range s.Pool.Status() {
			up := 0.0
			if !one.Missing && one.State != balance.Open {
				up = 1
			}
			gauge(backendUp, up, s.Name, one.Addr)
			gauge(backendBreaker, 1, s.Name, one.Addr, string(one.State))
			gauge(backendShare, one.Share, s.Name, one.Addr)
			gauge(backendInFlight, float64(one.InFlight), s.Name, one.Addr)
			gauge(backendOutstanding, float64(one.Outstanding), s.Name, one.Addr)
			if one.TokensPerSecond > 0 {
				gauge(backendRate, one.TokensPerSecond, s.Name, one.Addr)
			}
		}
		gauge(sessionPins, float64(s.Pool.Pins()), s.Name)
		if s.Queue != nil {
			gauge(heldRequests, float64(s.Queue.Held()), s.Name)
		}
		if b.reading != nil {
			b.engines(gauge, s.Name)
		}
	}
	if b.stale != nil {
		for name, n := range b.stale() {
			gauge(staleListed, float64(n), name)
		}
	}
}

func (b *backends) engines(gauge func(*prometheus.Desc, float64, ...string), service string) {
	r := b.reading(service)
	if r.Running != nil {
		gauge(engineRunning, float64(*r.Running), service)
	}
	if r.Waiting != nil {
		gauge(engineWaiting, float64(*r.Waiting), service)
	}
	if r.KVUse != nil {
		gauge(engineCache, *r.KVUse, service)
	}
}
