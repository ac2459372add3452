package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

// ListEndpoints lists the models that are served.
func (s *server) ListEndpoints(ctx context.Context, r api.ListEndpointsRequestObject) (api.ListEndpointsResponseObject, error) {
	list, next, err := s.Store.ListEndpoints(ctx, whoOf(ctx).Tenant, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListEndpoints200JSONResponse{Items: []api.Endpoint{}, NextCursor: ref(next)}
	for _, e := range list {
		out.Items = append(out.Items, endpointView(e))
	}
	return out, nil
}

func endpointView(e store.Endpoint) api.Endpoint {
	return api.Endpoint{
		ID: e.ID, Tenant: e.Tenant, Model: e.Model, Service: e.Service, Policy: api.EndpointPolicy(cmp.Or(e.Policy, store.LeastTokens)),
		CreatedAt: e.CreatedAt, Version: e.Version,
	}
}

func etag(e store.Endpoint) string { return strconv.Quote(strconv.FormatInt(e.Version, 10)) }

// endpointOf is an endpoint of the tenant, or of anyone when tenant is empty.
func (s *server) endpointOf(ctx context.Context, tenant, id string) (store.Endpoint, error) {
	e, err := s.Store.Endpoint(ctx, id)
	if err == nil && tenant != "" && e.Tenant != tenant {
		return e, fmt.Errorf("endpoint %s: %w", id, store.ErrNotFound)
	}
	return e, err
}

// GetEndpoint shows one endpoint.
func (s *server) GetEndpoint(ctx context.Context, r api.GetEndpointRequestObject) (api.GetEndpointResponseObject, error) {
	e, err := s.endpointOf(ctx, whoOf(ctx).Tenant, r.ID)
	if err != nil {
		return nil, err
	}
	return api.GetEndpoint200JSONResponse{Body: endpointView(e), Headers: api.GetEndpoint200ResponseHeaders{ETag: ref(etag(e))}}, nil
}

// CreateEndpoint has a model served.
func (s *server) CreateEndpoint(ctx context.Context, r api.CreateEndpointRequestObject) (api.CreateEndpointResponseObject, error) {
	who := whoOf(ctx)
	tenant := val(r.Body.Tenant)
	if who.Tenant != "" && tenant != "" && tenant != who.Tenant {
		return nil, httpx.NewProblem(http.StatusForbidden, "forbidden", "you may only make endpoints of your own tenant: leave tenant out")
	}
	e, err := s.Store.CreateEndpoint(ctx, store.Endpoint{
		Tenant: cmp.Or(who.Tenant, tenant, identity.DefaultTenant), Model: r.Body.Model, Service: r.Body.Service, Policy: string(val(r.Body.Policy)),
	})
	if errors.Is(err, store.ErrConflict) {
		return nil, modelTaken(r.Body.Model)
	}
	if err != nil {
		return nil, err
	}
	return api.CreateEndpoint201JSONResponse{Body: endpointView(e), Headers: api.CreateEndpoint201ResponseHeaders{ETag: ref(etag(e))}}, nil
}

func modelTaken(model string) error {
	detail := fmt.Sprintf("model %q is served already: choose another name, or change its endpoint", model)
	return httpx.NewProblem(http.StatusConflict, "model_taken", detail).At("/model", detail)
}

// UpdateEndpoint changes an endpoint of a known version.
func (s *server) UpdateEndpoint(ctx context.Context, r api.UpdateEndpointRequestObject) (api.UpdateEndpointResponseObject, error) {
	e, err := s.endpointOf(ctx, whoOf(ctx).Tenant, r.ID)
	if err != nil {
		return nil, err
	}
	if want := strings.TrimPrefix(r.Params.IfMatch, "W/"); want != etag(e) && want != "*" {
		return nil, changed(e)
	}
	if t := val(r.Body.Tenant); t != "" && t != e.Tenant {
		return nil, badField("/tenant", "the tenant of an endpoint does not change: leave it out")
	}
	e.Model, e.Service = r.Body.Model, r.Body.Service
	if r.Body.Policy != nil {
		e.Policy = string(*r.Body.Policy)
	}
	updated, err := s.Store.UpdateEndpoint(ctx, e)
	if errors.Is(err, store.ErrConflict) {
		now, err := s.Store.Endpoint(ctx, e.ID)
		if err != nil {
			return nil, err
		}
		if now.Version != e.Version {
			return nil, changed(now)
		}
		return nil, modelTaken(e.Model)
	}
	if err != nil {
		return nil, err
	}
	return api.UpdateEndpoint200JSONResponse{Body: endpointView(updated), Headers: api.UpdateEndpoint200ResponseHeaders{ETag: ref(etag(updated))}}, nil
}

func changed(e store.Endpoint) error {
	return httpx.NewProblem(http.StatusPreconditionFailed, "changed_meanwhile",
		"the endpoint was changed meanwhile, its version is "+etag(e)+": read it again and send that in If-Match")
}

// DeleteEndpoint stops serving a model.
func (s *server) DeleteEndpoint(ctx context.Context, r api.DeleteEndpointRequestObject) (api.DeleteEndpointResponseObject, error) {
	if err := s.Store.DeleteEndpoint(ctx, whoOf(ctx).Tenant, r.ID); err != nil {
		return nil, err
	}
	return api.DeleteEndpoint204Response{}, nil
}
