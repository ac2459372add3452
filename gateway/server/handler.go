package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
)

type identifier interface {
	Identify(ctx context.Context, token string) (auth.Identity, error)
}

type recorder interface {
	Record(u store.Usage)
}

// handler serves the OpenAI routes.
type handler struct {
	table     *route.Table
	relay     *relay.Relay
	keys      identifier
	meter     recorder
	metrics   *metrics
	log       hclog.Logger
	maxBody   int64
	anonymous bool
	ready     func(context.Context) []string // what is not ready, in words
}

func (h *handler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /ready", h.serveReady)
	mux.HandleFunc("GET /metrics", h.withKey(func(w http.ResponseWriter, r *http.Request, _ auth.Identity) { h.metrics.handler().ServeHTTP(w, r) }))
	mux.HandleFunc("GET /v1/models", h.withKey(h.serveModels))
	mux.HandleFunc("GET /v1/models/{model...}", h.withKey(h.serveModel))
	for _, operation := range []string{"chat/completions", "completions", "embeddings"} {
		mux.HandleFunc("POST /v1/"+operation, h.withKey(h.serveCompletion(strings.ReplaceAll(operation, "/", "."))))
		mux.HandleFunc("/v1/"+operation, func(w http.ResponseWriter, r *http.Request) { // any other method
			w.Header().Set("Allow", http.MethodPost)
			relay.WriteError(w, http.StatusMethodNotAllowed, "invalid_request_error", "method_not_supported", fmt.Sprintf("Not allowed to %s on %s: use POST.", r.Method, r.URL.Path))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		relay.WriteError(w, http.StatusNotFound, "invalid_request_error", "unknown_url", fmt.Sprintf("Unknown request URL: %s %s. This gateway serves /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models.", r.Method, r.URL.Path))
	})
	return withRequestID(mux)
}

// withRequestID passes on the client's request id or makes one, and returns it.
func withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if id == "" || len(id) > 128 || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
			id = "req-" + store.NewID()
			r.Header.Set("X-Request-Id", id)
		}
		w.Header().Set("X-Request-Id", id)
		next.ServeHTTP(w, r)
	})
}

func (h *handler) serveReady(w http.ResponseWriter, r *http.Request) {
	writeReady(w, h.ready(r.Context()))
}

// writeReady says what is not ready, in words; without any, all is.
func writeReady(w http.ResponseWriter, problems []string) {
	w.Header().Set("Content-Type", "application/json")
	status := http.StatusOK
	if len(problems) > 0 {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"ready": len(problems) == 0, "problems": problems}) //nolint:errcheck // the client left
}

