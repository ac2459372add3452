package inference

import (
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Habits are what somebody who relays requests to a kind of engine has to know of it. The zero value is what is taken
// of an engine that is not known.
//
// Where the kinds do not differ for the gateway there is nothing here: all of them tell usage where OpenAI's API has it,
// in a stream when stream_options asks for it, and all stop working for a client whose connection closes.
type Habits struct {
	// HeadersWithToken: the headers of a stream come with its first token, and not at once, so that a queue or a long
	// prompt looks like silence.
	HeadersWithToken bool
	// Ready is the path that answers 200 when the engine can take requests; empty is /health.
	Ready string
	// Metrics is the path of its metrics in Prometheus' text format; empty is /metrics.
	Metrics string
	// Running, Waiting and KVUse are the names of those of its metrics that say how many requests it works on and has in its
	// queue, and which part of its cache is taken, 0 to 1. Several names are those of several versions. Empty: it does not tell.
	Running, Waiting, KVUse []string
}

// habits by kind of engine. Sources, read and not tried:
//   - SGLang: serving_chat.py and serving_completions.py await the first chunk before they answer 200; its document on
//     production metrics.
//   - llama.cpp: server-context.cpp takes the first result before the headers of a stream; the server's README for /health,
//     which is 503 while a model loads, and for /metrics. It has told no use of its cache since 2025.
//   - vLLM: openai_server answers at once; /health is 503 once its engine is dead; its document on metrics, version 1 and the
//     names before it.
//   - TensorRT-LLM: trtllm-serve answers at once; its /metrics are statistics in JSON, those for Prometheus lie below
//     /prometheus; names as Gateway API Inference Extension's protocol for model servers has them.
//   - MindIE: Service Developer Guide, health check and service metrics. Both answer on the management and the metrics
//     port where the configuration names other ports than the service's own.
var habits = map[string]Habits{
	VLLM: {
		Running: []string{"vllm:num_requests_running"}, Waiting: []string{"vllm:num_requests_waiting"},
		KVUse: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	},
	SGLang: {
		HeadersWithToken: true,
		Running:          []string{"sglang:num_running_reqs"}, Waiting: []string{"sglang:num_queue_reqs"}, KVUse: []string{"sglang:token_usage"},
	},
	LlamaCPP: {
		HeadersWithToken: true,
		Running:          []string{"llamacpp:requests_processing"}, Waiting: []string{"llamacpp:requests_deferred"}, KVUse: []string{"llamacpp:kv_cache_usage_ratio"},
	},
	TensorRTLLM: {
		Metrics: "/prometheus/metrics",
		Running: []string{"trtllm_num_requests_running"}, Waiting: []string{"trtllm_num_requests_waiting"}, KVUse: []string{"trtllm_kv_cache_utilization"},
	},
	MindIE: {
		Ready:   "/v2/health/ready",
		Running: []string{"num_requests_running"}, Waiting: []string{"num_requests_waiting"},
	},
}

// HabitsOf gives what is known of a kind of engine.
func HabitsOf(kind string) Habits {
	h := habits[kind]
	if h.Ready == "" {
		h.Ready = "/health"
	}
	if h.Metrics == "" {
		h.Metrics = "/metrics"
	}
	return h
}

// IsReady is what an answer of the path Ready says. An engine that does not know the path answers, and that is all that
// can be learned of it.
func (h Habits) IsReady(status int) bool { return status < http.StatusInternalServerError }

// Reading is what an engine's metrics tell. What they do not tell is nil.
type Reading struct {
	Running *int
	Waiting *int
	KVUse   *float64 // 0 to 1, of the fullest where there are several
}

// Read reads metrics in Prometheus' text format.
func (h Habits) Read(from io.Reader) (Reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(from, maxAnswer))
	if err != nil && len(families) == 0 {
		return Reading{}, fmt.Errorf("read metrics: %w", err)
	}
	values := func(names []string) (list []float64) {
		for _, name := range names {
			for _, m := range families[name].GetMetric() {
				switch {
				case m.GetGauge() != nil:
					list = append(list, m.GetGauge().GetValue())
				case m.GetUntyped() != nil:
					list = append(list, m.GetUntyped().GetValue())
				}
			}
			if len(list) > 0 {
				break
			}
		}
		return list
	}
	var r Reading
	r.Running, r.Waiting = sum(values(h.Running)), sum(values(h.Waiting))
	for _, v := range values(h.KVUse) {
		if v >= 0 && v <= 1 && (r.KVUse == nil || v > *r.KVUse) {
			r.KVUse = new(v)
		}
	}
	return r, nil
}

// sum adds what the parts of one engine tell; nil without any, or with one that makes no sense.
func sum(values []float64) *int {
	if len(values) == 0 {
		return nil
	}
	total := 0.0
	for _, v := range values {
		if !(v >= 0 && v < 1e9) {
			return nil
		}
		total += v
	}
	return new(int(total))
}
