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
	"github.com/heteroflow/heteroflow/gateway/hold"
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
	Times                  discover.Times
	Policy                 balance.Policy
	Pool                   *balance.Pool
	Queue                  *hold.Queue // nil: requests for the service never wait
}

// Service is what all models that are served by one service share.
type Service struct {
	Name   string
	Engine string // kind; empty when it is not said
	Pool   *balance.Pool
	Queue  *hold.Queue // nil: requests for the service never wait
}

// Table is the present routing table. It is safe for concurrent use.
type Table struct {
	endpoints Endpoints
	watcher   *discover.Watcher
	newQueue  func(string, *balance.Pool) *hold.Queue
	clock     clock.Clock
	log       hclog.Logger

	mu       sync.RWMutex
	byModel  map[string]Target
	services map[string]*Service       // by name; kept while the service is known
	offers   map[string]discover.Offer // of services, the last one of each that is known
	rows     []store.Endpoint
	storeOK  error
	built    chan struct{} // closed once the table holds what registry and store said
	isBuilt  bool
}

var errNotRead = errors.New("endpoints have not been read yet")

// refresh is how often endpoints are read again; a new or deleted one takes effect within it.
const refresh = time.Second

// NewTable makes an empty table; Run fills it. newQueue makes the queue of a service whose requests may wait; nil where
// none ever do.
func NewTable(e Endpoints, w *discover.Watcher, newQueue func(service string, p *balance.Pool) *hold.Queue, c clock.Clock, log hclog.Logger) *Table {
	return &Table{
		endpoints: e, watcher: w, newQueue: newQueue, clock: c, log: log, storeOK: errNotRead,
		byModel: map[string]Target{}, services: map[string]*Service{}, offers: map[string]discover.Offer{}, built: make(chan struct{}),
	}
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

func (t *Table) build(found []discover.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	services, offers := map[string]*Service{}, map[string]discover.Offer{}
	service := func(name string, offer discover.Offer) *Service {
		if services[name] == nil {
			services[name] = t.service(name)
		}
		s := services[name]
		s.Engine, offers[name] = offer.Engine, offer
		if s.Queue != nil {
			s.Queue.SetSlots(offer.Slots)
		}
		return s
	}
	byModel := map[string]Target{}
	for _, s := range found {
		list := make([]balance.Backend, 0, len(s.Instances))
		for _, i := range s.Instances {
			list = append(list, balance.Backend{ID: i.ID, Addr: i.Addr, Ready: i.Ready, Metrics: i.Metrics})
		}
		at := service(s.Name, s.Offer)
		at.Pool.Set(list)
		for _, model := range s.Models {
			byModel[model] = target(at, s.Offer, Target{Model: model, Tenant: DefaultTenant, Policy: balance.DefaultPolicy})
		}
	}
	for _, e := range t.rows {
		policy, err := balance.ParsePolicy(e.Policy)
		if err != nil {
			t.log.Error("endpoint has a policy this gateway does not know, using the default", "endpoint", e.ID, "error", err)
			policy = balance.DefaultPolicy
		}
		offer, ok := offers[e.Service]
		if !ok { // without an instance a service has no tags: it is what it was last
			offer = t.offers[e.Service]
			service(e.Service, offer).Pool.Set(nil)
		}
		byModel[e.Model] = target(services[e.Service], offer, Target{Model: e.Model, Tenant: e.Tenant, EndpointID: e.ID, Policy: policy})
	}
	t.byModel, t.services, t.offers = byModel, services, offers
	if !t.isBuilt && t.storeOK == nil && t.watcher.Err() == nil {
		t.isBuilt = true
		close(t.built)
	}
}

// Await waits until the table holds what the registry and the store have said, and reports whether it does.
func (t *Table) Await(ctx context.Context) bool {
	select {
	case <-t.built:
		return true
	case <-ctx.Done():
		return false
	}
}

// service keeps what is known of a service that stays. The copy is the new table's own.
func (t *Table) service(name string) *Service {
	if s := t.services[name]; s != nil {
		kept := *s
		return &kept
	}
	s := &Service{Name: name, Pool: balance.NewPool(t.clock)}
	if t.newQueue != nil {
		s.Queue = t.newQueue(name, s.Pool)
	}
	return s
}

// target completes what an endpoint or a tag says by what the service says.
func target(s *Service, o discover.Offer, t Target) Target {
	t.Service, t.Pool, t.Queue = s.Name, s.Pool, s.Queue
	t.Served, t.Paths, t.Engine, t.Times = o.Served, o.Paths, o.Engine, o.Times
	return t
}

// Services lists every service, ordered by name.
func (t *Table) Services() []Service {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]Service, 0, len(t.services))
	for _, s := range t.services {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return list
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
