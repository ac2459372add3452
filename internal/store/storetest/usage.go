//go:build unix

package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testUsage(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	many, cached := int64(1234567890123), int64(900)
	u := store.Usage{
		ID: "u000", Tenant: "research", KeyID: "k1", EndpointID: "e1", Model: "qwen", Service: "llm", Backend: "10.0.0.1:8000",
		Operation: "NULL", End: store.EndDone, Stream: true, PromptTokens: &many, CompletionTokens: new(int64),
		ServedModel: `Qwen/"Qwen3"\8B, {NULL}`, CachedTokens: &cached, Estimated: true, Chunks: 40, Tried: `[{"backend":"a","status":503},{"backend":"b"}]`,
		Status: 200, Tries: 2, StartedAt: epoch, Duration: 1500 * time.Millisecond, FirstByte: 80 * time.Microsecond,
	}
	ok(t, s.AddUsage(ctx, nil))
	ok(t, s.AddUsage(ctx, []store.Usage{u}))
	changed := u
	changed.Model = "other"
	ok(t, s.AddUsage(ctx, []store.Usage{changed, changed})) // known already
	got, next, err := s.ListUsage(ctx, "", time.Time{}, time.Time{}, store.Page{})
	ok(t, err)
	same(t, []store.Usage{u}, got)
	same(t, "", next)

	// More than one batch, from two writers at once, with half of the records in both and in opposite order.
	var batches [2][]store.Usage
	const half = 400
	for n := 1; n <= 3*half; n++ {
		r := store.Usage{
			ID: fmt.Sprintf("u%04d", n), Tenant: []string{"research", "ops"}[n%2], Model: []string{"qwen", "glm"}[n%2],
			KeyID: "k1", EndpointID: fmt.Sprint("e", n%3), End: store.EndClientGone, StartedAt: epoch.Add(time.Duration(n/4) * time.Second),
		}
		if n%4 == 0 {
			one := int64(1)
			r.PromptTokens, r.CompletionTokens = &one, &one
		}
		if n <= 2*half {
			batches[0] = append(batches[0], r)
		}
		if n > half {
			batches[1] = append(batches[1], r)
		}
	}
	slices.Reverse(batches[1])
	together(2, func(i int) {
		if err := s.AddUsage(ctx, batches[i]); err != nil {
			t.Error(err)
		}
	})
	sums := ok2(s.SumUsage(ctx, store.UsageQuery{GroupBy: "model"}))(t)
	same(t, []store.UsageSum{
		{Name: "glm", Requests: 600, Unknown: 600},
		{Name: "qwen", Requests: 601, PromptTokens: many + 300, CompletionTokens: 300, CachedTokens: 900, Estimated: 1, Unknown: 300},
	}, sums)
	usageSums(t, s)
	usageLists(t, s)
}

func usageSums(t *testing.T, s *store.Store) {
	ctx := t.Context()
	byKey := ok2(s.SumUsage(ctx, store.UsageQuery{GroupBy: "key", Tenant: "ops"}))(t)
	same(t, []store.UsageSum{{Name: "k1", Requests: 600, Unknown: 600}}, byKey)
	byEndpoint := ok2(s.SumUsage(ctx, store.UsageQuery{GroupBy: "endpoint", From: epoch.Add(time.Second), To: epoch.Add(2 * time.Second)}))(t)
	same(t, []store.UsageSum{
		{Name: "e0", Requests: 1, Unknown: 1},
		{Name: "e1", Requests: 2, PromptTokens: 1, CompletionTokens: 1, Unknown: 1},
		{Name: "e2", Requests: 1, Unknown: 1},
	}, byEndpoint)
	same(t, 0, len(ok2(s.SumUsage(ctx, store.UsageQuery{Tenant: "nobody"}))(t)))
	byTenant := ok2(s.SumUsage(ctx, store.UsageQuery{GroupBy: "tenant"}))(t)
	if len(byTenant) != 2 || byTenant[0].Name != "ops" || byTenant[0].Requests != 600 || byTenant[1].Requests != 601 {
		t.Errorf("%+v", byTenant)
	}
	_, err := s.SumUsage(ctx, store.UsageQuery{GroupBy: "day"})
	wantErr(t, err, store.ErrInvalid)
}

func usageLists(t *testing.T, s *store.Store) {
	ctx := t.Context()
	from, to := epoch.Add(time.Second), epoch.Add(3*time.Second)
	list := func(tenant string) (ids []string) {
		us := allPages(t, func(p store.Page) ([]store.Usage, string, error) { return s.ListUsage(ctx, tenant, from, to, p) })
		for _, u := range us {
			ids = append(ids, u.ID)
		}
		return ids
	}
	same(t, []string{"u0011", "u0010", "u0009", "u0008", "u0007", "u0006", "u0005", "u0004"}, list(""))
	same(t, []string{"u0011", "u0009", "u0007", "u0005"}, list("ops"))
	_, _, err := s.ListUsage(ctx, "", from, to, store.Page{Cursor: "%"})
	wantErr(t, err, store.ErrBadCursor)
}
