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

// Scopes of a limit: what its subject is.
const (
	ScopeKey    = "key"    // a key's id
	ScopeMember = "member" // a member of the tenant, as its keys name them
	ScopeTenant = "tenant" // the tenant itself
	// ScopeEndpoint is of an endpoint, by its id, whoever calls it.
	ScopeEndpoint = "endpoint"
)

// Scopes lists the scopes: those of who calls, the narrowest first, and that of what is called.
func Scopes() []string { return []string{ScopeKey, ScopeMember, ScopeTenant, ScopeEndpoint} }

// Caps are the most that may be used. Nil is no limit, 0 is nothing at all.
type Caps struct {
	RequestsPerMinute *int64
	TokensPerMinute   *int64
	Concurrency       *int64 // requests at the same time
	TokensPerMonth    *int64
	NanosPerMonth     *int64 // money, in billionths of the unit that prices are in
}

func (c Caps) all() map[string]*int64 {
	return map[string]*int64{
		"requests a minute": c.RequestsPerMinute, "tokens a minute": c.TokensPerMinute, "concurrency": c.Concurrency,
		"tokens a month": c.TokensPerMonth, "money a month": c.NanosPerMonth,
	}
}

// Limit bounds what a key, a member or a tenant uses, of one model or of all together, or what all use of an endpoint.
type Limit struct {
	ID        string // made by SetLimit
	Tenant    string
	Scope     string // one of Scopes
	Subject   string
	Model     string // as clients name it; empty is all models together
	Caps      Caps
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Spent is what was used of a budget.
type Spent struct {
	Month  int64 // year × 100 + month, UTC; 0 when nothing was ever used
	Tokens int64 // of that month
	Nanos  int64 // money of that month, in billionths of the unit that prices are in
}

// MonthOf is the month of a moment as Spent tells it.
func MonthOf(at time.Time) int64 {
	year, month, _ := at.UTC().Date()
	return int64(year)*100 + int64(month)
}

// Revisions count the changes of a kind of rows.
const (
	KeyRevision   = "keys"
	LimitRevision = "limits" // limits and prices
)

// Revision tells how often rows of the kind have changed.
func (s *Store) Revision(ctx context.Context, kind string) (int64, error) {
	n, err := s.reader().GetRevision(ctx, kind)
	if err != nil {
		return 0, fmt.Errorf("read revision of %s: %w", kind, err)
	}
	return n, nil
}

func bump(ctx context.Context, q *sqlgen.Queries, kind string) (int64, error) {
	n, err := q.BumpRevision(ctx, kind)
	if err != nil {
		return 0, fmt.Errorf("count a change of %s: %w", kind, err)
	}
	return n, nil
}

func (l Limit) check() error {
	if err := checkNames(l.Tenant, l.Scope, l.Subject, l.Model); err != nil {
		return err
	}
	if !slices.Contains(Scopes(), l.Scope) {
		return fmt.Errorf("scope %q is %w: write one of %s", l.Scope, ErrInvalid, strings.Join(Scopes(), ", "))
	}
	if l.Scope == ScopeEndpoint && l.Model != "" {
		return fmt.Errorf("a limit of an endpoint for one model is %w: it has one model, leave it out", ErrInvalid)
	}
	if l.Tenant == "" || l.Subject == "" {
		return fmt.Errorf("a limit without tenant or subject is %w", ErrInvalid)
	}
	any := false
	for what, n := range l.Caps.all() {
		if n != nil && *n < 0 {
			return fmt.Errorf("%s below 0 is %w: write 0 for nothing at all, or leave it out for no limit", what, ErrInvalid)
		}
		any = any || n != nil
	}
	if !any {
		return fmt.Errorf("a limit that limits nothing is %w: give a number, or delete the limit", ErrInvalid)
	}
	return nil
}

// SetLimit stores the limit, in place of the one that its subject and model have, and returns it as stored.
func (s *Store) SetLimit(ctx context.Context, l Limit) (Limit, error) {
	if err := l.check(); err != nil {
		return Limit{}, fmt.Errorf("set limit: %w", err)
	}
	err := s.inTx(ctx, func(q *sqlgen.Queries) error {
		if _, err := bump(ctx, q, LimitRevision); err != nil {
			return err
		}
		row, err := q.UpsertLimit(ctx, sqlgen.UpsertLimitParams{
			ID: NewID(), Tenant: l.Tenant, Scope: l.Scope, Subject: l.Subject, Model: l.Model, CreatedAt: micros(s.now()),
			RequestsMinute: nullInt(l.Caps.RequestsPerMinute), TokensMinute: nullInt(l.Caps.TokensPerMinute),
			Concurrency: nullInt(l.Caps.Concurrency), TokensMonth: nullInt(l.Caps.TokensPerMonth), NanosMonth: nullInt(l.Caps.NanosPerMonth),
		})
		if err != nil {
			return err
		}
		l = limitOf(row)
		return s.note(ctx, q, l.Tenant, "limit.set", l.ID, l)
	})
	if err != nil {
		return Limit{}, fmt.Errorf("set limit of %s %s: %w", l.Scope, l.Subject, err)
	}
	return l, nil
}

// Limit finds one limit, or ErrNotFound.
func (s *Store) Limit(ctx context.Context, id string) (Limit, error) {
	if !storable(id) {
		return Limit{}, fmt.Errorf("limit: %w", ErrNotFound)
	}
	row, err := s.reader().GetLimit(ctx, id)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Limit{}, fmt.Errorf("read limit %s: %w", id, err)
	}
	return limitOf(row), nil
}

