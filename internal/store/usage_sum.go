package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// UsageQuery asks for sums over the records that started in [From, To), of one tenant or, when empty, of all.
// A zero To is the end of time. Card time is that of the hours that began then.
type UsageQuery struct {
	Tenant   string
	From, To time.Time
	GroupBy  string // "model", which is also meant when empty, "key", "endpoint" or "tenant"
}

// UsageSum is the sum of one group. Tokens are the known ones; Unknown is the number of requests whose prompt or
// completion tokens are not known.
type UsageSum struct {
	Name             string // model, key id, endpoint id or tenant; empty for card time on which no request was
	Requests         int64
	PromptTokens     int64
	CompletionTokens int64
	CachedTokens     int64
	Estimated        int64 // requests some of whose tokens are the gateway's estimate
	Unknown          int64
	CardMicros       int64 // card time settled, in microseconds of one whole card
}

// SumUsage sums usage by group, ordered by name.
func (s *Store) SumUsage(ctx context.Context, q UsageQuery) ([]UsageSum, error) {
	params := sqlgen.SumUsageByModelParams{
		FromStarted: micros(q.From), ToStarted: end(q.To), AnyTenant: q.Tenant == "", Tenant: q.Tenant,
	}
	var rows []sqlgen.SumUsageByModelRow
	var err error
	switch q.GroupBy {
	case "", "model":
		rows, err = s.reader().SumUsageByModel(ctx, params)
	case "key":
		rows, err = sameRows(s.reader().SumUsageByKey(ctx, sqlgen.SumUsageByKeyParams(params)))(
			func(r sqlgen.SumUsageByKeyRow) sqlgen.SumUsageByModelRow { return sqlgen.SumUsageByModelRow(r) })
	case "endpoint":
		rows, err = sameRows(s.reader().SumUsageByEndpoint(ctx, sqlgen.SumUsageByEndpointParams(params)))(
			func(r sqlgen.SumUsageByEndpointRow) sqlgen.SumUsageByModelRow { return sqlgen.SumUsageByModelRow(r) })
	case "tenant":
		rows, err = sameRows(s.reader().SumUsageByTenant(ctx, sqlgen.SumUsageByTenantParams(params)))(
			func(r sqlgen.SumUsageByTenantRow) sqlgen.SumUsageByModelRow { return sqlgen.SumUsageByModelRow(r) })
	default:
		return nil, fmt.Errorf("sum usage by %q: %w: write %q, %q, %q or %q", q.GroupBy, ErrInvalid, "model", "key", "endpoint", "tenant")
	}
	if err != nil {
		return nil, fmt.Errorf("sum usage: %w", err)
	}
	cards, err := s.reader().SumCards(ctx, sqlgen.SumCardsParams{
		ByWhat: q.GroupBy, FromHour: micros(q.From), ToHour: end(q.To), AnyTenant: q.Tenant == "", Tenant: q.Tenant,
	})
	if err != nil {
		return nil, fmt.Errorf("sum card time: %w", err)
	}
	return joinSums(rows, cards), nil
}

// sameRows converts the rows of a query that are alike but for their name.
func sameRows[R any](rows []R, err error) func(func(R) sqlgen.SumUsageByModelRow) ([]sqlgen.SumUsageByModelRow, error) {
	return func(convert func(R) sqlgen.SumUsageByModelRow) ([]sqlgen.SumUsageByModelRow, error) {
		out := make([]sqlgen.SumUsageByModelRow, 0, len(rows))
		for _, r := range rows {
			out = append(out, convert(r))
		}
		return out, err
	}
}

// joinSums puts card time beside what was used by the same name.
func joinSums(rows []sqlgen.SumUsageByModelRow, cards []sqlgen.SumCardsRow) []UsageSum {
	var out []UsageSum
	at := make(map[string]int, len(rows))
	for i, r := range rows {
		at[r.Name] = i
		out = append(out, UsageSum{
			Name: r.Name, Requests: r.Requests, PromptTokens: r.PromptTokens, CompletionTokens: r.CompletionTokens,
			CachedTokens: r.CachedTokens, Estimated: r.Estimated, Unknown: r.Unknown,
		})
	}
	for _, c := range cards {
		if i, ok := at[c.Name]; ok {
			out[i].CardMicros = c.CardUs
			continue
		}
		out = append(out, UsageSum{Name: c.Name, CardMicros: c.CardUs})
	}
	slices.SortFunc(out, func(a, b UsageSum) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
