package limit

import (
	"context"

	"github.com/heteroflow/heteroflow/internal/store"
)

// member names a member of a tenant.
type member struct{ tenant, name string }

// book is the limits and prices as they are now. It is never changed once it is made.
type book struct {
	revision int64
	byID     map[string]*account
	byKey    map[string][]*account
	byMember map[member][]*account
	byTenant map[string][]*account
	byPoint  map[string][]*account // by the endpoint's id
	prices   map[string]*store.Price
}

// find gives the limits of a request: those of who calls, the narrowest first, then that of what is called.
func (b *book) find(a *Ask, r *Reservation) {
	if a.KeyID != "" {
		r.add(b.byKey[a.KeyID], a.Model)
	}
	r.add(b.byMember[member{a.Tenant, a.Member}], a.Model)
	r.add(b.byTenant[a.Tenant], a.Model)
	if a.EndpointID != "" {
		r.add(b.byPoint[a.EndpointID], a.Model)
	}
	r.price = b.prices[a.Model]
}

func (r *Reservation) add(list []*account, model string) {
	for _, acct := range list {
		if (acct.model == "" || acct.model == model) && r.count < mostLimits {
			r.accounts[r.count] = acct
			r.count++
		}
	}
}

// readBook reads limits and prices, and keeps the accounts of those that stay.
func (l *Limiter) readBook(ctx context.Context, revision int64) error {
	old := l.book.Load()
	b := &book{
		revision: revision, byID: map[string]*account{}, byKey: map[string][]*account{}, byMember: map[member][]*account{},
		byTenant: map[string][]*account{}, byPoint: map[string][]*account{}, prices: map[string]*store.Price{},
	}
	err := pages(func(page store.Page) (string, error) {
		list, next, err := l.store.ListLimits(ctx, "", page)
		for _, use := range list {
			b.put(l.accountOf(old, use))
		}
		return next, err
	})
	if err != nil {
		return err
	}
	err = pages(func(page store.Page) (string, error) {
		list, next, err := l.store.ListPrices(ctx, page)
		for _, p := range list {
			b.prices[p.Model] = &p
		}
		return next, err
	})
	if err != nil {
		return err
	}
	for id, acct := range old.byID {
		if b.byID[id] == nil {
			acct.mu.Lock()
			acct.gone = true
			acct.mu.Unlock()
		}
	}
	l.book.Store(b)
	return nil
}

func pages(read func(store.Page) (string, error)) error {
	page := store.Page{Limit: store.MaxPageLimit}
	for {
		next, err := read(page)
		if err != nil || next == "" {
			return err
		}
		page.Cursor = next
	}
}

func (b *book) put(acct *account) {
	of := acct.limit
	b.byID[of.ID] = acct
	switch of.Scope {
	case store.ScopeKey:
		b.byKey[of.Subject] = append(b.byKey[of.Subject], acct)
	case store.ScopeMember:
		who := member{of.Tenant, of.Subject}
		b.byMember[who] = append(b.byMember[who], acct)
	case store.ScopeTenant:
		b.byTenant[of.Tenant] = append(b.byTenant[of.Tenant], acct)
	case store.ScopeEndpoint:
		b.byPoint[of.Subject] = append(b.byPoint[of.Subject], acct)
	}
}

// accountOf is the account of a limit: the one that it had, or a new one that knows what was spent.
func (l *Limiter) accountOf(old *book, use store.LimitUse) *account {
	acct := old.byID[use.ID]
	if acct == nil {
		acct = &account{id: use.ID, model: use.Model, wake: l.wake, total: use.Spent}
	}
	acct.change(use.Limit)
	return acct
}

// wake puts an account on the list. The account's lock is held.
func (l *Limiter) wake(a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listed = append(l.listed, a)
}
