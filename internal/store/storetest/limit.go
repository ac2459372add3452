//go:build unix

package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func number(n int64) *int64 { return &n }

func testLimits(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := store.WithActor(t.Context(), store.Actor{User: "root", KeyID: "k0"})
	before := ok2(s.Revision(ctx, store.LimitRevision))(t)

	l := ok2(s.SetLimit(ctx, store.Limit{
		Tenant: "research", Scope: store.ScopeMember, Subject: "ann", Model: "m",
		Caps: store.Caps{RequestsPerMinute: number(60), NanosPerMonth: number(0)},
	}))(t)
	same(t, store.Limit{
		ID: l.ID, Tenant: "research", Scope: "member", Subject: "ann", Model: "m", CreatedAt: epoch, UpdatedAt: epoch,
		Caps: store.Caps{RequestsPerMinute: number(60), NanosPerMonth: number(0)},
	}, l)
	c.Advance(time.Second)
	changed := l
	changed.Caps = store.Caps{Concurrency: number(3)}
	changed = ok2(s.SetLimit(ctx, changed))(t)
	if changed.ID != l.ID || changed.Caps.RequestsPerMinute != nil || *changed.Caps.Concurrency != 3 || !changed.UpdatedAt.After(l.UpdatedAt) || !changed.CreatedAt.Equal(l.CreatedAt) {
		t.Errorf("%+v", changed)
	}
	same(t, changed, ok2(s.Limit(ctx, l.ID))(t))
	if after := ok2(s.Revision(ctx, store.LimitRevision))(t); after != before+2 {
		t.Errorf("two changes count as %d", after-before)
	}

	ok(t, s.ChangeAllowances(ctx, []string{l.ID}, func(a *store.Allowance) error {
		a.Spent, a.State = store.Spent{Month: 202603, Tokens: 5, Nanos: 7}, "{}"
		return nil
	}))
	list, _, err := s.ListLimits(ctx, "research", store.Page{})
	ok(t, err)
	same(t, []store.LimitUse{{Limit: changed, Spent: store.Spent{Month: 202603, Tokens: 5, Nanos: 7}}}, list)
	for n := range 7 {
		ok2(s.SetLimit(ctx, store.Limit{Tenant: []string{"research", "ops"}[n%2], Scope: "key", Subject: fmt.Sprint("k", n), Caps: store.Caps{Concurrency: number(1)}}))(t)
	}
	if n := len(allPages(t, func(p store.Page) ([]store.LimitUse, string, error) { return s.ListLimits(ctx, "", p) })); n != 8 {
		t.Errorf("%d limits", n)
	}
	if n := len(allPages(t, func(p store.Page) ([]store.LimitUse, string, error) { return s.ListLimits(ctx, "ops", p) })); n != 3 {
		t.Errorf("%d limits of ops", n)
	}

	for what, bad := range map[string]store.Limit{
		"a scope":   {Tenant: "research", Scope: "planet", Subject: "x", Caps: changed.Caps},
		"a number":  {Tenant: "research", Scope: "key", Subject: "x"},
		"below 0":   {Tenant: "research", Scope: "key", Subject: "x", Caps: store.Caps{Concurrency: number(-1)}},
		"a subject": {Tenant: "research", Scope: "key", Caps: changed.Caps},
		"a model":   {Tenant: "research", Scope: "endpoint", Subject: "e1", Model: "m", Caps: changed.Caps},
		"NUL":       {Tenant: "research", Scope: "key", Subject: "a\x00", Caps: changed.Caps},
	} {
		if _, err := s.SetLimit(ctx, bad); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantErr(t, s.DeleteLimit(ctx, "ops", l.ID), store.ErrNotFound)
	ok(t, s.DeleteLimit(ctx, "research", l.ID))
	wantErr(t, s.DeleteLimit(ctx, "", l.ID), store.ErrNotFound)
	_, err = s.Limit(ctx, l.ID)
	wantErr(t, err, store.ErrNotFound)
	if left := allowances(t, s, l.ID); left[0].State != "" || left[0].Spent != (store.Spent{}) {
		t.Errorf("what was taken of a deleted limit is kept: %+v", left)
	}

	events, _, err := s.ListAudit(ctx, "research", store.Page{Limit: 1})
	ok(t, err)
	e := events[0]
	if e.Action != "limit.delete" || e.Object != l.ID || e.Actor != (store.Actor{User: "root", KeyID: "k0"}) || e.Tenant != "research" || !e.At.Equal(epoch.Add(time.Second)) || !strings.Contains(string(e.Detail), `"ann"`) {
		t.Errorf("%+v", e)
	}
	if n := len(allPages(t, func(p store.Page) ([]store.AuditEvent, string, error) { return s.ListAudit(ctx, "", p) })); n != 10 {
		t.Errorf("%d changes are noted, 10 were made", n)
	}
}

// testAllowances: who changes them at the same time loses nothing, whatever the order of the ids, and a change that
// fails leaves nothing.
func testAllowances(t *testing.T, open Open) {
	s := open(t)
	ctx := t.Context()
	ids := []string{"a", "b", "c"}
	var wg sync.WaitGroup
	const racers, rounds = 6, 20
	for n := range racers {
		wg.Go(func() {
			for range rounds {
				mine := []string{ids[n%3], ids[(n+1)%3], ids[(n+2)%3]}
				if err := s.ChangeAllowances(ctx, mine, func(a *store.Allowance) error {
					a.Tokens++
					a.State += "x"
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	broken := errors.New("no")
	wantErr(t, s.ChangeAllowances(ctx, ids, func(a *store.Allowance) error {
		a.Tokens = 0
		if a.LimitID == "c" {
			return broken
		}
		return nil
	}), broken)
	for _, a := range allowances(t, s, ids...) {
		if a.Tokens != racers*rounds || a.State != strings.Repeat("x", racers*rounds) {
			t.Errorf("%s: %d of %d changes, state %q", a.LimitID, a.Tokens, racers*rounds, a.State)
		}
	}
}

func allowances(t *testing.T, s *store.Store, ids ...string) (out []store.Allowance) {
	t.Helper()
	ok(t, s.ChangeAllowances(t.Context(), ids, func(a *store.Allowance) error {
		out = append(out, *a)
		return nil
	}))
	return out
}

func testPrices(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	for _, model := range []string{"b", "a", "c", "d/e"} {
		ok2(s.SetPrice(ctx, store.Price{Model: model, PromptNanos: 1, CachedNanos: 2, CompletionNanos: 3, RequestNanos: 4}))(t)
	}
	c.Advance(time.Minute)
	p := ok2(s.SetPrice(ctx, store.Price{Model: "a", PromptNanos: 9}))(t)
	list := allPages(t, func(p store.Page) ([]store.Price, string, error) { return s.ListPrices(ctx, p) })
	if len(list) != 4 || list[3].Model != "d/e" || list[1].RequestNanos != 4 {
		t.Errorf("%+v", list)
	}
	same(t, store.Price{Model: "a", PromptNanos: 9, UpdatedAt: epoch.Add(time.Minute)}, p)
	same(t, p, list[0])
	ok(t, s.DeletePrice(ctx, "d/e"))
	wantErr(t, s.DeletePrice(ctx, "d/e"), store.ErrNotFound)
	_, err := s.SetPrice(ctx, store.Price{Model: "a", PromptNanos: -1})
	wantErr(t, err, store.ErrInvalid)
}

// testKeyChanges: whoever follows revisions sees every change, and rotated keys open with both texts.
func testKeyChanges(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	revision, last, id := int64(-1), int64(-1), ""
	changed := func() (keys []store.Key) {
		t.Helper()
		if now := ok2(s.Revision(ctx, store.KeyRevision))(t); now == revision {
			return nil
		} else {
			revision = now
		}
		var err error
		keys, last, id, err = s.KeyChanges(ctx, last, id)
		ok(t, err)
		return keys
	}
	same(t, 0, len(changed()))
	k := testKey(1, "research")
	k.Member = "ann"
	ok(t, s.CreateKey(ctx, k))
	ok(t, s.CreateKey(ctx, testKey(2, "ops")))
	same(t, []store.Key{k, testKey(2, "ops")}, changed())
	ok(t, s.TouchKey(ctx, k.ID, epoch)) // no change that anybody follows
	same(t, 0, len(changed()))

	until := epoch.Add(time.Hour)
	_, err := s.RotateKey(ctx, "ops", k.ID, "new", "hf-new", until)
	wantErr(t, err, store.ErrNotFound)
	_, err = s.RetireKey(ctx, "", k.ID)
	wantErr(t, err, store.ErrNotFound)
	rotated := ok2(s.RotateKey(ctx, "research", k.ID, "new", "hf-new", until))(t)
	if rotated.Hash != "new" || rotated.PriorHash != k.Hash || !rotated.PriorUntil.Equal(until) || rotated.Member != "ann" {
		t.Errorf("%+v", rotated)
	}
	same(t, []store.Key{rotated}, changed())
	same(t, rotated, ok2(s.KeyByHash(ctx, "new"))(t))
	same(t, rotated, ok2(s.KeyByHash(ctx, k.Hash))(t))
	_, err = s.RotateKey(ctx, "", k.ID, "newer", "hf-newer", until)
	wantErr(t, err, store.ErrConflict)
	retired := ok2(s.RetireKey(ctx, "", k.ID))(t)
	if retired.PriorHash != "" || retired.PriorUntil != nil {
		t.Errorf("%+v", retired)
	}
	_, err = s.KeyByHash(ctx, k.Hash)
	wantErr(t, err, store.ErrNotFound)
	ok2(s.RotateKey(ctx, "", k.ID, "newer", "hf-newer", until))(t)
	c.Advance(time.Hour) // the earlier text has ended by itself
	ok2(s.RotateKey(ctx, "", k.ID, "newest", "hf-newest", until.Add(time.Hour)))(t)
	same(t, 1, len(changed()))

	ok2(s.SetLimit(ctx, store.Limit{Tenant: "research", Scope: "key", Subject: k.ID, Caps: store.Caps{Concurrency: number(1)}}))(t)
	ok(t, s.DeleteKey(ctx, "", k.ID))
	keys := changed()
	if len(keys) != 1 || keys[0].ID != k.ID || keys[0].RevokedAt == nil {
		t.Errorf("%+v", keys)
	}
	for _, hash := range []string{"newest", "newer"} {
		_, err = s.KeyByHash(ctx, hash)
		wantErr(t, err, store.ErrNotFound)
	}
	_, err = s.Key(ctx, "", k.ID)
	wantErr(t, err, store.ErrNotFound)
	limits, _, err := s.ListLimits(ctx, "", store.Page{})
	ok(t, err)
	same(t, 0, len(limits))
}