// DeleteLimit deletes a limit of the tenant, or of anyone when tenant is empty. ErrNotFound when there is none.
func (s *Store) DeleteLimit(ctx context.Context, tenant, id string) error {
	if !storable(id) {
		return fmt.Errorf("limit: %w", ErrNotFound)
	}
	err := s.inTx(ctx, func(q *sqlgen.Queries) error {
		row, err := q.GetLimit(ctx, id)
		if errors.Is(err, sql.ErrNoRows) || err == nil && tenant != "" && row.Tenant != tenant {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if _, err := bump(ctx, q, LimitRevision); err != nil {
			return err
		}
		return s.dropLimit(ctx, q, limitOf(row))
	})
	if err != nil {
		return fmt.Errorf("delete limit %s: %w", id, err)
	}
	return nil
}

func (s *Store) dropLimit(ctx context.Context, q *sqlgen.Queries, l Limit) error {
	n, err := q.DeleteLimit(ctx, l.ID)
	if err := oneRow(n, err, "delete limit"); err != nil {
		return err
	}
	if err := q.DeleteAllowance(ctx, l.ID); err != nil {
		return err
	}
	return s.note(ctx, q, l.Tenant, "limit.delete", l.ID, l)
}

// dropLimitsOf deletes the limits of a subject.
func (s *Store) dropLimitsOf(ctx context.Context, q *sqlgen.Queries, tenant, scope, subject string) error {
	for {
		rows, err := q.ListLimitsOfSubject(ctx, sqlgen.ListLimitsOfSubjectParams{Tenant: tenant, Scope: scope, Subject: subject, MaxRows: MaxPageLimit})
		if err != nil {
			return fmt.Errorf("list limits of %s %s: %w", scope, subject, err)
		}
		if len(rows) == 0 {
			return nil
		}
		if _, err := bump(ctx, q, LimitRevision); err != nil {
			return err
		}
		for _, row := range rows {
			if err := s.dropLimit(ctx, q, limitOf(row)); err != nil {
				return err
			}
		}
	}
}

// LimitUse is a limit with what was used of its budgets.
type LimitUse struct {
	Limit
	Spent Spent
}

// ListLimits lists a tenant's limits, or everyone's when tenant is empty, oldest first.
func (s *Store) ListLimits(ctx context.Context, tenant string, page Page) (out []LimitUse, next string, err error) {
	at, id, limit, err := page.after()
	if err != nil {
		return nil, "", fmt.Errorf("list limits: %w", err)
	}
	var rows []sqlgen.ListLimitsRow
	if tenant == "" {
		rows, err = s.reader().ListLimits(ctx, sqlgen.ListLimitsParams{AfterCreated: at, AfterID: id, MaxRows: limit + 1})
	} else {
		var own []sqlgen.ListLimitsOfTenantRow
		own, err = s.reader().ListLimitsOfTenant(ctx, sqlgen.ListLimitsOfTenantParams{Tenant: tenant, AfterCreated: at, AfterID: id, MaxRows: limit + 1})
		for _, row := range own {
			rows = append(rows, sqlgen.ListLimitsRow(row))
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("list limits: %w", err)
	}
	rows, next = cut(rows, limit, func(l sqlgen.ListLimitsRow) string { return cursor(l.CreatedAt, l.ID) })
	out = make([]LimitUse, 0, len(rows))
	for _, r := range rows {
		out = append(out, LimitUse{
			Limit: limitOf(sqlgen.Limit{
				ID: r.ID, Tenant: r.Tenant, Scope: r.Scope, Subject: r.Subject, Model: r.Model,
				RequestsMinute: r.RequestsMinute, TokensMinute: r.TokensMinute, Concurrency: r.Concurrency,
				TokensMonth: r.TokensMonth, NanosMonth: r.NanosMonth, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
			}),
			Spent: Spent{Month: r.Month.Int64, Tokens: r.MonthTokens.Int64, Nanos: r.MonthNanos.Int64},
		})
	}
	return out, next, nil
}

func limitOf(row sqlgen.Limit) Limit {
	return Limit{
		ID: row.ID, Tenant: row.Tenant, Scope: row.Scope, Subject: row.Subject, Model: row.Model,
		Caps: Caps{
			RequestsPerMinute: intOf(row.RequestsMinute), TokensPerMinute: intOf(row.TokensMinute), Concurrency: intOf(row.Concurrency),
			TokensPerMonth: intOf(row.TokensMonth), NanosPerMonth: intOf(row.NanosMonth),
		},
		CreatedAt: moment(row.CreatedAt), UpdatedAt: moment(row.UpdatedAt),
	}
}

// Allowance is what was taken from one limit.
type Allowance struct {
	LimitID string
	Spent
	State string // the gateway's own; empty at first
}

// ChangeAllowances changes what was taken from the limits, all or none, while nobody else does. change is called for
// each id, in order of the ids, and again from the first when the transaction lost a race: it must start afresh at
// the first id. A crash of the database's machine may lose the last moments.
func (s *Store) ChangeAllowances(ctx context.Context, ids []string, change func(a *Allowance) error) error {
	ids = slices.Clone(ids)
	slices.Sort(ids) // in one order for everyone, so that two never wait for each other
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		for _, id := range ids {
			row, err := q.LockAllowance(ctx, id)
			if err != nil {
				return err
			}
			a := Allowance{LimitID: id, Spent: Spent{Month: row.Month, Tokens: row.MonthTokens, Nanos: row.MonthNanos}, State: row.State}
			if err := change(&a); err != nil {
				return err
			}
			if err := q.PutAllowance(ctx, sqlgen.PutAllowanceParams{
				LimitID: id, Month: a.Month, MonthTokens: a.Tokens, MonthNanos: a.Nanos, State: a.State,
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("change %d allowances: %w", len(ids), err)
	}
	return nil
}
