package rest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

// ListKeys lists keys; those who may only see endpoint keys see those.
func (s *server) ListKeys(ctx context.Context, r api.ListKeysRequestObject) (api.ListKeysResponseObject, error) {
	who := whoOf(ctx)
	keys, next, err := s.Store.ListKeys(ctx, who.Tenant, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListKeys200JSONResponse{Items: []api.Key{}, NextCursor: ref(next)}
	for _, k := range keys {
		if k.Kind == auth.KindEndpoint || who.Can(auth.Read, auth.Keys) {
			out.Items = append(out.Items, keyView(k))
		}
	}
	return out, nil
}

func keyView(k store.Key) api.Key {
	return api.Key{
		ID: k.ID, Kind: api.KeyKind(k.Kind), Name: k.Name, Tenant: k.Tenant, Role: k.Role, Prefix: k.Prefix,
		Endpoints: append([]string{}, k.Endpoints...), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, LastUsedAt: k.LastUsedAt,
	}
}

// CreateKey makes a key and shows it once.
func (s *server) CreateKey(ctx context.Context, r api.CreateKeyRequestObject) (api.CreateKeyResponseObject, error) {
	who, kind := whoOf(ctx), string(r.Body.Kind)
	tenant, err := keyTenant(who, *r.Body)
	if err != nil {
		return nil, err
	}
	plaintext, key, err := auth.NewKey(kind)
	if err != nil {
		return nil, httpx.NewProblem(http.StatusBadRequest, "bad_field", err.Error()).At("/kind", err.Error())
	}
	key.Name, key.Tenant, key.ExpiresAt, key.Endpoints = r.Body.Name, tenant, r.Body.ExpiresAt, val(r.Body.Endpoints)
	if r.Body.Role != nil {
		if kind != auth.KindTenant {
			return nil, badField("/role", "a key of kind "+kind+" has one role: leave role out")
		}
		key.Role = string(*r.Body.Role)
	}
	if len(key.Endpoints) > 0 && kind != auth.KindEndpoint {
		return nil, badField("/endpoints", "only endpoint keys are for endpoints: leave it out")
	}
	if key.ExpiresAt != nil && !key.ExpiresAt.After(s.Clock.Now()) {
		return nil, badField("/expires_at", "is past: write a later time")
	}
	if err := s.ownEndpoints(ctx, tenant, key.Endpoints); err != nil {
		return nil, err
	}
	if err := s.Store.CreateKey(ctx, key); err != nil {
		return nil, err
	}
	s.log.Info("key created", "key_id", key.ID, "kind", kind, "tenant", tenant, "by", who.User)
	return api.CreateKey201JSONResponse{Key: keyView(key), Plaintext: plaintext}, nil
}

// keyTenant is the tenant of a new key, if the caller may make it.
func keyTenant(who identity.Who, body api.KeyCreate) (string, error) {
	kind, tenant := string(body.Kind), val(body.Tenant)
	object := auth.Keys
	if kind == auth.KindEndpoint {
		object = auth.EndpointKeys
	}
	if !who.Can(auth.Write, object) {
		return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "role "+who.Role+" may only make endpoint keys")
	}
	if kind == auth.KindAdmin || kind == auth.KindNode {
		if who.Tenant != "" {
			return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "a tenant may not make keys of kind "+kind)
		}
		if tenant != "" {
			return "", badField("/tenant", "a key of kind "+kind+" belongs to no tenant: leave tenant out")
		}
		return "", nil
	}
	if who.Tenant == "" {
		return cmp.Or(tenant, identity.DefaultTenant), nil
	}
	if tenant != "" && tenant != who.Tenant {
		return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "you may only make keys of your own tenant: leave tenant out")
	}
	return who.Tenant, nil
}

// ownEndpoints refuses endpoints that do not exist or belong to somebody else.
func (s *server) ownEndpoints(ctx context.Context, tenant string, ids []string) error {
	for i, id := range ids {
		if _, err := s.endpointOf(ctx, tenant, id); err != nil {
			if problemOf(err) == nil {
				return err
			}
			return badField(fmt.Sprintf("/endpoints/%d", i), "no endpoint "+id+" of tenant "+tenant)
		}
	}
	return nil
}

func badField(pointer, detail string) error {
	return httpx.NewProblem(http.StatusBadRequest, "bad_field", pointer+" "+detail).At(pointer, detail)
}

// DeleteKey deletes a key.
func (s *server) DeleteKey(ctx context.Context, r api.DeleteKeyRequestObject) (api.DeleteKeyResponseObject, error) {
	who := whoOf(ctx)
	if !who.Can(auth.Write, auth.Keys) {
		key, err := s.findKey(ctx, who.Tenant, r.ID)
		if err != nil {
			return nil, err
		}
		if key.Kind != auth.KindEndpoint {
			return nil, httpx.NewProblem(http.StatusForbidden, "forbidden", "role "+who.Role+" may only delete endpoint keys")
		}
	}
	if err := s.Store.DeleteKey(ctx, who.Tenant, r.ID); err != nil {
		return nil, err
	}
	s.log.Info("key deleted", "key_id", r.ID, "by", who.User)
	return api.DeleteKey204Response{}, nil
}

func (s *server) findKey(ctx context.Context, tenant, id string) (store.Key, error) {
	page := store.Page{Limit: 500}
	for {
		keys, next, err := s.Store.ListKeys(ctx, tenant, page)
		if err != nil {
			return store.Key{}, err
		}
		for _, k := range keys {
			if k.ID == id {
				return k, nil
			}
		}
		if next == "" {
			return store.Key{}, fmt.Errorf("key %s: %w", id, store.ErrNotFound)
		}
		page.Cursor = next
	}
}
