package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/siminference"
)

// registry answers Nomad's service API with one service whose instances are the given servers.
func registry(t *testing.T, model string, backends ...*httptest.Server) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r *http.Request, body any) {
		if r.URL.Query().Get("index") != "" && r.URL.Query().Get("index") != "0" {
			select { // nothing ever changes
			case <-r.Context().Done():
				return
			case <-time.After(time.Second):
			}
		}
		w.Header().Set("X-Nomad-Index", "7")
		json.NewEncoder(w).Encode(body) //nolint:errcheck // a test server
	}
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, []any{map[string]any{"Namespace": "default", "Services": []any{map[string]any{"ServiceName": "llm", "Tags": []string{"heteroflow.model=" + model}}}}})
	})
	mux.HandleFunc("GET /v1/service/llm", func(w http.ResponseWriter, r *http.Request) {
		list := []any{}
		for i, b := range backends {
			host, port, err := net.SplitHostPort(strings.TrimPrefix(b.URL, "http://"))
			if err != nil {
				t.Error(err)
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				t.Error(err)
			}
			list = append(list, map[string]any{"ID": fmt.Sprint("i", i), "Address": host, "Port": n})
		}
		answer(w, r, list)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

type fixture struct {
	url   string
	store *store.Store
	key   string
}

func start(t *testing.T, anonymous bool) fixture {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	url := "sqlite://" + filepath.Join(t.TempDir(), "test.db")
	db, err := store.Open(ctx, url, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	engine, err := siminference.New(siminference.Config{Model: "sim-7b"})
	if err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(engine.Handler())
	listening := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			Addr: "127.0.0.1:0", DatabaseURL: url, NomadAddr: registry(t, "sim-7b", backend), Anonymous: anonymous, MaxBody: 1 << 20,
			Logger: hclog.NewNullLogger(), Listening: func(addr string) { listening <- addr },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("end of the gateway: %v", err)
		}
		backend.Close()
		db.Close()
	})
	f := fixture{store: db, url: "http://" + <-listening}
	f.key = f.newKey(t, "endpoint")
	other := f.newKey(t, "endpoint") // so that these calls are not in the sums of f.key
	eventually(t, "the model is served", func() bool {
		status, _ := f.do(t, http.MethodPost, "/v1/completions", other, `{"model":"sim-7b","prompt":"a","max_tokens":1}`)
		return status == http.StatusOK
	})
	return f
}

func (f fixture) newKey(t *testing.T, kind string) string {
	t.Helper()
	plain, key, err := auth.NewKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	key.Name = kind
	if kind != "admin" && kind != "node" {
		key.Tenant = "default"
	}
	if err := f.store.CreateKey(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	return plain
}

func (f fixture) do(t *testing.T, method, path, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func TestGateway_ServesAndMeters(t *testing.T) {
	t.Parallel()
	f := start(t, false)
	for _, tc := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"sim-7b","max_tokens":4,"messages":[{"role":"user","content":"one two"}]}`},
		{"/v1/chat/completions", `{"model":"sim-7b","max_tokens":4,"stream":true,"messages":[{"role":"user","content":"one two"}]}`},
		{"/v1/completions", `{"model":"sim-7b","max_tokens":4,"prompt":"one two"}`},
		{"/v1/embeddings", `{"model":"sim-7b","input":"one two"}`},
	} {
		if status, body := f.do(t, http.MethodPost, tc.path, f.key, tc.body); status != http.StatusOK {
			t.Errorf("%s: %d %s", tc.path, status, body)
		}
	}
	var sum store.UsageSum
	eventually(t, "four requests are metered", func() bool {
		sums, err := f.store.SumUsage(context.Background(), store.UsageQuery{Tenant: "default", From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour), GroupBy: "key"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sums {
			if s.Requests == 4 {
				sum = s
			}
		}
		return sum.Requests == 4
	})
	if sum.PromptTokens != 8 || sum.CompletionTokens != 12 {
		t.Errorf("usage: %+v", sum)
	}
	if status, body := f.do(t, http.MethodGet, "/ready", "", ""); status != http.StatusOK {
		t.Errorf("ready: %d %s", status, body)
	}
	if status, body := f.do(t, http.MethodGet, "/metrics", f.key, ""); status != http.StatusOK || !strings.Contains(body, `heteroflow_gateway_tokens_total{kind="completion",model="sim-7b"} 13`) {
		t.Errorf("metrics: %d %s", status, body)
	}
}

func TestGateway_Refusals(t *testing.T) {
	t.Parallel()
	f := start(t, false)
	const chat = "/v1/chat/completions"
	const good = `{"model":"sim-7b","messages":[]}`
	for name, tc := range map[string]struct {
		path, key, body, want string
		status                int
	}{
		"no key":           {chat, "", good, "didn't provide an API key", http.StatusUnauthorized},
		"an unknown key":   {chat, "hf-endpoint-" + strings.Repeat("x", 43), good, "****xxxx", http.StatusUnauthorized},
		"an admin key":     {chat, f.newKey(t, "admin"), good, "endpoint key", http.StatusForbidden},
		"a node key":       {chat, f.newKey(t, "node"), good, "endpoint key", http.StatusForbidden},
		"an unknown model": {chat, f.key, `{"model":"gpt-4"}`, "does not exist", http.StatusNotFound},
		"no model":         {chat, f.key, `{}`, "model parameter", http.StatusBadRequest},
		"cut short":        {chat, f.key, `{"model":`, "it ends in the middle", http.StatusBadRequest},
		"too large":        {chat, f.key, `{"model":"` + strings.Repeat("x", 2<<20) + `"}`, "limit of 1048576 bytes", http.StatusRequestEntityTooLarge},
		"an unknown route": {"/v1/rerankings", f.key, good, "Unknown request URL", http.StatusNotFound},
	} {
		status, body := f.do(t, http.MethodPost, tc.path, tc.key, tc.body)
		var shape struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(body), &shape); err != nil || shape.Error.Type == "" {
			t.Errorf("%s: not OpenAI's error shape: %s", name, body)
		}
		if status != tc.status || !strings.Contains(shape.Error.Message, tc.want) {
			t.Errorf("%s: want %d and %q, got %d: %s", name, tc.status, tc.want, status, body)
		}
		if tc.key != "" && strings.Contains(body, tc.key) {
			t.Errorf("%s: the answer repeats the key", name)
		}
	}
}

func TestGateway_WrongMethod(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	if status, body := f.do(t, http.MethodGet, "/v1/chat/completions", "", ""); status != http.StatusMethodNotAllowed || !strings.Contains(body, "use POST") {
		t.Errorf("got %d %s", status, body)
	}
}

func TestGateway_Anonymous(t *testing.T) {
	t.Parallel()
	f := start(t, true)
	for _, key := range []string{"", "sk-anything"} {
		if status, body := f.do(t, http.MethodPost, "/v1/completions", key, `{"model":"sim-7b","prompt":"a","max_tokens":1}`); status != http.StatusOK {
			t.Errorf("key %q: %d %s", key, status, body)
		}
	}
	if status, _ := f.do(t, http.MethodGet, "/v1/models", "hf-endpoint-"+strings.Repeat("y", 43), ""); status != http.StatusUnauthorized {
		t.Errorf("a key that is ours but wrong must be refused, got %d", status)
	}
}
