package store

import (
	"context"
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
	Role       string   // see auth: admin, member, viewer, node or endpoint
	Prefix     string   // the first characters of the key, for a person to tell keys apart
	Hash       string   // hex SHA-256 of the key
	Endpoints  []string // ids of the endpoints an endpoint key opens; empty opens all of its tenant
	CreatedAt  time.Time
	ExpiresAt  *time.Time // nil never expires
	LastUsedAt *time.Time // nil was never used
}

// CreateKey stores a new key. ErrConflict when its id or hash exists.
func (s *Store) CreateKey(ctx context.Context, k Key) error {
	return createKey(ctx, s.writer(), k)
}

func createKey(ctx context.Context, q *sqlgen.Queries, k Key) error {
	if err := checkNames(append([]string{k.ID, k.Name, k.Tenant}, k.Endpoints...)...); err != nil {
		return fmt.Errorf("create key: %w", err)
	}
	endpoints, err := json.Marshal(k.Endpoints)
	if err != nil {
		return fmt.Errorf("encode endpoints of key %s: %w", k.ID, err)
	}
	n, err := q.InsertKey(ctx, sqlgen.InsertKeyParams{
		ID: k.ID, Kind: k.Kind, Name: k.Name, Tenant: k.Tenant, Role: k.Role, Prefix: k.Prefix, Hash: k.Hash,
		Endpoints: string(endpoints), CreatedAt: micros(k.CreatedAt),
		ExpiresAt: nullMicros(k.ExpiresAt), LastUsedAt: nullMicros(k.LastUsedAt),
	})
	if err != nil {
		return fmt.Errorf("create key %s: %w", k.ID, err)
	}
	if n == 0 {
		return fmt.Errorf("create key %s: %w", k.ID, ErrConflict)
	}
	return nil
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
		return createKey(ctx, q, k)
	})
	return created && err == nil, err
}

// KeyByHash finds the key with the hex SHA-256, or ErrNotFound. Expired keys are found too.
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

// DeleteKey deletes a key of the tenant, or of anyone when tenant is empty. ErrNotFound when there is none.
func (s *Store) DeleteKey(ctx context.Context, tenant, id string) error {
	if !storable(id) {
		return fmt.Errorf("key: %w", ErrNotFound)
	}
	var n int64
	var err error
	if tenant == "" {
		n, err = s.writer().DeleteKey(ctx, id)
	} else {
		n, err = s.writer().DeleteKeyOfTenant(ctx, sqlgen.DeleteKeyOfTenantParams{Tenant: tenant, ID: id})
	}
	return oneRow(n, err, "delete key "+id)
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
		Hash: row.Hash, CreatedAt: moment(row.CreatedAt),
		ExpiresAt: nullMoment(row.ExpiresAt), LastUsedAt: nullMoment(row.LastUsedAt),
	}
	if err := json.Unmarshal([]byte(row.Endpoints), &k.Endpoints); err != nil {
		return Key{}, fmt.Errorf("decode endpoints of key %s: %w", row.ID, err)
	}
	return k, nil
}
