package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/singleflight"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

var (
	// ErrNoCredentials says that the caller sent no key.
	ErrNoCredentials = errors.New("no key given: send it as Authorization: Bearer hf-…")
	// ErrBadCredentials says that the key is none of ours, or was deleted.
	ErrBadCredentials = errors.New("the key is not known: check that all of it was copied, or ask for a new one")
	// ErrExpired says that the key was good once.
	ErrExpired = errors.New("the key has expired: ask for a new one")
)

const (
	// cacheFor bounds how long a deleted key still opens.
	cacheFor = time.Second
	// cacheMost bounds the memory that guesses can take.
	cacheMost = 10_000
	// touchEvery bounds the writes that noting the last use costs.
	touchEvery = time.Minute
	// lookupTimeout bounds a look-up that callers share, which none of them may end alone.
	lookupTimeout = 5 * time.Second
)

// Identity is who is calling. The zero value is nobody and may nothing.
type Identity struct {
	Tenant    string // empty is not bound to a tenant: an operator, or a node
	User      string // the key's name
	Member    string // of the tenant, for whom the key acts
	Role      string
	Kind      string
	KeyID     string
	Endpoints []string // of an endpoint key: ids of what it opens; empty opens all of its tenant
}

// Opens reports whether the caller may send requests to the endpoint.
func (id Identity) Opens(e store.Endpoint) bool {
	if !id.Can(Use, Models) || (id.Tenant != "" && id.Tenant != e.Tenant) {
		return false
	}
	return len(id.Endpoints) == 0 || slices.Contains(id.Endpoints, e.ID)
}

// KeySource is where an Authenticator finds keys.
type KeySource interface {
	KeyByHash(ctx context.Context, hash string) (store.Key, error)
	TouchKey(ctx context.Context, id string, at time.Time) error
}

var _ KeySource = (*store.Store)(nil)

// Authenticator tells who holds a key. It remembers an answer for at most a second. It is safe for concurrent use.
type Authenticator struct {
	keys   KeySource
	clock  clock.Clock
	log    hclog.Logger
	flight singleflight.Group

	mu    sync.Mutex
	cache map[string]cached // by hash
}

type cached struct {
	key     store.Key
	known   bool
	expires *time.Time // the text that was given; nil never
	until   time.Time
}

// NewAuthenticator makes an Authenticator. A nil clock is the system's, a nil logger logs nothing.
func NewAuthenticator(keys KeySource, c clock.Clock, log hclog.Logger) *Authenticator {
	if c == nil {
		c = clock.System()
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Authenticator{keys: keys, clock: c, log: log.Named("auth"), cache: map[string]cached{}}
}

// Identify tells who holds the key. ErrNoCredentials, ErrBadCredentials and ErrExpired are about the key; any other
// error says that the store could not be asked.
func (a *Authenticator) Identify(ctx context.Context, token string) (Identity, error) {
	if token == "" {
		return Identity{}, ErrNoCredentials
	}
	kind, ok := kindOf(token)
	if !ok {
		return Identity{}, ErrBadCredentials
	}
	found, err := a.find(ctx, Hash(token))
	if err != nil {
		return Identity{}, fmt.Errorf("look up key: %w", err)
	}
	if !found.known || subtle.ConstantTimeCompare([]byte(found.key.Kind), []byte(kind)) != 1 {
		return Identity{}, ErrBadCredentials
	}
	if found.expires != nil && !a.clock.Now().Before(*found.expires) {
		return Identity{}, ErrExpired
	}
	return identityOf(found.key), nil
}

func identityOf(key store.Key) Identity {
	return Identity{
		Tenant: key.Tenant, User: key.Name, Member: key.Member, Role: key.Role, Kind: key.Kind, KeyID: key.ID, Endpoints: key.Endpoints,
	}
}

// find answers from the cache, or asks the store once for all who ask at the same time.
func (a *Authenticator) find(ctx context.Context, hash string) (cached, error) {
	if c, ok := a.cached(hash); ok {
		return c, nil
	}
	answer := a.flight.DoChan(hash, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer cancel()
		return a.lookup(ctx, hash)
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return cached{}, r.Err
		}
		return r.Val.(cached), nil
	case <-ctx.Done():
		return cached{}, ctx.Err()
	}
}

func (a *Authenticator) lookup(ctx context.Context, hash string) (cached, error) {
	// The second counts from before the store is asked: what it says then is never older than that.
	c := cached{until: a.clock.Now().Add(cacheFor)}
	key, err := a.keys.KeyByHash(ctx, hash)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return cached{}, err
	default:
		c.key = key
		c.expires, c.known = key.Opens(hash)
	}
	a.remember(hash, c)
	if c.known {
		a.touch(ctx, key)
	}
	return c, nil
}

// touch notes the use; a key opens also when that cannot be written.
func (a *Authenticator) touch(ctx context.Context, key store.Key) {
	now := a.clock.Now()
	if key.LastUsedAt != nil && now.Sub(*key.LastUsedAt) < touchEvery {
		return
	}
	if err := a.keys.TouchKey(ctx, key.ID, now); err != nil {
		a.log.Warn("last use of key not noted", "key_id", key.ID, "error", err)
	}
}

func (a *Authenticator) cached(hash string) (cached, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.cache[hash]
	return c, ok && a.clock.Now().Before(c.until)
}

func (a *Authenticator) remember(hash string, c cached) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cache) >= cacheMost {
		clear(a.cache) // entries live a second: nothing worth choosing from is lost
	}
	a.cache[hash] = c
}

// Token is the key or token of a request: of X-Nomad-Token, as the nomad CLI sends it, else of Authorization: Bearer.
// It is empty when there is neither.
func Token(r *http.Request) string {
	if t := strings.TrimSpace(r.Header.Get("X-Nomad-Token")); t != "" {
		return t
	}
	scheme, t, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(t)
}
