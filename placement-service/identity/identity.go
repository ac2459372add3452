// Package identity tells who sent a request to the placement service: the holder of one of our keys, the holder of
// a Nomad token, or nobody, who may have a role too. Nothing of it is read from a job's text. What each role may do
// belongs to auth.
package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// Kinds of identity beside those of auth.
const (
	KindNomad     = "nomad"     // a Nomad ACL token
	KindAnonymous = "anonymous" // no credentials
)

// DefaultTenant owns what nobody else does.
const DefaultTenant = "default"

// Who is the sender of a request.
type Who struct {
	auth.Identity
	NomadToken string // set when the sender came with a Nomad token
}

// Caller is the sender in the words of the submitter.
func (w Who) Caller() submit.Caller {
	c := submit.Caller{Tenant: w.Tenant, User: w.User, All: w.Tenant == ""}
	if c.Tenant == "" {
		c.Tenant = DefaultTenant
	}
	return c
}

// Person reports whether this is somebody who works with jobs, not a device plugin or a client of the gateway.
func (w Who) Person() bool { return w.Kind != auth.KindNode && w.Kind != auth.KindEndpoint }

// Tokens resolves Nomad tokens.
type Tokens interface {
	TokenSelf(ctx context.Context, token string) (nomadapi.Token, error)
}

// Resolver is safe for concurrent use.
type Resolver struct {
	Keys      *auth.Authenticator
	Tokens    Tokens
	Anonymous string // role of requests without credentials; none when empty
	Clock     clock.Clock

	mu    sync.Mutex
	known map[string]seen // Nomad tokens, by hash
}

type seen struct {
	token nomadapi.Token
	until time.Time
}

// tokenLife is how long a Nomad token is believed without asking again.
const tokenLife = 5 * time.Second

// aclsDisabled is the accessor of the token that Nomad, from 1.7 on, makes up for any text when its ACLs are off: it
// says nothing about who sent the request.
const aclsDisabled = "acls-disabled"

// Of tells who sent the request. The error is a *httpx.Problem.
func (r *Resolver) Of(req *http.Request) (Who, error) {
	token := auth.Token(req)
	switch {
	case token == "" && r.Anonymous != "":
		return Who{Identity: auth.Identity{User: "anonymous", Role: r.Anonymous, Kind: KindAnonymous}}, nil
	case token == "" || auth.IsKey(token):
		id, err := r.Keys.Identify(req.Context(), token)
		if err != nil {
			return Who{}, problemOf(err)
		}
		return Who{Identity: id}, nil
	}
	return r.ofNomad(req.Context(), token)
}

func problemOf(err error) *httpx.Problem {
	switch {
	case errors.Is(err, auth.ErrNoCredentials):
		return httpx.NewProblem(http.StatusUnauthorized, "no_credentials", err.Error())
	case errors.Is(err, auth.ErrExpired):
		return httpx.NewProblem(http.StatusUnauthorized, "expired_credentials", err.Error())
	case errors.Is(err, auth.ErrBadCredentials):
		return httpx.NewProblem(http.StatusUnauthorized, "bad_credentials", err.Error())
	}
	return httpx.NewProblem(http.StatusServiceUnavailable, "database_unavailable", "the database cannot be reached to check the key: try again")
}

func (r *Resolver) ofNomad(ctx context.Context, token string) (Who, error) {
	t, err := r.lookup(ctx, token)
	switch {
	case err == nil:
	case nomadapi.IsAnswer(err):
		return Who{}, problemOf(auth.ErrBadCredentials)
	default:
		return Who{}, httpx.NewProblem(http.StatusServiceUnavailable, "nomad_unavailable", "Nomad cannot be reached to check the token: try again")
	}
	if t.AccessorID == aclsDisabled || t.AccessorID == "" {
		return Who{}, problemOf(auth.ErrBadCredentials)
	}
	id := auth.Identity{Tenant: DefaultTenant, User: t.Name, Role: auth.RoleMember, Kind: KindNomad, KeyID: t.AccessorID}
	if id.User == "" {
		id.User = t.AccessorID
	}
	if t.Type == "management" {
		id.Tenant, id.Role = "", auth.RoleAdmin
	}
	return Who{Identity: id, NomadToken: token}, nil
}

func (r *Resolver) lookup(ctx context.Context, token string) (nomadapi.Token, error) {
	now, hash := r.Clock.Now(), auth.Hash(token)
	r.mu.Lock()
	if s, ok := r.known[hash]; ok && now.Before(s.until) {
		r.mu.Unlock()
		return s.token, nil
	}
	r.mu.Unlock()
	t, err := r.Tokens.TokenSelf(ctx, token)
	if err != nil {
		return t, fmt.Errorf("check nomad token: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) > 10000 {
		r.known = map[string]seen{}
	}
	r.known[hash] = seen{token: t, until: now.Add(tokenLife)}
	return t, nil
}
