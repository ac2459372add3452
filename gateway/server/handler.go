package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/limit"
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
	rules     relay.Rules
	keys      identifier
	limits    *limit.Limiter // nil has none
	meter     recorder
	metrics   *metrics
	signals   *signals // nil in tests that tell nobody
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
	for _, path := range relay.Paths() {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { // any other method
			w.Header().Set("Allow", http.MethodPost)
			relay.WriteError(w, r, http.StatusMethodNotAllowed, "invalid_request_error", "method_not_supported", fmt.Sprintf("Not allowed to %s on %s: use POST.", r.Method, r.URL.Path))
		})
	}
	other := h.withKey(h.servePath)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			other(w, r)
			return
		}
		unknownURL(w, r)
	})
	return h.entrance(mux)
}

// entrance is before all paths: it names requests, and refuses what has been here before, from a backend's address that
// leads back to a gateway. Operations, which nearly all requests are, are found without the table of the other paths.
func (h *handler) entrance(others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		row := name(w, r)
		if h.relay.Looped(r) {
			relay.WriteError(w, r, http.StatusLoopDetected, "api_error", "loop_detected", "The request has come back to this gateway: a backend's address is that of a gateway.")
			return
		}
		operation, ok := relay.Find(r.URL.Path)
		if !ok || r.Method != http.MethodPost {
			others.ServeHTTP(w, r)
			return
		}
		if who, ok := h.admit(w, r); ok {
			h.serveOperation(w, r, who, operation, row)
		}
	})
}

func unknownURL(w http.ResponseWriter, r *http.Request) {
	relay.WriteError(w, r, http.StatusNotFound, "invalid_request_error", "unknown_url", fmt.Sprintf("Unknown request URL: %s %s. This gateway serves GET /v1/models and POST %s. An engine's other paths are served by POST for models whose service has the tag %s<path>.",
		r.Method, r.URL.Path, strings.Join(relay.Paths(), ", "), discover.PathTag))
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

// withKey lets a request pass that admit admits.
func (h *handler) withKey(next func(http.ResponseWriter, *http.Request, auth.Identity)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if who, ok := h.admit(w, r); ok {
			next(w, r, who)
		}
	}
}

// admit tells who calls, with a valid endpoint key or, where anonymous use is on, without one; or it has answered. Keys
// of other kinds are refused: a leaked admin key must not even look useful here.
func (h *handler) admit(w http.ResponseWriter, r *http.Request) (who auth.Identity, ok bool) {
	token := keyOf(r)
	if h.anonymous && !auth.IsKey(token) {
		// OpenAI's clients insist on sending some key.
		return auth.Identity{Tenant: route.DefaultTenant, User: "anonymous"}, true
	}
	if token == "" {
		relay.WriteError(w, r, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", "You didn't provide an API key. Send it in an Authorization header: Authorization: Bearer hf-endpoint-…"+misplaced(r))
		return who, false
	}
	who, err := h.keys.Identify(r.Context(), token)
	switch {
	case err == nil && who.Kind == "endpoint":
		return who, true
	case err == nil:
		relay.WriteError(w, r, http.StatusForbidden, "invalid_request_error", "wrong_key_kind", fmt.Sprintf("This is a key of kind %s; model calls take an endpoint key, see `heteroflow key create -kind endpoint`.", who.Kind))
	case errors.Is(err, auth.ErrExpired):
		relay.WriteError(w, r, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", fmt.Sprintf("The API key %s has expired.", masked(token)))
	case errors.Is(err, auth.ErrBadCredentials) || errors.Is(err, auth.ErrNoCredentials):
		relay.WriteError(w, r, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", fmt.Sprintf("Incorrect API key provided: %s.", masked(token)))
	default:
		h.log.Warn("key not checked", "error", err)
		w.Header().Set("Retry-After", "1")
		relay.WriteError(w, r, http.StatusServiceUnavailable, "api_error", "keys_unavailable", "keys cannot be checked now; try again")
	}
	return who, false
}

// keyOf is the key of a call, in either of the headers in which OpenAI's and Anthropic's clients send it.
func keyOf(r *http.Request) string {
	if token := auth.Token(r); token != "" {
		return token
	}
	return strings.TrimSpace(r.Header.Get("X-Api-Key"))
}

// misplaced names the place where a key was sent that is none.
func misplaced(r *http.Request) string {
	switch {
	case r.Header.Get("Authorization") != "":
		return " The Authorization header that was sent has no scheme Bearer."
	case r.Header.Get("Api-Key") != "":
		return " A key in the header Api-Key is not read."
	case r.URL.Query().Has("key") || r.URL.Query().Has("api_key"):
		return " A key in the URL is not read."
	}
	return ""
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

func (h *handler) serveModels(w http.ResponseWriter, r *http.Request, who auth.Identity) {
	data, first, last := []any{}, any(nil), any(nil)
	anthropic := r.Header.Get("Anthropic-Version") != ""
	for _, t := range h.table.Targets() {
		if !may(who, t) {
			continue
		}
		if first == nil {
			first = t.Model
		}
		last = t.Model
		if anthropic {
			data = append(data, map[string]any{"type": "model", "id": t.Model, "display_name": t.Model, "created_at": "1970-01-01T00:00:00Z"})
			continue
		}
		data = append(data, modelObject(t))
	}
	list := map[string]any{"object": "list", "data": data}
	if anthropic { // source: Anthropic's API reference, list models
		list = map[string]any{"data": data, "has_more": false, "first_id": first, "last_id": last}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(list) //nolint:errcheck // the client left
}

func (h *handler) serveModel(w http.ResponseWriter, r *http.Request, who auth.Identity) {
	t, ok := h.table.Lookup(r.PathValue("model"))
	if !ok || !may(who, t) {
		noModel(w, r, r.PathValue("model"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(modelObject(t)) //nolint:errcheck // the client left
}

// noModel gives the same answer for a model that is not there and for one of somebody else.
func noModel(w http.ResponseWriter, r *http.Request, model string) {
	relay.WriteError(w, r, http.StatusNotFound, "invalid_request_error", "model_not_found", fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", model))
}
