package auth_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// outage is a store that can be told to be away.
type outage struct {
	*store.Store
	mu   sync.Mutex
	fail error
}

func (o *outage) Revision(ctx context.Context, kind string) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return 0, o.fail
	}
	return o.Store.Revision(ctx, kind)
}

func (o *outage) set(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

// follower is a keyring that reads when the test says so.
func follower(t *testing.T, source auth.KeyChanges, c clock.Clock) *auth.Keyring {
	k := auth.NewKeyring(source, c, nil)
	k.Follow(t.Context())
	return k
}

// gone is a context in which nobody waits.
func gone() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestKeyring_FollowsEveryChangeOnEveryInstance(t *testing.T) {
	t.Parallel()
	for name, open := range storetest.Engines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clock.NewFake(noon)
			s := open(t, store.WithClock(c))
			first, second := follower(t, s, c), follower(t, s, c)
			token, key := newKey(t, auth.KindEndpoint)
			key.Member = "ann"
			opens := func(token string, want error) {
				t.Helper()
				for _, k := range []*auth.Keyring{first, second} {
					k.Follow(t.Context())
					// One who does not wait is told by the copy alone.
					if _, err := k.Identify(gone(), token); !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				}
			}
			opens(token, context.Canceled) // unknown: it would wait for the next reading
			if err := s.CreateKey(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			opens(token, nil)
			id, err := first.Identify(t.Context(), token)
			if err != nil || id.KeyID != key.ID || id.Member != "ann" || id.Tenant != "research" {
				t.Errorf("%+v, %v", id, err)
			}
			rotated, fresh := newKey(t, auth.KindEndpoint)
			if _, err := s.RotateKey(t.Context(), "", key.ID, fresh.Hash, fresh.Prefix, noon.Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			opens(token, nil)
			opens(rotated, nil)
			c.Advance(time.Hour)
			opens(token, auth.ErrExpired)
			opens(rotated, nil)
			if _, err := s.RetireKey(t.Context(), "", key.ID); err != nil {
				t.Fatal(err)
			}
			opens(token, context.Canceled)
			opens(rotated, nil)
			if err := s.DeleteKey(t.Context(), "", key.ID); err != nil {
				t.Fatal(err)
			}
			opens(rotated, context.Canceled)
		})
	}
}

// TestKeyring_StoreAway: known keys open as before, for as long as it takes; of unknown ones nothing can be said.
func TestKeyring_StoreAway(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(noon)
	source := &outage{Store: storetest.SQLite(t, store.WithClock(c))}
	token, key := newKey(t, auth.KindEndpoint)
	if err := source.CreateKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	k := auth.NewKeyring(source, c, nil)
	if k.Err() == nil {
		t.Error("ready before the first reading")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	await := func(token string) error {
		done := make(chan error, 1)
		go func() {
			_, err := k.Identify(t.Context(), token)
			done <- err
		}()
		for {
			select {
			case err := <-done:
				return err
			default:
				c.Advance(time.Millisecond)
			}
		}
	}
	if err := await(token); err != nil {
		t.Fatal(err)
	}
	away := errors.New("database away")
	source.set(away)
	unknown, fresh := newKey(t, auth.KindEndpoint)
	for range 60 {
		c.Advance(time.Second)
		if _, err := k.Identify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	if err := await(unknown); !errors.Is(err, away) {
		t.Errorf("an unknown key while the store is away: %v", err)
	}
	source.set(nil)
	if err := await(unknown); !errors.Is(err, auth.ErrBadCredentials) {
		t.Errorf("an unknown key: %v", err)
	}
	// A key that was just made opens at once: the request waits for the reading.
	if err := source.CreateKey(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	if err := await(unknown); err != nil {
		t.Errorf("a key that was just made: %v", err)
	}
}

func TestKeyring_BadTokens(t *testing.T) {
	t.Parallel()
	k := follower(t, storetest.SQLite(t), nil)
	good, _ := newKey(t, auth.KindEndpoint)
	for token, want := range map[string]error{"": auth.ErrNoCredentials, "hf-": auth.ErrBadCredentials, good[:len(good)-1]: auth.ErrBadCredentials, "hf-root-" + good[len(good)-43:]: auth.ErrBadCredentials} {
		if _, err := k.Identify(gone(), token); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestKeyring_NotesTheLastUse(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(noon)
	s := storetest.SQLite(t, store.WithClock(c))
	token, key := newKey(t, auth.KindEndpoint)
	if err := s.CreateKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	k := follower(t, s, c)
	if _, err := k.Identify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	c.Advance(10 * time.Second)
	k.Follow(t.Context())
	got, err := s.Key(t.Context(), "", key.ID)
	if err != nil || got.LastUsedAt == nil || !got.LastUsedAt.Equal(noon) {
		t.Errorf("last used %v, %v", got.LastUsedAt, err)
	}
}

func BenchmarkKeyring(b *testing.B) {
	s := storetest.SQLite(b)
	token, key, err := auth.NewKey(auth.KindEndpoint)
	if err != nil {
		b.Fatal(err)
	}
	key.Name, key.Tenant = "ann", "research"
	if err := s.CreateKey(b.Context(), key); err != nil {
		b.Fatal(err)
	}
	k := auth.NewKeyring(s, nil, nil)
	k.Follow(b.Context())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := k.Identify(b.Context(), token); err != nil {
				b.Error(err)
			}
		}
	})
}
