package store

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Key is what is kept of an API key: never the key itself, only its SHA-256.
type Key struct {
	ID         string
	Kind       string // admin, tenant, node or endpoint
	Name       string
	Tenant     string
	Member     string   // of the tenant, for whom the key acts
	Role       string   // see auth: admin, member, viewer, node or endpoint
	Prefix     string   // the first characters of the key, for a person to tell keys apart
	Hash       string   // hex SHA-256 of the key
	Endpoints  []string // ids of the endpoints an endpoint key opens; empty opens all of its tenant
	CreatedAt  time.Time
	ExpiresAt  *time.Time // nil never expires
	LastUsedAt *time.Time // nil was never used

	PriorHash  string     // of the key before it was rotated; empty when there is none
	PriorUntil *time.Time // how long that one opens, too
	RevokedAt  *time.Time // nil is good
}

// Opens reports whether a key with the hex SHA-256 is this one, now. Until when it opens is told too; nil is for ever.
func (k Key) Opens(hash string) (until *time.Time, ok bool) {
	same := func(of string) bool { return subtle.ConstantTimeCompare([]byte(of), []byte(hash)) == 1 }
	until = k.ExpiresAt
	switch {
	case k.RevokedAt != nil || hash == "":
		return nil, false
	case same(k.Hash):
		return until, true
	case same(k.PriorHash):
		if k.PriorUntil != nil && (until == nil || k.PriorUntil.Before(*until)) {
			until = k.PriorUntil
		}
		return until, true
	}
	return nil, false
}

// CreateKey stores a new key. ErrConflict when its id or hash exists.
func (s *Store) CreateKey(ctx context.Context, k Key) error {
	return s.inTx(ctx, func(q *sqlgen.Queries) error { return s.createKey(ctx, q, k) })
}

func (s *Store) createKey(ctx context.Context, q *sqlgen.Queries, k Key) error {
	if err := checkNames(append([]string{k.ID, k.Name, k.Tenant, k.Member}, k.Endpoints...)...); err != nil {
		return fmt.Errorf("create key: %w", err)
	}
	endpoints, err := json.Marshal(k.Endpoints)
	if err != nil {
		return fmt.Errorf("encode endpoints of key %s: %w", k.ID, err)
	}
	revision, err := bump(ctx, q, KeyRevision)
	if err != nil {
		return err
	}
	n, err := q.InsertKey(ctx, sqlgen.InsertKeyParams{
		ID: k.ID, Kind: k.Kind, Name: k.Name, Tenant: k.Tenant, Member: k.Member, Role: k.Role, Prefix: k.Prefix, Hash: k.Hash,
		Endpoints: string(endpoints), CreatedAt: micros(k.CreatedAt),
		ExpiresAt: nullMicros(k.ExpiresAt), LastUsedAt: nullMicros(k.LastUsedAt), Revision: revision,
	})
	if err != nil {
		return fmt.Errorf("create key %s: %w", k.ID, err)
	}
	if n == 0 {
		return fmt.Errorf("create key %s: %w", k.ID, ErrConflict)
	}
	return s.note(ctx, q, k.Tenant, "key.create", k.ID, auditOf(k))
}

// auditOf is what is told of a key, which leaves out its hashes.
func auditOf(k Key) map[string]any {
	return map[string]any{"kind": k.Kind, "name": k.Name, "member": k.Member, "role": k.Role, "endpoints": k.Endpoints, "expires_at": k.ExpiresAt}
}

// CreateKeyOnce stores the key and the setting name=value in one transaction, if no such setting exists. created
// is false, and nothing is stored, when it does.
func (s *Store) CreateKeyOnce(ctx context.Context, name, value string, k Key) (created bool, err error) {
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.InsertSettingOnce(ctx, sqlgen.InsertSettingOnceParams{Name: name, Value: value})
		if err != nil {
			return fmt.Errorf("set %s once: %w", name, err)
		}
		if created = n == 1; !created {
			return nil
		}
		return s.createKey(ctx, q, k)
	})
	return created && err == nil, err
}

