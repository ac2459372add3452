package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

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
		ID: k.ID, Kind: api.KeyKind(k.Kind), Name: k.Name, Tenant: k.Tenant, Member: k.Member, Role: k.Role, Prefix: k.Prefix, PriorUntil: k.PriorUntil,
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
	if key.Member, err = keyMember(who, *r.Body); err != nil {
		return nil, err
	}
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

// keyMember is for whom a new key acts. Who is no admin makes keys for themselves alone: another name would be another
// limit.
func keyMember(who identity.Who, body api.KeyCreate) (string, error) {
	given := val(body.Member)
	switch {
	case who.Can(auth.Write, auth.Keys) && who.Tenant == "":
		return cmp.Or(given, body.Name), nil
	case who.Can(auth.Write, auth.Keys):
		return cmp.Or(given, memberOf(who)), nil
	case given != "" && given != memberOf(who):
		return "", httpx.NewProblem(http.StatusForbidden, "forbidden", "you may only make keys for yourself: leave member out")
	}
	return memberOf(who), nil
}

// memberOf is the caller as a member of the tenant: one who came with a key that was made for somebody is that one.
func memberOf(who identity.Who) string { return cmp.Or(who.Member, who.User) }

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

// changeable refuses keys that the caller may not change.
func (s *server) changeable(ctx context.Context, id string) (store.Key, error) {
	who := whoOf(ctx)
	key, err := s.Store.Key(ctx, who.Tenant, id)
	if err != nil {
		return key, err
	}
	if key.Kind != auth.KindEndpoint && !who.Can(auth.Write, auth.Keys) {
		return key, httpx.NewProblem(http.StatusForbidden, "forbidden", "role "+who.Role+" may only change and delete endpoint keys")
	}
	return key, nil
}

// DeleteKey revokes a key.
func (s *server) DeleteKey(ctx context.Context, r api.DeleteKeyRequestObject) (api.DeleteKeyResponseObject, error) {
	if _, err := s.changeable(ctx, r.ID); err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	if err := s.Store.DeleteKey(ctx, who.Tenant, r.ID); err != nil {
		return nil, err
	}
	s.log.Info("key deleted", "key_id", r.ID, "by", who.User)
	return api.DeleteKey204Response{}, nil
}

// overlap is how long the earlier text of a key opens after a rotation.
const overlap = 24 * time.Hour

// RotateKey gives a key another text and shows it once.
func (s *server) RotateKey(ctx context.Context, r api.RotateKeyRequestObject) (api.RotateKeyResponseObject, error) {
	key, err := s.changeable(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	plaintext, fresh, err := auth.NewKey(key.Kind)
	if err != nil {
		return nil, err
	}
	until := s.Clock.Now().Add(overlap)
	if r.Body.OverlapS != nil {
		until = s.Clock.Now().Add(time.Duration(*r.Body.OverlapS) * time.Second)
	}
	who := whoOf(ctx)
	key, err = s.Store.RotateKey(ctx, who.Tenant, r.ID, fresh.Hash, fresh.Prefix, until)
	if errors.Is(err, store.ErrConflict) {
		return nil, httpx.NewProblem(http.StatusConflict, "two_live", "two texts of this key are good already: end the earlier one first, with `heteroflow key retire "+r.ID+"`")
	}
	if err != nil {
		return nil, err
	}
	s.log.Info("key rotated", "key_id", r.ID, "by", who.User)
	return api.RotateKey201JSONResponse{Key: keyView(key), Plaintext: plaintext}, nil
}

// RetireKey ends the earlier text of a rotated key.
func (s *server) RetireKey(ctx context.Context, r api.RetireKeyRequestObject) (api.RetireKeyResponseObject, error) {
	if _, err := s.changeable(ctx, r.ID); err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	key, err := s.Store.RetireKey(ctx, who.Tenant, r.ID)
	if err != nil {
		return nil, err
	}
	s.log.Info("earlier text of key ended", "key_id", r.ID, "by", who.User)
	return api.RetireKey200JSONResponse(keyView(key)), nil
}
