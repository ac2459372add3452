//go:build unix

package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
	"github.com/heteroflow/heteroflow/siminference"
)

// gateways are several instances on one PostgreSQL, with one engine.
func gateways(t *testing.T, count int, url string) []fixture {
	t.Helper()
	db, err := store.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	engine, err := siminference.New(siminference.Config{Model: "sim-7b"})
	if err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(engine.Handler())
	t.Cleanup(backend.Close)
	nomad := registry(t, "sim-7b", backend)
	var all []fixture
	for range count {
		ctx, cancel := context.WithCancel(context.Background())
		listening, done := make(chan string, 1), make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{
				Addr: "127.0.0.1:0", DatabaseURL: url, NomadAddr: nomad, Logger: hclog.NewNullLogger(),
				Listening: func(addr string) { listening <- addr },
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("end of the gateway: %v", err)
			}
		})
		all = append(all, fixture{url: "http://" + receive(t, listening, "the address"), store: db})
	}
	other := all[0].newKey(t, auth.KindEndpoint)
	for _, f := range all {
		eventually(t, "the model is served", func() bool { return f.complete(t, other) == http.StatusOK })
	}
	return all
}

const completion = `{"model":"sim-7b","prompt":"a b c","max_tokens":2}`

func (f fixture) complete(t *testing.T, key string) int {
	t.Helper()
	status, body := f.do(t, http.MethodPost, "/v1/completions", key, completion)
	if strings.Contains(body, key[len(key)-8:]) {
		t.Errorf("the answer repeats the key: %s", body)
	}
	return status
}

// limited completes, and tells whether a limit of requests was known.
func (f fixture) limited(t *testing.T, key string) (status int, known bool) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(completion))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("X-Ratelimit-Limit-Requests") != ""
}

// idOf is the id of the key.
func (f fixture) idOf(t *testing.T, key string) string {
	t.Helper()
	k, err := f.store.KeyByHash(t.Context(), auth.Hash(key))
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}

// TestP69_P62_EveryInstanceKeepsToKeysAndLimits: a key opens everywhere as soon as it is made and nowhere once it is
// deleted, and its limit is one over all instances.
func TestP69_P62_EveryInstanceKeepsToKeysAndLimits(t *testing.T) {
	t.Parallel()
	all := gateways(t, 3, postgres.SchemaURL(t))
	key := all[0].newKey(t, auth.KindEndpoint)
	for _, f := range all {
		if status := f.complete(t, key); status != http.StatusOK {
			t.Fatalf("a key that was just made is answered with %d", status)
		}
	}
	limited := all[0].newKey(t, auth.KindEndpoint)
	most := int64(12)
	if _, err := all[0].store.SetLimit(t.Context(), store.Limit{Tenant: "default", Scope: store.ScopeKey, Subject: all[0].idOf(t, limited), Caps: store.Caps{RequestsPerMinute: &most}}); err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		eventually(t, "the limit is known", func() bool { status, known := f.limited(t, limited); return known || status != http.StatusOK })
	}
	eventually(t, "every instance refuses", func() bool {
		for _, f := range all {
			if f.complete(t, limited) != http.StatusTooManyRequests {
				return false
			}
		}
		return true
	})
	if err := all[0].store.DeleteKey(t.Context(), "", all[0].idOf(t, key)); err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		eventually(t, "the deleted key is refused", func() bool { return f.complete(t, key) == http.StatusUnauthorized })
	}
}

// TestDatabaseAway_KnownKeysAndLimitsGoOn, only keys that nobody knows cannot be checked, and nothing that was used is
// forgotten. In the long form it is away for a minute.
func TestDatabaseAway_KnownKeysAndLimitsGoOn(t *testing.T) {
	t.Parallel()
	cluster, err := postgres.Start(t.Context())
	if errors.Is(err, postgres.ErrNotInstalled) {
		t.Skipf("SKIPPED, PostgreSQL is not tested: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	f := gateways(t, 1, cluster.URL())[0]
	key, unknown := f.newKey(t, auth.KindEndpoint), "hf-endpoint-"+strings.Repeat("A", 43)
	id, budget, most := f.idOf(t, key), int64(1_000_000_000), int64(1_000_000)
	if _, err := f.store.SetLimit(t.Context(), store.Limit{Tenant: "default", Scope: store.ScopeKey, Subject: id, Caps: store.Caps{TokensPerMonth: &budget, RequestsPerMinute: &most}}); err != nil {
		t.Fatal(err)
	}
	spent := func() int64 {
		list, _, err := f.store.ListLimits(t.Context(), "", store.Page{})
		if err != nil {
			return -1
		}
		return list[0].Spent.Tokens
	}
	requests, counted := int64(0), int64(0) // counted: once the limit was known
	send := func() {
		t.Helper()
		requests++
		status, known := f.limited(t, key)
		if known {
			counted++
		}
		if status != http.StatusOK || counted > 0 && !known {
			t.Fatalf("request %d: %d, limit known: %v", requests, status, known)
		}
	}
	eventually(t, "what is used is told", func() bool { send(); return spent() > 0 })
	if status := f.complete(t, unknown); status != http.StatusUnauthorized {
		t.Errorf("an unknown key: %d", status)
	}
	if err := cluster.Halt(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		send()
	}
	eventually(t, "an unknown key cannot be checked", func() bool { return f.complete(t, unknown) == http.StatusServiceUnavailable })
	for range 50 {
		send()
	}
	if long() {
		for back := time.Now().Add(time.Minute); time.Now().Before(back); {
			send()
		}
	}
	if err := cluster.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an unknown key is refused again", func() bool { return f.complete(t, unknown) == http.StatusUnauthorized })
	sum := func() (requests, tokens int64) {
		sums, err := f.store.SumUsage(t.Context(), store.UsageQuery{GroupBy: "key"})
		if err != nil {
			return -1, -1
		}
		for _, s := range sums {
			if s.Name == id {
				return s.Requests, s.PromptTokens + s.CompletionTokens
			}
		}
		return 0, 0
	}
	eventually(t, "every request has its row", func() bool { n, _ := sum(); return n == requests })
	_, tokens := sum()
	eventually(t, "the budget has what was metered", func() bool { return spent() == counted*tokens/requests })
}