// KeyByHash finds the key with the hex SHA-256, also of the text that it had before, or ErrNotFound. Expired keys are
// found too.
func (s *Store) KeyByHash(ctx context.Context, hash string) (Key, error) {
	row, err := s.reader().GetKeyByHash(ctx, hash)
	if errors.Is(err, sql.ErrNoRows) {
		return Key{}, fmt.Errorf("key: %w", ErrNotFound)
	}
	if err != nil {
		return Key{}, fmt.Errorf("find key by hash: %w", err)
	}
	return keyOf(row)
}

// ListKeys lists a tenant's keys, or everyone's when tenant is empty, oldest first.
func (s *Store) ListKeys(ctx context.Context, tenant string, page Page) (keys []Key, next string, err error) {
	at, id, limit, err := page.after()
	if err != nil {
		return nil, "", fmt.Errorf("list keys: %w", err)
	}
	var rows []sqlgen.ApiKey
	if tenant == "" {
		rows, err = s.reader().ListKeys(ctx, sqlgen.ListKeysParams{AfterCreated: at, AfterID: id, MaxRows: limit + 1})
	} else {
		rows, err = s.reader().ListKeysOfTenant(ctx, sqlgen.ListKeysOfTenantParams{
			Tenant: tenant, AfterCreated: at, AfterID: id, MaxRows: limit + 1,
		})
	}
	if err != nil {
		return nil, "", fmt.Errorf("list keys: %w", err)
	}
	rows, next = cut(rows, limit, func(k sqlgen.ApiKey) string { return cursor(k.CreatedAt, k.ID) })
	keys, err = mapRows(rows, keyOf)
	return keys, next, err
}

// Key finds a key of the tenant, or of anyone when tenant is empty, or ErrNotFound.
func (s *Store) Key(ctx context.Context, tenant, id string) (Key, error) {
	if !storable(id) {
		return Key{}, fmt.Errorf("key: %w", ErrNotFound)
	}
	return keyIn(ctx, s.reader(), tenant, id)
}

func keyIn(ctx context.Context, q *sqlgen.Queries, tenant, id string) (Key, error) {
	row, err := q.GetKey(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && tenant != "" && row.Tenant != tenant {
		return Key{}, fmt.Errorf("key %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Key{}, fmt.Errorf("read key %s: %w", id, err)
	}
	return keyOf(row)
}

// changeKey changes a key of the tenant, or of anyone when tenant is empty, and notes the action. ErrNotFound when
// there is none.
func (s *Store) changeKey(ctx context.Context, tenant, id, action string, change func(q *sqlgen.Queries, k Key, revision int64) error) (k Key, err error) {
	if !storable(id) {
		return Key{}, fmt.Errorf("key: %w", ErrNotFound)
	}
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		revision, err := bump(ctx, q, KeyRevision) // first: whoever else changes keys waits here
		if err != nil {
			return err
		}
		have, err := keyIn(ctx, q, tenant, id)
		if err != nil {
			return err
		}
		if err := change(q, have, revision); err != nil {
			return err
		}
		if err := s.note(ctx, q, have.Tenant, action, id, auditOf(have)); err != nil {
			return err
		}
		if action != "key.delete" {
			k, err = keyIn(ctx, q, tenant, id)
		}
		return err
	})
	if err != nil {
		return Key{}, fmt.Errorf("%s %s: %w", action, id, err)
	}
	return k, nil
}

