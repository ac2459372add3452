package server

import (
	"net/http"
	"sync/atomic"

	"github.com/heteroflow/heteroflow/gateway/relay"
)

// door answers from the first moment: with little until the database is open, then with everything.
type door struct {
	open atomic.Pointer[http.Handler]
}

func (d *door) set(h http.Handler) { d.open.Store(&h) }

// ServeHTTP answers one request.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := d.open.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case "/health":
		w.WriteHeader(http.StatusOK)
	case "/ready":
		writeReady(w, []string{"database: it is not open yet"})
	default:
		w.Header().Set("Retry-After", "1")
		relay.WriteError(w, r, http.StatusServiceUnavailable, "api_error", "database_unavailable", "the gateway waits for its database; try again")
	}
}
