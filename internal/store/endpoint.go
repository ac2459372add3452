package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Balancing policies of an endpoint. What they do is said in gateway/balance.
const (
	LeastTokens      = "least_tokens"
	PrefixCost       = "prefix_cost"
	LeastConnections = "least_connections"
	RoundRobin       = "round_robin"
	Random           = "random"
)

// Policies lists the policies, the one that is meant when none is named first.
func Policies() []string {
	return []string{LeastTokens, PrefixCost, LeastConnections, RoundRobin, Random}
}

// Endpoint serves one model name by one service. Model names are unique.
type Endpoint struct {
	ID        string // made by CreateEndpoint when empty
	Tenant    string
	Model     string
	Service   string
	Policy    string // one of Policies; empty is the first
	CreatedAt time.Time
	Version   int64
}

// CreateEndpoint stores a new endpoint and returns it as stored. ErrConflict when the model or the id is taken.
func (s *Store) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	if e.ID == "" {
		e.ID = NewID()
	}
	if e.CreatedAt.IsZero() {
		e.CreatedAt = s.now()
	}
	if err := e.check(); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	n, err := s.writer().InsertEndpoint(ctx, sqlgen.InsertEndpointParams{
		ID: e.ID, Tenant: e.Tenant, Model: e.Model, Service: e.Service, Policy: e.Policy, CreatedAt: micros(e.CreatedAt),
	})
	if err == nil && n == 0 {
		err = ErrConflict
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint of model %s: %w", e.Model, err)
	}
	e.Version, e.CreatedAt = 1, stamp(e.CreatedAt)
	return e, nil
}

func (e *Endpoint) check() error {
	if err := checkNames(e.ID, e.Tenant, e.Model, e.Service); err != nil {
		return err
	}
	if e.Policy == "" {
		e.Policy = LeastTokens
	}
	if !slices.Contains(Policies(), e.Policy) {
		return fmt.Errorf("policy %q is %w: write one of %s", e.Policy, ErrInvalid, strings.Join(Policies(), ", "))
	}
	return nil
}

// Endpoint finds one endpoint, or ErrNotFound.
func (s *Store) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	if !storable(id) {
		return Endpoint{}, fmt.Errorf("endpoint: %w", ErrNotFound)
	}
	row, err := s.reader().GetEndpoint(ctx, id)
	return foundEndpoint(row, err, "endpoint "+id)
}

// EndpointByModel finds the endpoint that serves the model, or ErrNotFound.
func (s *Store) EndpointByModel(ctx context.Context, model string) (Endpoint, error) {
	if !storable(model) {
		return Endpoint{}, fmt.Errorf("endpoint of model: %w", ErrNotFound)
	}
	row, err := s.reader().GetEndpointByModel(ctx, model)
	return foundEndpoint(row, err, "endpoint of model "+model)
}

// ListEndpoints lists a tenant's endpoints, or everyone's when tenant is empty, oldest first.
func (s *Store) ListEndpoints(ctx context.Context, tenant string, page Page) (out []Endpoint, next string, err error) {
	at, id, limit, err := page.after()
	if err != nil {
		return nil, "", fmt.Errorf("list endpoints: %w", err)
	}
	var rows []sqlgen.Endpoint
	if tenant == "" {
		rows, err = s.reader().ListEndpoints(ctx, sqlgen.ListEndpointsParams{
			AfterCreated: at, AfterID: id, MaxRows: limit + 1,
		})
	} else {
		rows, err = s.reader().ListEndpointsOfTenant(ctx, sqlgen.ListEndpointsOfTenantParams{
			Tenant: tenant, AfterCreated: at, AfterID: id, MaxRows: limit + 1,
		})
	}
	if err != nil {
		return nil, "", fmt.Errorf("list endpoints: %w", err)
	}
	rows, next = cut(rows, limit, func(e sqlgen.Endpoint) string { return cursor(e.CreatedAt, e.ID) })
	out, err = mapRows(rows, endpointOf)
	return out, next, err
}

// UpdateEndpoint changes model, service and policy of the tenant's endpoint if its version is still the stored one,
// and returns it with its new version. ErrNotFound when the tenant has no such endpoint, ErrConflict when its
// version is another or the model is taken.
func (s *Store) UpdateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	if err := e.check(); err != nil {
		return Endpoint{}, fmt.Errorf("update endpoint: %w", err)
	}
	err := s.inTx(ctx, func(q *sqlgen.Queries) error {
		have, err := q.GetEndpoint(ctx, e.ID)
		if errors.Is(err, sql.ErrNoRows) || (err == nil && have.Tenant != e.Tenant) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		e.CreatedAt = moment(have.CreatedAt)
		other, err := q.GetEndpointByModel(ctx, e.Model)
		if err == nil && other.ID != e.ID {
			return fmt.Errorf("model %s is served by endpoint %s: %w", e.Model, other.ID, ErrConflict)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		n, err := q.UpdateEndpoint(ctx, sqlgen.UpdateEndpointParams{
			ID: e.ID, Tenant: e.Tenant, Model: e.Model, Service: e.Service, Policy: e.Policy, Version: e.Version,
		})
		if err == nil && n == 0 {
			err = ErrConflict
		}
		return err
	})
	if err != nil {
		return Endpoint{}, fmt.Errorf("update endpoint %s: %w", e.ID, err)
	}
	e.Version++
	return e, nil
}

// DeleteEndpoint deletes an endpoint of the tenant, or of anyone when tenant is empty, with the limits of it. ErrNotFound
// when there is none.
func (s *Store) DeleteEndpoint(ctx context.Context, tenant, id string) error {
	if !storable(id) {
		return fmt.Errorf("endpoint: %w", ErrNotFound)
	}
	err := s.inTx(ctx, func(q *sqlgen.Queries) error {
		row, err := q.GetEndpoint(ctx, id)
		if errors.Is(err, sql.ErrNoRows) || err == nil && tenant != "" && row.Tenant != tenant {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		n, err := q.DeleteEndpoint(ctx, id)
		if err == nil && n == 0 {
			err = ErrNotFound
		}
		if err != nil {
			return err
		}
		return s.dropLimitsOf(ctx, q, row.Tenant, ScopeEndpoint, id)
	})
	if err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	return nil
}

func foundEndpoint(row sqlgen.Endpoint, err error, what string) (Endpoint, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return Endpoint{}, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("read %s: %w", what, err)
	}
	return endpointOf(row)
}

func endpointOf(row sqlgen.Endpoint) (Endpoint, error) {
	return Endpoint{
		ID: row.ID, Tenant: row.Tenant, Model: row.Model, Service: row.Service, Policy: row.Policy,
		CreatedAt: moment(row.CreatedAt), Version: row.Version,
	}, nil
}
