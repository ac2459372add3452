package store

import (
	"context"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// UsageQuery asks for sums over the records that started in [From, To), of one tenant or, when empty, of all.
// A zero To is the end of time.
type UsageQuery struct {
	Tenant   string
	From, To time.Time
	GroupBy  string // "model", which is also meant when empty, "key" or "endpoint"
}

// UsageSum is the sum of one group. Tokens are the known ones; Unknown is the number of requests whose prompt or
// completion tokens are not known.
type UsageSum struct {
	Name             string // model, key id or endpoint id
	Requests         int64
	PromptTokens     int64
	CompletionTokens int64
	CachedTokens     int64
	Estimated        int64 // requests some of whose tokens are the gateway's estimate
	Unknown          int64
}

// SumUsage sums usage by group, ordered by name.
func (s *Store) SumUsage(ctx context.Context, q UsageQuery) ([]UsageSum, error) {
	params := sqlgen.SumUsageByModelParams{
		FromStarted: micros(q.From), ToStarted: end(q.To), AnyTenant: q.Tenant == "", Tenant: q.Tenant,
	}
	var out []UsageSum
	var err error
	switch q.GroupBy {
	case "", "model":
		var rows []sqlgen.SumUsageByModelRow
		rows, err = s.reader().SumUsageByModel(ctx, params)
		for _, row := range rows {
			out = append(out, UsageSum(row))
		}
	case "key":
		var rows []sqlgen.SumUsageByKeyRow
		rows, err = s.reader().SumUsageByKey(ctx, sqlgen.SumUsageByKeyParams(params))
		for _, row := range rows {
			out = append(out, UsageSum(row))
		}
	case "endpoint":
		var rows []sqlgen.SumUsageByEndpointRow
		rows, err = s.reader().SumUsageByEndpoint(ctx, sqlgen.SumUsageByEndpointParams(params))
		for _, row := range rows {
			out = append(out, UsageSum(row))
		}
	default:
		return nil, fmt.Errorf("sum usage by %q: %w: write %q, %q or %q", q.GroupBy, ErrInvalid, "model", "key", "endpoint")
	}
	if err != nil {
		return nil, fmt.Errorf("sum usage: %w", err)
	}
	return out, nil
}
