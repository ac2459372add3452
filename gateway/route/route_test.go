package route

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// fakes: a store of endpoints that pages by one, and a registry with two services.
type endpoints struct {
	mu   sync.Mutex
	rows []store.Endpoint
	err  error
}

func (e *endpoints) ListEndpoints(_ context.Context, _ string, page store.Page) ([]store.Endpoint, string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, "", e.err
	}
	for i, row := range e.rows {
		if page.Cursor == "" || row.ID == page.Cursor {
			if i+1 < len(e.rows) {
				return []store.Endpoint{row}, e.rows[i+1].ID, nil
			}
			return []store.Endpoint{row}, "", nil
		}
	}
	return nil, "", nil
}

func (e *endpoints) set(err error, rows ...store.Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows, e.err = rows, err
}

type registry struct{}

func (registry) Names(ctx context.Context, index uint64) (map[string]discover.Offer, uint64, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return map[string]discover.Offer{"tagged": {Models: []string{"by-tag"}}, "plain": {}}, 1, nil
}

func (registry) Live(ctx context.Context, name string, index uint64) ([]discover.Instance, uint64, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return []discover.Instance{{ID: name + "-1", Addr: "127.0.0.1:1"}}, 1, nil
}

func hasBackend(target Target) bool {
	lease := target.Pool.Take(balance.Ask{Policy: balance.RoundRobin})
	if lease == nil {
		return false
	}
	lease.Done(balance.Neutral)
	return true
}

func TestTable_ModelsByTagAndByEndpoint(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	rows := &endpoints{}
	rows.set(nil,
		store.Endpoint{ID: "1", Tenant: "a", Model: "by-row", Service: "plain", Policy: "least_connections"},
		store.Endpoint{ID: "2", Tenant: "b", Model: "nobody", Service: "absent"},
	)
	ctx, cancel := context.WithCancel(context.Background())
	watcher := discover.NewWatcher(registry{}, hclog.NewNullLogger())
	table := NewTable(rows, watcher, nil, now, hclog.NewNullLogger())
	var wg sync.WaitGroup
	wg.Go(func() { watcher.Run(ctx) }) //nolint:errcheck // ends with the context
	wg.Go(func() { table.Run(ctx) })   //nolint:errcheck // ends with the context
	defer wg.Wait()
	defer cancel()

	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never came true: %s; targets %+v", what, table.Targets())
			}
			now.Advance(refresh)
		}
	}
	live := func(model string) bool {
		target, ok := table.Lookup(model)
		return ok && hasBackend(target)
	}
	until("both models have a backend", func() bool { return live("by-tag") && live("by-row") })
	if err := table.Err(); err != nil {
		t.Errorf("in step: %v", err)
	}
	row, _ := table.Lookup("by-row")
	if row.Policy != balance.LeastConnections || row.Tenant != "a" || row.EndpointID != "1" {
		t.Errorf("by-row: %+v", row)
	}
	tagged, _ := table.Lookup("by-tag")
	if tagged.Tenant != DefaultTenant || tagged.EndpointID != "" {
		t.Errorf("by-tag: %+v", tagged)
	}
	if nobody, ok := table.Lookup("nobody"); !ok || hasBackend(nobody) {
		t.Errorf("a model whose service is absent is known and has no backend: %+v", nobody)
	}

	rows.set(errors.New("database is away"))
	until("the table says that the store is away", func() bool { return table.Err() != nil })
	if !live("by-row") {
		t.Error("the last endpoints must be kept while the store is away")
	}
	rows.set(nil)
	until("a deleted endpoint is gone", func() bool { _, ok := table.Lookup("by-row"); return !ok })
	if !live("by-tag") {
		t.Error("a model by tag must not go with the endpoints")
	}
}
