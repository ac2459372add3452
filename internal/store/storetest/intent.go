//go:build unix

package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testIntents(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	want := store.Intent{NodeID: "n1", CardUUID: "GPU-1", Form: "shared", Reason: "llm needs it"}
	first := ok2(s.PutIntent(ctx, want))(t)
	same(t, store.Intent{
		ID: first.ID, NodeID: "n1", CardUUID: "GPU-1", Form: "shared", State: store.IntentWanted, Reason: "llm needs it",
		Version: 1, CreatedAt: epoch, UpdatedAt: epoch,
	}, first)
	same(t, first, ok2(s.PutIntent(ctx, want))(t))
	other := want
	other.Form = "whole"
	have, err := s.PutIntent(ctx, other)
	wantErr(t, err, store.ErrConflict)
	same(t, first.ID, have.ID)
	second := ok2(s.PutIntent(ctx, store.Intent{NodeID: "n2", CardUUID: "GPU-2", Form: "whole"}))(t)
	open1 := ok2(s.OpenIntents(ctx, []string{"GPU-1", "GPU-9"}))(t)
	same(t, []store.Intent{first}, open1)
	same(t, 2, len(ok2(s.OpenIntents(ctx, nil))(t)))

	if ok2(s.ReportIntent(ctx, first.ID, store.IntentDone, ""))(t) {
		t.Error("reported before it was claimed")
	}
	c.Advance(time.Second)
	if ok2(s.ClaimIntent(ctx, first.ID, 9, "n1"))(t) || !ok2(s.ClaimIntent(ctx, first.ID, 1, "n1"))(t) ||
		ok2(s.ClaimIntent(ctx, first.ID, 2, "n1"))(t) {
		t.Error("only the wanted version can be claimed, once")
	}
	claimed := ok2(s.Intent(ctx, first.ID))(t)
	if claimed.State != store.IntentClaimed || claimed.ClaimedBy != "n1" || !claimed.UpdatedAt.Equal(epoch.Add(time.Second)) {
		t.Errorf("claimed: %+v", claimed)
	}
	same(t, claimed, ok2(s.PutIntent(ctx, want))(t)) // still open
	_, err = s.ReportIntent(ctx, first.ID, "finished", "")
	wantErr(t, err, store.ErrInvalid)
	if !ok2(s.ReportIntent(ctx, first.ID, store.IntentFailed, "busy"))(t) || ok2(s.ReportIntent(ctx, first.ID, store.IntentDone, ""))(t) {
		t.Error("a claimed intent is reported once")
	}
	failed := ok2(s.Intent(ctx, first.ID))(t)
	same(t, "busy", failed.Reason)
	same(t, []store.Intent{failed}, ok2(s.ReportedIntents(ctx, failed.UpdatedAt))(t))
	same(t, 0, len(ok2(s.ReportedIntents(ctx, failed.UpdatedAt.Add(time.Microsecond)))(t)))
	ok2(s.PutIntent(ctx, other))(t) // the card is free for another form

	// Only the one that nothing happened to for long.
	c.Advance(time.Second)
	same(t, 1, ok2(s.ExpireIntents(ctx, epoch.Add(time.Second)))(t))
	same(t, store.IntentExpired, ok2(s.Intent(ctx, second.ID))(t).State)
	_, err = s.Intent(ctx, "none")
	wantErr(t, err, store.ErrNotFound)
	intentsOnePerCard(t, s)
}

// intentsOnePerCard: many state intents for one card at once; one intent comes of it, and one claims it.
func intentsOnePerCard(t *testing.T, s *store.Store) {
	ids := make([]string, 16)
	together(len(ids), func(i int) {
		in, err := s.PutIntent(t.Context(), store.Intent{NodeID: "n1", CardUUID: "GPU-7", Form: "shared"})
		if err != nil {
			t.Error(err)
		}
		ids[i] = in.ID
	})
	var won atomic.Int64
	together(len(ids), func(i int) {
		if ids[i] != ids[0] {
			t.Errorf("two intents for one card: %s and %s", ids[0], ids[i])
		}
		mine, err := s.ClaimIntent(t.Context(), ids[i], 1, fmt.Sprint("n", i))
		if err != nil {
			t.Error(err)
		}
		if mine {
			won.Add(1)
		}
	})
	same(t, int64(1), won.Load())
}

func testEndpoints(t *testing.T, open Open) {
	s, _ := openAt(t, open)
	ctx := t.Context()
	e := ok2(s.CreateEndpoint(ctx, store.Endpoint{Tenant: "research", Model: "qwen", Service: "llm"}))(t)
	same(t, store.Endpoint{
		ID: e.ID, Tenant: "research", Model: "qwen", Service: "llm", Policy: store.LeastTokens, CreatedAt: epoch, Version: 1,
	}, e)
	same(t, e, ok2(s.Endpoint(ctx, e.ID))(t))
	same(t, e, ok2(s.EndpointByModel(ctx, "qwen"))(t))
	_, err := s.CreateEndpoint(ctx, store.Endpoint{Tenant: "ops", Model: "qwen"})
	wantErr(t, err, store.ErrConflict)
	_, err = s.CreateEndpoint(ctx, store.Endpoint{Tenant: "ops", Model: "glm", Policy: "random_walk"})
	wantErr(t, err, store.ErrInvalid)
	glm := ok2(s.CreateEndpoint(ctx, store.Endpoint{Tenant: "ops", Model: "glm"}))(t)

	changed := e
	changed.Policy, changed.Service = store.LeastConnections, "llm2"
	changed = ok2(s.UpdateEndpoint(ctx, changed))(t)
	same(t, changed, ok2(s.Endpoint(ctx, e.ID))(t))
	_, err = s.UpdateEndpoint(ctx, e)
	wantErr(t, err, store.ErrConflict)
	taken := changed
	taken.Model = "glm"
	_, err = s.UpdateEndpoint(ctx, taken)
	wantErr(t, err, store.ErrConflict)
	foreign := changed
	foreign.Tenant = "ops"
	_, err = s.UpdateEndpoint(ctx, foreign)
	wantErr(t, err, store.ErrNotFound)

	list := func(tenant string) []store.Endpoint {
		return allPages(t, func(p store.Page) ([]store.Endpoint, string, error) { return s.ListEndpoints(ctx, tenant, p) })
	}
	same(t, 2, len(list("")))
	same(t, []store.Endpoint{glm}, list("ops"))
	wantErr(t, s.DeleteEndpoint(ctx, "research", glm.ID), store.ErrNotFound)
	ok2(s.SetLimit(ctx, store.Limit{Tenant: "ops", Scope: store.ScopeEndpoint, Subject: glm.ID, Caps: store.Caps{Concurrency: number(4)}}))(t)
	ok(t, s.DeleteEndpoint(ctx, "ops", glm.ID))
	left, _, err := s.ListLimits(ctx, "", store.Page{})
	ok(t, err)
	same(t, 0, len(left)) // they go with it
	ok(t, s.DeleteEndpoint(ctx, "", e.ID))
	_, err = s.EndpointByModel(ctx, "qwen")
	wantErr(t, err, store.ErrNotFound)
}
