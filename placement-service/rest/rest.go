// Package rest answers the service's own API, /api/v1 with /health, /ready and /metrics, by the interface generated
// from api/openapi.yaml: one file for each domain, a handler being decode, call, encode. Nomad's API and all that
// decides do not belong here.
package rest

import (
	"context"
	"crypto/ed25519"
	"net/http"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/gangs"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/scale"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/tuning"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Identify tells who sent a request.
type Identify interface {
	Of(*http.Request) (identity.Who, error)
}

// Check asks whether a part answers.
type Check struct {
	Name string // nomad, consul or database
	Ping func(context.Context) error
}

// Config is what the handlers need.
type Config struct {
	Store     *store.Store
	Nomad     *nomadapi.Client
	World     *watch.World
	Ledger    *ledger.View
	Submit    *submit.Submitter
	Tuning    *tuning.Tuning
	Gangs     *gangs.Room
	Scaling   func() []scale.Status
	Who       Identify
	Checks    []Check
	PublicKey ed25519.PublicKey
	Version   string
	Metrics   prometheus.Gatherer
	Clock     clock.Clock
	Log       hclog.Logger
}

// server implements the generated interface.
type server struct {
	Config
	log hclog.Logger
}

var _ api.StrictServerInterface = (*server)(nil)

// New makes the handler.
func New(c Config) (http.Handler, error) {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	s := &server{Config: c, log: c.Log.Named("rest")}
	gate, err := newGate(c.Who, s.log, s.turnedAway)
	if err != nil {
		return nil, err
	}
	strict := api.NewStrictHandlerWithOptions(s, nil, api.StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  badRequest,
		ResponseErrorHandlerFunc: s.failed,
	})
	mux := api.HandlerWithOptions(strict, api.StdHTTPServerOptions{ErrorHandlerFunc: badRequest})
	return gate.guard(mux), nil
}