// RotateKey gives the key of the tenant, or of anyone when tenant is empty, another text. The one that it had opens
// until the moment, too. ErrNotFound when there is no such key, ErrConflict while two of its texts open.
func (s *Store) RotateKey(ctx context.Context, tenant, id, hash, prefix string, until time.Time) (Key, error) {
	return s.changeKey(ctx, tenant, id, "key.rotate", func(q *sqlgen.Queries, k Key, revision int64) error {
		if k.PriorUntil != nil && s.now().Before(*k.PriorUntil) {
			return fmt.Errorf("two of its texts open: %w", ErrConflict)
		}
		n, err := q.RotateKey(ctx, sqlgen.RotateKeyParams{
			ID: id, OldHash: k.Hash, Hash: hash, Prefix: prefix, Revision: revision, PriorUntil: nullMicros(&until),
		})
		return oneRow(n, err, "rotate key")
	})
}

// RetireKey ends the text that a rotated key had before. ErrNotFound when there is no such key, or it has only one.
func (s *Store) RetireKey(ctx context.Context, tenant, id string) (Key, error) {
	return s.changeKey(ctx, tenant, id, "key.retire", func(q *sqlgen.Queries, _ Key, revision int64) error {
		n, err := q.RetireKey(ctx, sqlgen.RetireKeyParams{ID: id, Revision: revision})
		return oneRow(n, err, "end the earlier text of the key")
	})
}

// DeleteKey revokes a key of the tenant, or of anyone when tenant is empty, with the limits of it. ErrNotFound when
// there is none. That it was there stays known, for whoever keeps a copy.
func (s *Store) DeleteKey(ctx context.Context, tenant, id string) error {
	_, err := s.changeKey(ctx, tenant, id, "key.delete", func(q *sqlgen.Queries, k Key, revision int64) error {
		now := s.now()
		n, err := q.RevokeKey(ctx, sqlgen.RevokeKeyParams{ID: id, RevokedAt: nullMicros(&now), Revision: revision})
		if err := oneRow(n, err, "revoke key"); err != nil {
			return err
		}
		return s.dropLimitsOf(ctx, q, k.Tenant, ScopeKey, id)
	})
	return err
}

// KeyChanges lists keys of revisions after the given one, revoked ones too, in order, at most MaxPageLimit after the
// key with the id of that revision; an empty id is before all.
func (s *Store) KeyChanges(ctx context.Context, revision int64, id string) (keys []Key, last int64, lastID string, err error) {
	rows, err := s.reader().ListKeyChanges(ctx, sqlgen.ListKeyChangesParams{AfterRevision: revision, AfterID: id, MaxRows: MaxPageLimit})
	if err != nil {
		return nil, 0, "", fmt.Errorf("list changes of keys: %w", err)
	}
	last, lastID = revision, id
	if n := len(rows); n > 0 {
		last, lastID = rows[n-1].Revision, rows[n-1].ID
	}
	keys, err = mapRows(rows, keyOf)
	return keys, last, lastID, err
}

// TouchKey notes that the key was used at the moment; an earlier moment than the noted one changes nothing.
func (s *Store) TouchKey(ctx context.Context, id string, at time.Time) error {
	_, err := s.writer().TouchKey(ctx, sqlgen.TouchKeyParams{
		ID: id, UsedAt: sql.NullInt64{Int64: micros(at), Valid: true},
	})
	if err != nil {
		return fmt.Errorf("touch key %s: %w", id, err)
	}
	return nil
}

func keyOf(row sqlgen.ApiKey) (Key, error) {
	k := Key{
		ID: row.ID, Kind: row.Kind, Name: row.Name, Tenant: row.Tenant, Role: row.Role, Prefix: row.Prefix,
		Hash: row.Hash, Member: row.Member, CreatedAt: moment(row.CreatedAt),
		ExpiresAt: nullMoment(row.ExpiresAt), LastUsedAt: nullMoment(row.LastUsedAt),
		PriorHash: row.PriorHash.String, PriorUntil: nullMoment(row.PriorUntil), RevokedAt: nullMoment(row.RevokedAt),
	}
	if err := json.Unmarshal([]byte(row.Endpoints), &k.Endpoints); err != nil {
		return Key{}, fmt.Errorf("decode endpoints of key %s: %w", row.ID, err)
	}
	return k, nil
}
