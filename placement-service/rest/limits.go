package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

// nano is a billionth, in which the store keeps money.
const nano = 1e9

func nanosOf(money float64) int64 { return int64(math.Round(money * nano)) }

// ListLimits lists limits with what was used.
func (s *server) ListLimits(ctx context.Context, r api.ListLimitsRequestObject) (api.ListLimitsResponseObject, error) {
	list, next, err := s.Store.ListLimits(ctx, whoOf(ctx).Tenant, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListLimits200JSONResponse{Items: []api.UsageLimit{}, NextCursor: ref(next)}
	month := store.MonthOf(s.Clock.Now())
	for _, l := range list {
		view := limitView(l.Limit)
		if l.Spent.Month == month {
			view.Used = &api.LimitUsed{
				Month: fmt.Sprintf("%04d-%02d", month/100, month%100), Tokens: l.Spent.Tokens, Money: float64(l.Spent.Nanos) / nano,
			}
		}
		out.Items = append(out.Items, view)
	}
	return out, nil
}

func limitView(l store.Limit) api.UsageLimit {
	out := api.UsageLimit{
		ID: l.ID, Tenant: l.Tenant, Scope: api.LimitScope(l.Scope), Subject: l.Subject, Model: ref(l.Model),
		RequestsPerMinute: l.Caps.RequestsPerMinute, TokensPerMinute: l.Caps.TokensPerMinute, Concurrency: l.Caps.Concurrency,
		TokensPerMonth: l.Caps.TokensPerMonth, CreatedAt: l.CreatedAt, UpdatedAt: l.UpdatedAt,
	}
	if l.Caps.NanosPerMonth != nil {
		money := float64(*l.Caps.NanosPerMonth) / nano
		out.MoneyPerMonth = &money
	}
	return out
}

// SetLimit sets a limit.
func (s *server) SetLimit(ctx context.Context, r api.SetLimitRequestObject) (api.SetLimitResponseObject, error) {
	tenant, err := s.limitTenant(ctx, *r.Body)
	if err != nil {
		return nil, err
	}
	l := store.Limit{
		Tenant: tenant, Scope: string(r.Body.Scope), Subject: r.Body.Subject, Model: val(r.Body.Model),
		Caps: store.Caps{
			RequestsPerMinute: r.Body.RequestsPerMinute, TokensPerMinute: r.Body.TokensPerMinute, Concurrency: r.Body.Concurrency,
			TokensPerMonth: r.Body.TokensPerMonth,
		},
	}
	if r.Body.MoneyPerMonth != nil {
		nanos := nanosOf(*r.Body.MoneyPerMonth)
		l.Caps.NanosPerMonth = &nanos
	}
	if l, err = s.Store.SetLimit(ctx, l); err != nil {
		return nil, err
	}
	return api.SetLimit200JSONResponse(limitView(l)), nil
}

// limitTenant is the tenant of a limit's subject, if the caller may limit it. A tenant's own limit is the operator's
// to set.
func (s *server) limitTenant(ctx context.Context, body api.LimitWrite) (string, error) {
	who, given := whoOf(ctx), val(body.Tenant)
	switch string(body.Scope) {
	case store.ScopeKey:
		key, err := s.Store.Key(ctx, who.Tenant, body.Subject)
		if errors.Is(err, store.ErrNotFound) {
			return "", badField("/subject", "no key "+body.Subject+": write a key's id, see `heteroflow key list`")
		}
		if err == nil && given != "" && given != key.Tenant {
			return "", badField("/tenant", "the key is of another tenant: leave tenant out")
		}
		if err == nil && key.Tenant == "" {
			return "", badField("/subject", "a key of kind "+key.Kind+" does not use the gateway: write the id of an endpoint key")
		}
		return key.Tenant, err
	case store.ScopeEndpoint:
		e, err := s.endpointOf(ctx, who.Tenant, body.Subject)
		if errors.Is(err, store.ErrNotFound) {
			return "", badField("/subject", "no endpoint "+body.Subject+": write an endpoint's id, see `heteroflow endpoint list`")
		}
		if err == nil && given != "" && given != e.Tenant {
			return "", badField("/tenant", "the endpoint is of another tenant: leave tenant out")
		}
		if err == nil && val(body.Model) != "" {
			return "", badField("/model", "an endpoint has one model: leave model out")
		}
		return e.Tenant, err
	case store.ScopeTenant:
		if who.Tenant != "" {
			return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "a tenant's limit is set by the operator: you may limit your tenant's keys and members")
		}
		if given != "" && given != body.Subject {
			return "", badField("/tenant", "the subject is the tenant: leave tenant out")
		}
		return body.Subject, nil
	}
	if who.Tenant != "" && given != "" && given != who.Tenant {
		return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "you may only limit members of your own tenant: leave tenant out")
	}
	return cmp.Or(who.Tenant, given, identity.DefaultTenant), nil
}

