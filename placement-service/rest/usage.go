package rest

import (
	"context"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/store"
)

// ListUsage lists the requests that the gateway answered.
func (s *server) ListUsage(ctx context.Context, r api.ListUsageRequestObject) (api.ListUsageResponseObject, error) {
	list, next, err := s.Store.ListUsage(ctx, whoOf(ctx).Tenant, val(r.Params.From), val(r.Params.To), pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListUsage200JSONResponse{Items: []api.Usage{}, NextCursor: ref(next)}
	for _, u := range list {
		out.Items = append(out.Items, api.Usage{
			ID: u.ID, Tenant: u.Tenant, KeyID: u.KeyID, EndpointID: ref(u.EndpointID), Model: u.Model, Service: ref(u.Service),
			Backend: ref(u.Backend), Operation: u.Operation, End: u.End, Stream: u.Stream, PromptTokens: u.PromptTokens,
			CompletionTokens: u.CompletionTokens, Status: u.Status, Tries: u.Tries, StartedAt: u.StartedAt,
			ServedModel: ref(u.ServedModel), CachedTokens: u.CachedTokens, Estimated: u.Estimated, Chunks: u.Chunks, Tried: ref(u.Tried),
			DurationMS: u.Duration.Milliseconds(), FirstByteMS: ref(u.FirstByte.Milliseconds()),
		})
	}
	return out, nil
}

// SumUsage sums requests, tokens and card time.
func (s *server) SumUsage(ctx context.Context, r api.SumUsageRequestObject) (api.SumUsageResponseObject, error) {
	sums, err := s.Store.SumUsage(ctx, store.UsageQuery{
		Tenant: whoOf(ctx).Tenant, From: val(r.Params.From), To: val(r.Params.To), GroupBy: string(val(r.Params.GroupBy)),
	})
	if err != nil {
		return nil, err
	}
	settled, err := s.Store.CardsSettledTo(ctx)
	if err != nil {
		return nil, err
	}
	out := api.SumUsage200JSONResponse{Items: []api.UsageSum{}}
	if !settled.IsZero() {
		out.GPUSettledTo = &settled
	}
	for _, u := range sums {
		out.Items = append(out.Items, api.UsageSum{
			Name: u.Name, Requests: u.Requests, PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
			CachedTokens: u.CachedTokens, Estimated: u.Estimated, Unknown: u.Unknown, GPUSeconds: float64(u.CardMicros) / 1e6,
		})
	}
	return out, nil
}
