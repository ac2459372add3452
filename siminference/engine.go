// Package siminference is an inference engine that infers nothing: it speaks OpenAI's protocol and Anthropic's, streams words at a
// set rate after a set start-up delay, and counts like vLLM, for machines without cards and for tests. It says in
// every answer that it is simulated. Routing, keys and metering are the gateway's and do not belong here.
package siminference

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Config shapes the simulated engine.
type Config struct {
	Model        string        // name it serves under
	TokensPerSec float64       // decode rate of one request; 0 answers as fast as it can
	StartupDelay time.Duration // how long /health says 503 after the start
	PrefillPerK  time.Duration // time to the first token for each 1,000 prompt tokens
	MaxRunning   int           // requests that run at once; more wait. 0 is no limit
	MaxTokens    int           // answer length when the request sets none
}

// Engine serves the simulated model. Make it with New.
type Engine struct {
	cfg     Config
	started time.Time
	slots   chan struct{} // nil without a limit
	metrics *metrics

	mu     sync.Mutex
	nextID uint64
}

// New checks the config and makes an engine; its start-up delay begins now.
func New(cfg Config) (*Engine, error) {
	switch {
	case cfg.Model == "":
		return nil, errors.New(`model has no name: write one, for example -model sim-7b`)
	case cfg.TokensPerSec < 0 || cfg.StartupDelay < 0 || cfg.PrefillPerK < 0 || cfg.MaxRunning < 0 || cfg.MaxTokens < 0:
		return nil, errors.New("rates, delays and limits must not be negative")
	}
	if cfg.MaxTokens == 0 {
		cfg.MaxTokens = 32
	}
	e := &Engine{cfg: cfg, started: time.Now(), metrics: newMetrics(cfg.Model)}
	if cfg.MaxRunning > 0 {
		e.slots = make(chan struct{}, cfg.MaxRunning)
	}
	return e, nil
}

// Ready reports whether the start-up delay is over.
func (e *Engine) Ready() bool { return time.Since(e.started) >= e.cfg.StartupDelay }

// Handler serves OpenAI's routes, Anthropic's messages, /health and /metrics.
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", e.health)
	mux.Handle("GET /metrics", e.metrics.handler())
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("POST /v1/chat/completions", e.generate(chatShape))
	mux.HandleFunc("POST /v1/completions", e.generate(textShape))
	mux.HandleFunc("POST /v1/embeddings", e.embeddings)
	mux.HandleFunc("POST /v1/messages", e.messages)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "heteroflow-sim-inference")
		mux.ServeHTTP(w, r)
	})
}

func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	if !e.Ready() {
		writeError(w, http.StatusServiceUnavailable, "service_unavailable", "the simulated model is still loading")
		return
	}
	w.WriteHeader(http.StatusOK)
}

// enter waits for a slot and reports the request as running until leave is called. It fails when the client leaves.
func (e *Engine) enter(ctx context.Context) (leave func(), err error) {
	if e.slots != nil {
		e.metrics.waiting.Inc()
		defer e.metrics.waiting.Dec()
		select {
		case e.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	e.metrics.running.Inc()
	return func() {
		e.metrics.running.Dec()
		if e.slots != nil {
			<-e.slots
		}
	}, nil
}

func (e *Engine) id(prefix string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextID++
	return fmt.Sprintf("%s-sim-%d", prefix, e.nextID)
}

// decode hands out n words at the set rate and reports how many came out before the context ended.
func (e *Engine) decode(ctx context.Context, promptTokens, n int, emit func(word string) error) (int, error) {
	if !clock.Sleep(ctx, clock.System(), e.cfg.PrefillPerK*time.Duration(promptTokens)/1000) {
		return 0, ctx.Err()
	}
	var gap time.Duration
	if e.cfg.TokensPerSec > 0 {
		gap = time.Duration(float64(time.Second) / e.cfg.TokensPerSec)
	}
	for i := range n {
		if !clock.Sleep(ctx, clock.System(), gap) {
			return i, ctx.Err()
		}
		if err := emit(word(i)); err != nil {
			return i, err
		}
		e.metrics.generated.Inc()
	}
	return n, nil
}

var words = strings.Fields("this answer is simulated : no model ran , no card was used , each word is one token .")

func word(i int) string {
	w := words[i%len(words)]
	if i == 0 {
		return w
	}
	return " " + w
}

// CountTokens is the simulated tokeniser: one token for each word of letters and digits and for each other sign
// that is not a blank; a Han character is one token.
func CountTokens(text string) int {
	n, inWord := 0, false
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			inWord = false
		case unicode.Is(unicode.Han, r):
			n++
			inWord = false
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			if !inWord {
				n++
			}
			inWord = true
		default:
			n++
			inWord = false
		}
	}
	return n
}