// DeleteLimit deletes a limit. A tenant's own is the operator's.
func (s *server) DeleteLimit(ctx context.Context, r api.DeleteLimitRequestObject) (api.DeleteLimitResponseObject, error) {
	who := whoOf(ctx)
	if who.Tenant != "" {
		l, err := s.Store.Limit(ctx, r.ID)
		if err == nil && l.Tenant == who.Tenant && l.Scope == store.ScopeTenant {
			return nil, httpx.NewProblem(http.StatusForbidden, "forbidden", "a tenant's limit is deleted by the operator")
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.Store.DeleteLimit(ctx, who.Tenant, r.ID); err != nil {
		return nil, err
	}
	return api.DeleteLimit204Response{}, nil
}

// ListPrices lists what models cost.
func (s *server) ListPrices(ctx context.Context, r api.ListPricesRequestObject) (api.ListPricesResponseObject, error) {
	list, next, err := s.Store.ListPrices(ctx, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListPrices200JSONResponse{Items: []api.Price{}, NextCursor: ref(next)}
	for _, p := range list {
		out.Items = append(out.Items, priceView(p))
	}
	return out, nil
}

// perToken is a price of a million tokens as one of a token in billionths.
const perToken = nano / 1e6

func priceView(p store.Price) api.Price {
	return api.Price{
		Model: p.Model, Prompt: float64(p.PromptNanos) / perToken, Cached: float64(p.CachedNanos) / perToken,
		Completion: float64(p.CompletionNanos) / perToken, Request: float64(p.RequestNanos) / nano, UpdatedAt: p.UpdatedAt,
	}
}

// SetPrice sets what a model costs.
func (s *server) SetPrice(ctx context.Context, r api.SetPriceRequestObject) (api.SetPriceResponseObject, error) {
	tokens := func(field string, million *float64) (int64, error) {
		nanos := val(million) * perToken
		if math.Abs(nanos-math.Round(nanos)) > 1e-6 {
			return 0, badField("/"+field, "a million tokens cost a multiple of 0.001: round it")
		}
		return int64(math.Round(nanos)), nil
	}
	p := store.Price{Model: r.Body.Model, RequestNanos: nanosOf(val(r.Body.Request))}
	cached := r.Body.Cached
	if cached == nil {
		cached = r.Body.Prompt
	}
	for _, f := range []struct {
		name string
		from *float64
		to   *int64
	}{{"prompt", r.Body.Prompt, &p.PromptNanos}, {"cached", cached, &p.CachedNanos}, {"completion", r.Body.Completion, &p.CompletionNanos}} {
		var err error
		if *f.to, err = tokens(f.name, f.from); err != nil {
			return nil, err
		}
	}
	p, err := s.Store.SetPrice(ctx, p)
	if err != nil {
		return nil, err
	}
	return api.SetPrice200JSONResponse(priceView(p)), nil
}

// DeletePrice deletes what a model costs.
func (s *server) DeletePrice(ctx context.Context, r api.DeletePriceRequestObject) (api.DeletePriceResponseObject, error) {
	if err := s.Store.DeletePrice(ctx, r.Params.Model); err != nil {
		return nil, err
	}
	return api.DeletePrice204Response{}, nil
}

// ListAudit lists who changed what.
func (s *server) ListAudit(ctx context.Context, r api.ListAuditRequestObject) (api.ListAuditResponseObject, error) {
	list, next, err := s.Store.ListAudit(ctx, whoOf(ctx).Tenant, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListAudit200JSONResponse{Items: []api.AuditEvent{}, NextCursor: ref(next)}
	for _, e := range list {
		out.Items = append(out.Items, api.AuditEvent{
			ID: e.ID, At: e.At, Tenant: ref(e.Tenant), Actor: e.Actor.User, ActorKey: ref(e.Actor.KeyID), Action: e.Action,
			Object: e.Object, Detail: ref(string(e.Detail)),
		})
	}
	return out, nil
}
