package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/store"
)

// genAI are the metrics that OpenTelemetry's conventions for generative AI name, in Prometheus' spelling. Names, labels
// and limits of buckets: semantic-conventions v1.41.0, docs/gen-ai/gen-ai-metrics.md.
type genAI struct {
	duration, firstToken, tokens *prometheus.HistogramVec
}

func newGenAI(r prometheus.Registerer) *genAI {
	labels := []string{"gen_ai_operation_name", "gen_ai_request_model"}
	g := &genAI{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_server_request_duration_seconds", Help: "Time of requests to a model, to the last byte.",
			Buckets: []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92},
		}, append(labels, "error_type")),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_server_time_to_first_token_seconds", Help: "Time to the first token of streams that ended well.",
			Buckets: []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10},
		}, labels),
		tokens: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_client_token_usage", Help: "Tokens of requests that engines told of.",
			Buckets: []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864},
		}, append(labels, "gen_ai_token_type")),
	}
	r.MustRegister(g.duration, g.firstToken, g.tokens)
	return g
}

// operationNames are the conventions' own where they have one.
var operationNames = map[string]string{
	"chat.completions": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion", "embeddings": "embeddings",
}

// genAISeries are the numbers of one kind of request; nil where it has none.
type genAISeries struct {
	duration, firstToken, input, output prometheus.Observer
}

// of gives the numbers of requests with these labels. The conventions want no guesses.
func (g *genAI) of(l labels) genAISeries {
	operation := operationNames[l.operation]
	if operation == "" {
		operation = l.operation
	}
	failure := ""
	if l.end != store.EndDone {
		failure = l.end
	}
	s := genAISeries{duration: g.duration.WithLabelValues(operation, l.model, failure)}
	if l.stream && l.first && failure == "" {
		s.firstToken = g.firstToken.WithLabelValues(operation, l.model)
	}
	if l.prompt == some {
		s.input = g.tokens.WithLabelValues(operation, l.model, "input")
	}
	if l.completion == some {
		s.output = g.tokens.WithLabelValues(operation, l.model, "output")
	}
	return s
}

func (s *genAISeries) observe(u *store.Usage) {
	s.duration.Observe(u.Duration.Seconds())
	if s.firstToken != nil {
		s.firstToken.Observe(u.FirstByte.Seconds())
	}
	if s.input != nil {
		s.input.Observe(float64(*u.PromptTokens))
	}
	if s.output != nil {
		s.output.Observe(float64(*u.CompletionTokens))
	}
}
