package auth_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

// fakeKeys keeps keys in memory, counts the look-ups and can be told to fail.
type fakeKeys struct {
	mu      sync.Mutex
	keys    map[string]store.Key // by hash
	fail    error
	touched map[string]time.Time
	gate    chan struct{} // look-ups wait until it is closed; nil does not wait
	entered chan struct{} // told of each look-up that waits
	asked   atomic.Int64
}

func newFakeKeys(keys ...store.Key) *fakeKeys {
	f := &fakeKeys{keys: map[string]store.Key{}, touched: map[string]time.Time{}}
	for _, k := range keys {
		f.keys[k.Hash] = k
	}
	return f
}

func (f *fakeKeys) KeyByHash(_ context.Context, hash string) (store.Key, error) {
	f.asked.Add(1)
	if f.gate != nil {
		f.entered <- struct{}{}
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return store.Key{}, f.fail
	}
	k, ok := f.keys[hash]
	if !ok {
		return store.Key{}, store.ErrNotFound
	}
	return k, nil
}

func (f *fakeKeys) TouchKey(_ context.Context, id string, at time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touched[id] = at
	return f.fail
}

func (f *fakeKeys) set(change func(f *fakeKeys)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func newKey(t *testing.T, kind string) (string, store.Key) {
	t.Helper()
	plaintext, key, err := auth.NewKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	key.Name, key.Tenant = "ann", "research"
	return plaintext, key
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^hf-(admin|tenant|node|endpoint)-[A-Za-z0-9_-]{43}$`)
	roles := map[string]string{"admin": "admin", "tenant": "member", "node": "node", "endpoint": "endpoint"}
	seen := map[string]bool{}
	for kind, role := range roles {
		plaintext, key := newKey(t, kind)
		if !shape.MatchString(plaintext) || seen[plaintext] {
			t.Errorf("%s key has the wrong shape or came twice", kind)
		}
		seen[plaintext] = true
		if key.Kind != kind || key.Role != role || key.Hash != auth.Hash(plaintext) || len(key.Hash) != 64 {
			t.Errorf("%+v", key)
		}
		if !strings.HasPrefix(plaintext, key.Prefix) || len(plaintext)-len(key.Prefix) < 36 {
			t.Errorf("the prefix %q gives too much away", key.Prefix)
		}
		if !auth.IsKey(plaintext) {
			t.Errorf("a %s key is not taken for one", kind)
		}
	}
	if _, _, err := auth.NewKey("root"); err == nil || !strings.Contains(err.Error(), `write "admin"`) {
		t.Errorf("an unknown kind: %v", err)
	}
	if auth.IsKey("f3b1e3c2-8a57-4d7a-9f3e-0d2f6b1a2c3d") {
		t.Error("a Nomad token is taken for one of our keys")
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	good, goodKey := newKey(t, auth.KindEndpoint)
	goodKey.Endpoints = []string{"e1"}
	old, oldKey := newKey(t, auth.KindTenant)
	expiry := c.Now()
	oldKey.ExpiresAt = &expiry
	wrongKind, wrongKey := newKey(t, auth.KindNode)
	wrongKey.Kind = auth.KindAdmin
	unknown, _ := newKey(t, auth.KindAdmin)
	a := auth.NewAuthenticator(newFakeKeys(goodKey, oldKey, wrongKey), c, nil)
	for name, tc := range map[string]struct {
		token string
		want  auth.Identity
		err   error
	}{
		"none":              {err: auth.ErrNoCredentials},
		"good":              {token: good, want: auth.Identity{Tenant: "research", User: "ann", Role: "endpoint", Kind: "endpoint", KeyID: goodKey.ID, Endpoints: []string{"e1"}}},
		"expired":           {token: old, err: auth.ErrExpired},
		"unknown":           {token: unknown, err: auth.ErrBadCredentials},
		"of another kind":   {token: wrongKind, err: auth.ErrBadCredentials},
		"cut short":         {token: good[:len(good)-1], err: auth.ErrBadCredentials},
		"longer":            {token: good + "a", err: auth.ErrBadCredentials},
		"not base64":        {token: good[:len(good)-1] + "!", err: auth.ErrBadCredentials},
		"unknown kind":      {token: "hf-root-" + good[len(good)-43:], err: auth.ErrBadCredentials},
		"a Nomad token":     {token: "f3b1e3c2-8a57-4d7a-9f3e-0d2f6b1a2c3d", err: auth.ErrBadCredentials},
		"only the prefix":   {token: "hf-", err: auth.ErrBadCredentials},
		"its stored prefix": {token: goodKey.Prefix, err: auth.ErrBadCredentials},
		"its stored hash":   {token: goodKey.Hash, err: auth.ErrBadCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := a.Identify(t.Context(), tc.token)
			if diff := cmp.Diff(tc.err, err, cmpopts.EquateErrors()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if err != nil && tc.token != "" && strings.Contains(err.Error(), tc.token) {
				t.Error("the error repeats the key")
			}
		})
	}
}

func TestIdentify_RemembersForASecondAtMost(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	token, key := newKey(t, auth.KindTenant)
	keys := newFakeKeys(key)
	a := auth.NewAuthenticator(keys, c, nil)
	identify := func(want error) {
		t.Helper()
		if _, err := a.Identify(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	for range 5 {
		identify(nil)
	}
	if n := keys.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	// Deleted: it opens within the second, not after it.
	keys.set(func(f *fakeKeys) { delete(f.keys, key.Hash) })
	c.Advance(999 * time.Millisecond)
	identify(nil)
	c.Advance(time.Millisecond)
	identify(auth.ErrBadCredentials)
	// The store is away: that is not the key's fault, and is not remembered.
	broken := errors.New("database away")
	c.Advance(time.Second)
	keys.set(func(f *fakeKeys) { f.fail = broken })
	identify(broken)
	keys.set(func(f *fakeKeys) { f.fail = nil; f.keys[key.Hash] = key })
	identify(nil)
	// A key expires on the moment, remembered or not.
	expiry := c.Now().Add(1500 * time.Millisecond)
	key.ExpiresAt = &expiry
	keys.set(func(f *fakeKeys) { f.keys[key.Hash] = key })
	c.Advance(time.Second)
	identify(nil)
	c.Advance(500 * time.Millisecond)
	identify(auth.ErrExpired)
}

func TestIdentify_NotesTheLastUseOnceAMinute(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	token, key := newKey(t, auth.KindTenant)
	used := c.Now().Add(-59 * time.Second)
	key.LastUsedAt = &used
	keys := newFakeKeys(key)
	a := auth.NewAuthenticator(keys, c, nil)
	for _, want := range []int{0, 1} {
		if _, err := a.Identify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if len(keys.touched) != want {
			t.Errorf("touched %v, want %d", keys.touched, want)
		}
		c.Advance(time.Second)
	}
}

func TestIdentify_AsksOnceForManyAtTheSameTime(t *testing.T) {
	t.Parallel()
	token, key := newKey(t, auth.KindTenant)
	keys := newFakeKeys(key)
	keys.gate, keys.entered = make(chan struct{}), make(chan struct{}, 32)
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	a := auth.NewAuthenticator(keys, c, nil)
	// One who gives up does not take the answer from the others.
	impatient, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := a.Identify(impatient, token); !errors.Is(err, context.Canceled) {
			t.Errorf("the impatient one got %v", err)
		}
		close(keys.gate)
	})
	<-keys.entered
	for range 20 {
		wg.Go(func() {
			if _, err := a.Identify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	giveUp()
	wg.Wait()
	if n := keys.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestBootstrap_MakesOneKeyWhoeverStartsFirst(t *testing.T) {
	t.Parallel()
	for name, open := range storetest.Engines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			keys := make(chan string, 8)
			var wg sync.WaitGroup
			for range cap(keys) {
				wg.Go(func() {
					plaintext, created, err := auth.Bootstrap(t.Context(), s)
					if err != nil || created != (plaintext != "") {
						t.Errorf("created %v: %v", created, err)
					}
					if created {
						keys <- plaintext
					}
				})
			}
			wg.Wait()
			if len(keys) != 1 {
				t.Fatalf("%d first keys", len(keys))
			}
			id, err := auth.NewAuthenticator(s, nil, nil).Identify(t.Context(), <-keys)
			if err != nil || !id.Can(auth.Write, auth.Settings) {
				t.Errorf("the first key is %+v: %v", id, err)
			}
			if err := s.DeleteKey(t.Context(), "", id.KeyID); err != nil {
				t.Fatal(err)
			}
			if _, created, err := auth.Bootstrap(t.Context(), s); created || err != nil {
				t.Errorf("a deleted first key came back: %v, %v", created, err)
			}
		})
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers map[string]string
		want    string
	}{
		"none":              {},
		"bearer":            {headers: map[string]string{"Authorization": "Bearer hf-1"}, want: "hf-1"},
		"bearer, any case":  {headers: map[string]string{"Authorization": "bearer  hf-1 "}, want: "hf-1"},
		"basic":             {headers: map[string]string{"Authorization": "Basic aGY="}},
		"nomad":             {headers: map[string]string{"X-Nomad-Token": "hf-2"}, want: "hf-2"},
		"both":              {headers: map[string]string{"X-Nomad-Token": "hf-2", "Authorization": "Bearer hf-1"}, want: "hf-2"},
		"empty nomad token": {headers: map[string]string{"X-Nomad-Token": " ", "Authorization": "Bearer hf-1"}, want: "hf-1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		for k, v := range c.headers {
			r.Header.Set(k, v)
		}
		if got := auth.Token(r); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
