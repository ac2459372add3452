package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Actor is who makes a change.
type Actor struct {
	User  string
	KeyID string // of the key that was used; empty without one
}

type actorKey struct{}

// WithActor has changes that are made with the context noted as the actor's. Without one they are not noted: a part
// of the service makes them of itself.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// AuditEvent is a change that somebody made.
type AuditEvent struct {
	ID     string
	At     time.Time
	Tenant string // whose thing was changed; empty for what belongs to no tenant
	Actor  Actor
	Action string          // such as key.create
	Object string          // the id of what was changed
	Detail json.RawMessage // what it is now; no secrets, nil when there is nothing to say
}

// note keeps, in the change's own transaction, who made it.
func (s *Store) note(ctx context.Context, q *sqlgen.Queries, tenant, action, object string, detail any) error {
	actor, ok := ctx.Value(actorKey{}).(Actor)
	if !ok {
		return nil
	}
	body := ""
	if detail != nil {
		raw, err := json.Marshal(detail)
		if err != nil {
			return fmt.Errorf("note %s: %w", action, err)
		}
		body = string(raw)
	}
	err := q.InsertAudit(ctx, sqlgen.InsertAuditParams{
		ID: NewID(), At: micros(s.now()), Tenant: tenant, Actor: clean(actor.User), ActorKey: actor.KeyID, Action: action,
		Object: object, Detail: clean(body),
	})
	if err != nil {
		return fmt.Errorf("note %s: %w", action, err)
	}
	return nil
}

// ListAudit lists the changes of a tenant's things, or of all when tenant is empty, newest first.
func (s *Store) ListAudit(ctx context.Context, tenant string, page Page) (out []AuditEvent, next string, err error) {
	before, beforeID := end(time.Time{}), ""
	if page.Cursor != "" {
		at, key, err := page.position(1)
		if err != nil {
			return nil, "", fmt.Errorf("list audit: %w", err)
		}
		before, beforeID = at, key[0]
	}
	limit := page.limit()
	var rows []sqlgen.AuditEvent
	if tenant == "" {
		rows, err = s.reader().ListAudit(ctx, sqlgen.ListAuditParams{BeforeAt: before, BeforeID: beforeID, MaxRows: limit + 1})
	} else {
		rows, err = s.reader().ListAuditOfTenant(ctx, sqlgen.ListAuditOfTenantParams{Tenant: tenant, BeforeAt: before, BeforeID: beforeID, MaxRows: limit + 1})
	}
	if err != nil {
		return nil, "", fmt.Errorf("list audit: %w", err)
	}
	rows, next = cut(rows, limit, func(e sqlgen.AuditEvent) string { return cursor(e.At, e.ID) })
	out, err = mapRows(rows, func(e sqlgen.AuditEvent) (AuditEvent, error) {
		return AuditEvent{
			ID: e.ID, At: moment(e.At), Tenant: e.Tenant, Actor: Actor{User: e.Actor, KeyID: e.ActorKey}, Action: e.Action,
			Object: e.Object, Detail: raw(e.Detail),
		}, nil
	})
	return out, next, err
}