// withKey lets a request pass with a valid endpoint key, or without one where anonymous use is on. Keys of other
// kinds are refused: a leaked admin key must not even look useful here.
func (h *handler) withKey(next func(http.ResponseWriter, *http.Request, auth.Identity)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token := auth.Token(r)
		if h.anonymous && !auth.IsKey(token) {
			// OpenAI's clients insist on sending some key.
			next(w, r, auth.Identity{Tenant: route.DefaultTenant, User: "anonymous"})
			return
		}
		if token == "" {
			relay.WriteError(w, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", "You didn't provide an API key. Send it in an Authorization header: Authorization: Bearer hf-endpoint-…")
			return
		}
		who, err := h.keys.Identify(r.Context(), token)
		switch {
		case errors.Is(err, auth.ErrExpired):
			relay.WriteError(w, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", fmt.Sprintf("The API key %s has expired.", masked(token)))
		case errors.Is(err, auth.ErrBadCredentials) || errors.Is(err, auth.ErrNoCredentials):
			relay.WriteError(w, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", fmt.Sprintf("Incorrect API key provided: %s.", masked(token)))
		case err != nil:
			h.log.Warn("key not checked", "error", err)
			w.Header().Set("Retry-After", "1")
			relay.WriteError(w, http.StatusServiceUnavailable, "api_error", "keys_unavailable", "keys cannot be checked now; try again")
		case who.Kind != "endpoint":
			relay.WriteError(w, http.StatusForbidden, "invalid_request_error", "wrong_key_kind", fmt.Sprintf("This is a key of kind %s; model calls take an endpoint key, see `heteroflow key create -kind endpoint`.", who.Kind))
		default:
			next(w, r, who)
		}
	}
}

// masked shows no more of a key than its last four characters.
func masked(token string) string {
	if len(token) <= 8 {
		return "****"
	}
	return "****" + token[len(token)-4:]
}

// may reports whether the caller may use the target. Without a key only anonymous use gets here.
func may(who auth.Identity, t route.Target) bool {
	if who.Kind == "" {
		return true
	}
	return who.Opens(store.Endpoint{ID: t.EndpointID, Tenant: t.Tenant})
}

func modelObject(t route.Target) map[string]any {
	return map[string]any{"id": t.Model, "object": "model", "created": 0, "owned_by": t.Tenant}
}

func (h *handler) serveModels(w http.ResponseWriter, _ *http.Request, who auth.Identity) {
	data := []any{}
	for _, t := range h.table.Targets() {
		if may(who, t) {
			data = append(data, modelObject(t))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data}) //nolint:errcheck // the client left
}

func (h *handler) serveModel(w http.ResponseWriter, r *http.Request, who auth.Identity) {
	t, ok := h.table.Lookup(r.PathValue("model"))
	if !ok || !may(who, t) {
		noModel(w, r.PathValue("model"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(modelObject(t)) //nolint:errcheck // the client left
}

// noModel gives the same answer for a model that is not there and for one of somebody else.
func noModel(w http.ResponseWriter, model string) {
	relay.WriteError(w, http.StatusNotFound, "invalid_request_error", "model_not_found", fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", model))
}

func (h *handler) serveCompletion(operation string) func(http.ResponseWriter, *http.Request, auth.Identity) {
	return func(w http.ResponseWriter, r *http.Request, who auth.Identity) {
		began := time.Now()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.maxBody))
		if err != nil {
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				relay.WriteError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", "body_too_large", fmt.Sprintf("The body is over the limit of %d bytes.", tooLarge.Limit))
				return
			}
			relay.WriteError(w, http.StatusBadRequest, "invalid_request_error", "body_cut_short", "The body ended before it was complete.")
			return
		}
		req, err := relay.Read(body)
		if err != nil {
			relay.WriteError(w, http.StatusBadRequest, "invalid_request_error", "", strings.TrimPrefix(err.Error(), relay.ErrBody.Error()+": "))
			return
		}
		target, ok := h.table.Lookup(req.Model)
		if !ok || !may(who, target) {
			noModel(w, req.Model)
			return
		}
		h.metrics.inFlight.Inc()
		outcome := h.relay.Exchange(w, r, req, target.Pool, balance.Ask{Policy: target.Policy})
		h.metrics.inFlight.Dec()
		took := time.Since(began)
		h.metrics.observe(target.Model, outcome, took.Seconds())
		h.meter.Record(store.Usage{
			ID: store.NewID(), Tenant: who.Tenant, KeyID: who.KeyID, EndpointID: target.EndpointID, Model: target.Model, Service: target.Service,
			Backend: outcome.Backend, Operation: operation, End: outcome.End, Stream: req.Stream, Status: outcome.Status, Tries: outcome.Tries,
			PromptTokens: outcome.Usage.PromptTokens, CompletionTokens: outcome.Usage.CompletionTokens,
			StartedAt: began.UTC(), Duration: took, FirstByte: outcome.FirstByte,
		})
		h.log.Debug("request", "request_id", r.Header.Get("X-Request-Id"), "model", target.Model, "status", outcome.Status, "end", outcome.End, "backend", outcome.Backend, "tries", outcome.Tries, "duration", took)
	}
}
