package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/version"
)

// edge answers HTTP from the first moment: with little until the database is there, then with everything.
type edge struct {
	log     hclog.Logger
	handler atomic.Pointer[http.Handler]
	closed  chan struct{}
	ending  context.Context // ends when the service begins to stop
	end     context.CancelFunc
}

func newEdge(log hclog.Logger) *edge {
	e := &edge{log: log.Named("http"), closed: make(chan struct{})}
	e.ending, e.end = context.WithCancel(context.Background())
	return e
}

func (e *edge) set(h http.Handler) { e.handler.Store(&h) }

// ServeHTTP answers one request.
func (e *edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer e.recover(w, r)
	if lasts(r) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(e.ending, func() { cancel(httpx.ErrStopping) })()
		r = r.WithContext(ctx)
	}
	if h := e.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	reason := "it is not open yet"
	switch r.URL.Path {
	case "/health":
		httpx.WriteJSON(w, http.StatusOK, api.Health{Status: "ok", Version: version.Version})
	case "/ready":
		httpx.WriteJSON(w, http.StatusServiceUnavailable, api.Ready{Parts: []api.ReadyPart{{Name: "database", Reason: &reason}}})
	default:
		httpx.WriteProblem(w, httpx.NewProblem(http.StatusServiceUnavailable, "database_unavailable", "the database cannot be reached: try again"))
	}
}

// lasts reports whether a request waits for something to happen, or streams what does. Nobody is to wait for its end.
func lasts(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	query := r.URL.Query()
	return query.Has("wait") || query.Has("index") || query.Get("follow") == "true" ||
		r.URL.Path == "/v1/event/stream" || r.URL.Path == "/v1/agent/monitor"
}

func (e *edge) recover(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler { // how a proxied stream is broken off
		panic(cause)
	}
	e.log.Error("a handler panicked", "method", r.Method, "path", r.URL.Path, "cause", cause, "stack", string(debug.Stack()))
	httpx.WriteProblem(w, httpx.NewProblem(http.StatusInternalServerError, "internal", "an internal error, see the server's log"))
}

// serve answers until the context ends and then lets requests finish for a while, except those that last.
func (e *edge) serve(ctx context.Context, listener net.Listener) error {
	defer close(e.closed)
	srv := &http.Server{
		Handler: e, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 1 << 20,
		ErrorLog: e.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	} // no time limit on writing: streams and blocking queries last
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	e.end()
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		e.log.Debug("requests broken off", "error", err)
		if err := srv.Close(); err != nil {
			e.log.Debug("connections not closed", "error", err)
		}
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// drained returns when no request is being answered any more.
func (e *edge) drained() { <-e.closed }

type requestMetrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newRequestMetrics() requestMetrics {
	return requestMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_http_requests_total", Help: "Requests by API and class of status.",
		}, []string{"api", "class"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "heteroflow_http_request_seconds", Help: "Time to the end of the answer, by API. Streams and blocking queries count whole.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}, []string{"api"}),
	}
}

// observe counts and logs requests: who asked for which path and how it went, never the query, headers or bodies,
// which may hold secrets.
func observe(c Config, m requestMetrics, next http.Handler) http.Handler {
	log := c.Log.Named("request")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := c.Clock.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			took := c.Clock.Now().Sub(began)
			area := "own"
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				area = "nomad"
			}
			status := rec.status
			if status == 0 {
				status = http.StatusOK
			}
			m.total.WithLabelValues(area, strconv.Itoa(status/100)+"xx").Inc()
			m.duration.WithLabelValues(area).Observe(took.Seconds())
			log.Debug("answered", "method", r.Method, "path", r.URL.Path, "status", status, "took", took)
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder remembers the status. Unwrap lets streams flush and upgrades take the connection.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
