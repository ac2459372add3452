//go:build unix

package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
	"github.com/heteroflow/heteroflow/siminference"
)

// Two gateways on one database: what one has learned of a session the other goes by, and so does one that starts later.
func TestRun_GatewaysAreOne(t *testing.T) {
	t.Parallel()
	url := postgres.SchemaURL(t)
	var engines []*httptest.Server
	for range 3 {
		e, err := siminference.New(siminference.Config{Model: "sim-7b"})
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(e.Handler())
		t.Cleanup(s.Close)
		engines = append(engines, s)
	}
	nomad := registry(t, "sim-7b", engines...)
	run := func() fixture {
		ctx, cancel := context.WithCancel(context.Background())
		listening, done := make(chan string, 1), make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{
				Addr: "127.0.0.1:0", DatabaseURL: url, NomadAddr: nomad, Anonymous: true,
				Logger: hclog.NewNullLogger(), Listening: func(addr string) { listening <- addr },
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("end of the gateway: %v", err)
			}
		})
		return fixture{url: "http://" + receive(t, listening, "the address")}
	}
	ask := func(f fixture, session string) (route string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(`{"model":"sim-7b","prompt":"a","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Session-Id", session)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return resp.Header.Get("X-Session-Route")
	}
	first, second := run(), run()
	eventually(t, "both serve", func() bool { return ask(first, "other") == "session_id" && ask(second, "another") == "session_id" })
	if route := ask(first, "s"); route != "least_tokens" {
		t.Fatalf("a new session goes by %s", route)
	}
	db, err := store.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	heads := func() []store.GatewayHead {
		t.Helper()
		list, err := db.Gateways(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	var beats []store.GatewayHead
	eventually(t, "both have told of themselves", func() bool { beats = heads(); return len(beats) == 2 })
	eventually(t, "both have told, and heard after it", func() bool {
		for i, h := range heads() {
			if h.Beat < beats[i].Beat+2 {
				return false
			}
		}
		return true
	})
	if route := ask(second, "s"); route != "session_id" {
		t.Errorf("the other gateway goes by %s", route)
	}
	third := run()
	eventually(t, "one that starts later has heard the others", func() bool {
		list := heads() // ordered by id, which is by time
		return len(list) == 3 && list[2].Beat >= 2
	})
	if route := ask(third, "s"); route != "session_id" {
		t.Errorf("one that starts later goes by %s", route)
	}
}
