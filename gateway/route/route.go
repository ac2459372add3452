// Package route resolves the model of a request to the pool of backends that serve it: from the endpoints in the
// store and from the model tags of the services that discovery sees. Sending the request does not belong here.
package route

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// DefaultTenant owns the models that services name by tag, without an endpoint in the store.
const DefaultTenant = "default"

// Endpoints lists every endpoint of the store.
type Endpoints interface {
	ListEndpoints(ctx context.Context, tenant string, page store.Page) ([]store.Endpoint, string, error)
}

// Target is a model that can be called.
type Target struct {
	Model, Service, Tenant string
	EndpointID             string   // empty for a model named by tag only
	Served                 string   // the model's name at its engine; empty when it is the same
	Paths                  []string // of the engine's own, that may be used
	Engine                 string   // kind of engine; empty when it is not said
	Policy                 balance.Policy
	Pool                   *balance.Pool
}

// Table is the present routing table. It is safe for concurrent use.
type Table struct {
	endpoints Endpoints
	watcher   *discover.Watcher
	clock     clock.Clock
	log       hclog.Logger

	mu      sync.RWMutex
	byModel map[string]Target
	pools   map[string]*balance.Pool // by service name; kept while the service is known
	rows    []store.Endpoint
	storeOK error
}

var errNotRead = errors.New("endpoints have not been read yet")

// refresh is how often endpoints are read again; a new or deleted one takes effect within it.
const refresh = time.Second

// NewTable makes an empty table; Run fills it.
func NewTable(e Endpoints, w *discover.Watcher, c clock.Clock, log hclog.Logger) *Table {
	return &Table{endpoints: e, watcher: w, clock: c, log: log, byModel: map[string]Target{}, pools: map[string]*balance.Pool{}, storeOK: errNotRead}
}

// Run keeps the table current until the context ends.
func (t *Table) Run(ctx context.Context) error {
	tick := t.clock.NewTicker(refresh)
	defer tick.Stop()
	t.readEndpoints(ctx)
	for {
		services, changed := t.watcher.Services()
		t.build(services)
		select {
		case <-tick.C():
			t.readEndpoints(ctx)
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readEndpoints keeps the last list while the store does not answer.
func (t *Table) readEndpoints(ctx context.Context) {
	var all []store.Endpoint
	page := store.Page{Limit: 500}
	for {
		rows, next, err := t.endpoints.ListEndpoints(ctx, "", page)
		if err != nil {
			t.mu.Lock()
			first := t.storeOK == nil
			t.storeOK = err
			t.mu.Unlock()
			if first && ctx.Err() == nil {
				t.log.Warn("endpoints not read, keeping the last list", "error", err)
			}
			return
		}
		all = append(all, rows...)
		if next == "" {
			break
		}
		page.Cursor = next
	}
	names := make([]string, 0, len(all))
	for _, e := range all {
		names = append(names, e.Service)
	}
	t.watcher.Want(names)
	t.mu.Lock()
	t.rows, t.storeOK = all, nil
	t.mu.Unlock()
}

func (t *Table) build(services []discover.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pools := map[string]*balance.Pool{}
	pool := func(name string) *balance.Pool {
		if pools[name] == nil {
			pools[name] = t.pools[name]
			if pools[name] == nil {
				pools[name] = balance.NewPool(t.clock)
			}
		}
		return pools[name]
	}
	byModel := map[string]Target{}
	live := map[string]discover.Offer{}
	for _, s := range services {
		live[s.Name] = s.Offer
		list := make([]balance.Backend, 0, len(s.Instances))
		for _, i := range s.Instances {
			list = append(list, balance.Backend{ID: i.ID, Addr: i.Addr})
		}
		pool(s.Name).Set(list)
		for _, model := range s.Models {
			byModel[model] = Target{Model: model, Service: s.Name, Tenant: DefaultTenant, Policy: balance.DefaultPolicy, Pool: pool(s.Name), Served: s.Served, Paths: s.Paths, Engine: s.Engine}
		}
	}
	for _, e := range t.rows {
		policy, err := balance.ParsePolicy(e.Policy)
		if err != nil {
			t.log.Error("endpoint has a policy this gateway does not know, using the default", "endpoint", e.ID, "error", err)
			policy = balance.DefaultPolicy
		}
		offer, ok := live[e.Service]
		if !ok {
			pool(e.Service).Set(nil)
		}
		byModel[e.Model] = Target{Model: e.Model, Service: e.Service, Tenant: e.Tenant, EndpointID: e.ID, Policy: policy, Pool: pool(e.Service), Served: offer.Served, Paths: offer.Paths, Engine: offer.Engine}
	}
	t.byModel, t.pools = byModel, pools
}

// Lookup finds the target of a model name.
func (t *Table) Lookup(model string) (Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byModel[model]
	return target, ok
}

// Targets lists every model, ordered by name.
func (t *Table) Targets() []Target {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]Target, 0, len(t.byModel))
	for _, target := range t.byModel {
		list = append(list, target)
	}
	slices.SortFunc(list, func(a, b Target) int { return cmp.Compare(a.Model, b.Model) })
	return list
}

// Err is nil when the endpoints were read from the store last time.
func (t *Table) Err() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.storeOK
}
