package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// somebody is the holder of every key.
type somebody struct{}

func (somebody) Identify(context.Context, string) (auth.Identity, error) {
	return auth.Identity{Tenant: route.DefaultTenant, User: "laptop", Member: "ann", Role: auth.RoleEndpoint, Kind: auth.KindEndpoint, KeyID: "k1"}, nil
}

// secret is the key that clients send; nothing may repeat it.
const secret = "hf-endpoint-0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

// limited is a gateway with limits, and the limiter and store behind it.
func limited(t *testing.T, scope string, caps store.Caps, o of) (*bench, *store.Store) {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	subject := map[string]string{store.ScopeKey: "k1", store.ScopeMember: "ann", store.ScopeTenant: route.DefaultTenant, store.ScopeEndpoint: "e1"}[scope]
	if scope == store.ScopeEndpoint {
		o.rows = []store.Endpoint{{ID: "e1", Tenant: route.DefaultTenant, Model: "m", Service: "llm", Policy: store.LeastTokens}}
	}
	if _, err := s.SetLimit(t.Context(), store.Limit{Tenant: route.DefaultTenant, Scope: scope, Subject: subject, Caps: caps}); err != nil {
		t.Fatal(err)
	}
	l := limit.New(s, "bench", clock.System(), hclog.NewNullLogger(), limit.NewMetrics(prometheus.NewRegistry()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually2(t, "limits are read", func() bool { return l.Err() == nil })
	o.keys, o.limits = somebody{}, l
	return setUp(t, o), s
}

func n(v int64) *int64 { return &v }

func (b *bench) ask(path, body string, header ...string) got {
	return b.post(path, body, append([]string{"Authorization", "Bearer " + secret}, header...)...)
}

// TestPW13_EveryPathIsWithinTheBudget of key, member, tenant and endpoint: no engine is asked.
func TestPW13_EveryPathIsWithinTheBudget(t *testing.T) {
	t.Parallel()
	for _, scope := range store.Scopes() {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			e := mockengine.New(t)
			b, _ := limited(t, scope, store.Caps{TokensPerMonth: n(0)}, of{engines: []*mockengine.Engine{e}, tags: []string{"heteroflow.path=/generate"}})
			for _, path := range append(relay.Paths(), "/generate") {
				kind, body := "application/json", []byte(`{"model":"m","input":"x","messages":[{"role":"user","content":"hi"}]}`)
				if operation, _ := relay.Find(path); operation.Form {
					var form bytes.Buffer
					w := multipart.NewWriter(&form)
					if err := w.WriteField("model", "m"); err != nil {
						t.Fatal(err)
					}
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					kind, body = w.FormDataContentType(), form.Bytes()
				}
				g := b.call(http.MethodPost, path, kind, bytes.NewReader(body), "Authorization", "Bearer "+secret)
				if g.status != http.StatusTooManyRequests || strings.Contains(g.body, secret[len(secret)-8:]) || g.header.Get("X-Should-Retry") != "false" {
					t.Errorf("%s: %d %s", path, g.status, g.body)
				}
				var said struct {
					Type  string
					Error struct{ Message, Type, Code string }
				}
				if err := json.Unmarshal([]byte(g.body), &said); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				if strings.HasPrefix(path, "/v1/messages") {
					if said.Type != "error" || said.Error.Type != "rate_limit_error" {
						t.Errorf("%s: %s", path, g.body)
					}
				} else if said.Error.Code != "insufficient_quota" || said.Error.Type != "insufficient_quota" {
					t.Errorf("%s: %s", path, g.body)
				}
				if row := b.row(); row.Status != http.StatusTooManyRequests || row.End != store.EndRefused || row.KeyID != "k1" || tokens(row.PromptTokens) != 0 {
					t.Errorf("%s: %+v", path, row)
				}
			}
			select {
			case <-e.Arrived():
				t.Error("an engine was asked")
			default:
			}
		})
	}
}

// TestP65_HeadersOnEveryAnswer and on refusals.
func TestP65_HeadersOnEveryAnswer(t *testing.T) {
	t.Parallel()
	// The engine is behind a gateway of its own: what that leaves is not what this one does.
	e := mockengine.New(t, behaviour{Tokens: 3, Header: http.Header{"X-Ratelimit-Limit-Requests": {"999"}, "Anthropic-Ratelimit-Requests-Limit": {"999"}}})
	b, _ := limited(t, store.ScopeKey, store.Caps{RequestsPerMinute: n(3), TokensPerMinute: n(10_000)}, of{engines: []*mockengine.Engine{e}})
	for i, path := range []string{chat, "/v1/messages", "/v1/completions"} {
		g := b.ask(path, strings.Replace(streamed, `"stream"`, `"max_tokens":50,"stream"`, 1))
		names := []string{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"}
		if path == "/v1/messages" {
			names = []string{"Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset", "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"}
		}
		if g.status != http.StatusOK || g.header.Get(names[0]) != "3" || g.header.Get(names[1]) != strconv.Itoa(2-i) || g.header.Get(names[3]) != "10000" {
			t.Errorf("%s: %d %v", path, g.status, g.header)
		}
		for _, name := range names {
			if g.header.Get(name) == "" {
				t.Errorf("%s: no %s", path, name)
			}
		}
		b.row()
	}
	g := b.ask(chat, whole)
	seconds, err := strconv.Atoi(g.header.Get("Retry-After"))
	if g.status != http.StatusTooManyRequests || err != nil || seconds < 1 || seconds > 62 || g.header.Get("X-Ratelimit-Remaining-Requests") != "0" ||
		!strings.Contains(g.body, `"code":"rate_limit_exceeded"`) || !strings.Contains(g.body, "this API key has a limit on requests per min (RPM): Limit 3, Used 3, Requested 1") {
		t.Errorf("%d %v %s", g.status, g.header, g.body)
	}
	b.row()
}

// TestPW05_P64_TokensAreCharged, streamed and not, whatever became of the request.
func TestPW05_P64_TokensAreCharged(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t, behaviour{Tokens: 7})
	b, s := limited(t, store.ScopeMember, store.Caps{TokensPerMonth: n(1_000)}, of{engines: []*mockengine.Engine{e}})
	total, refused := int64(0), false
	for i := range 400 {
		g := b.ask(chat, strings.Replace([]string{whole, streamed}[i%2], `"model"`, `"max_tokens":8,"model"`, 1))
		row := b.row()
		total += tokens(row.PromptTokens) + tokens(row.CompletionTokens)
		if refused = g.status == http.StatusTooManyRequests; refused {
			break
		}
	}
	if !refused || total > 1_000 || total < 900 {
		t.Errorf("refused %v after %d tokens", refused, total)
	}
	spent := func() int64 {
		list, _, err := s.ListLimits(t.Context(), "", store.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return list[0].Spent.Tokens
	}
	eventually2(t, "the store has what was metered", func() bool { return spent() == total })
}

// TestReservations_EndWithTheirRequest, however that ends.
func TestReservations_EndWithTheirRequest(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]behaviour{
		"answered": {Tokens: 2}, "an error first": {ErrorFirst: true}, "cut": {Tokens: 9, CutAfter: 3}, "stalls, and the client leaves": {StallAfter: 1}, "500": {Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := mockengine.New(t, script)
			b, _ := limited(t, store.ScopeTenant, store.Caps{Concurrency: n(1)}, of{engines: []*mockengine.Engine{e}})
			for range 3 {
				if script.StallAfter > 0 {
					c, err := net.Dial("tcp", b.addr)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: gateway\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chat, secret, len(streamed), streamed)
					receive(t, e.Arrived(), "the call")
					c.Close()
				} else if g := b.ask(chat, streamed); g.status == http.StatusTooManyRequests {
					t.Fatalf("%s", g.body)
				}
				if row := b.row(); row.Status == http.StatusTooManyRequests {
					t.Fatalf("%+v", row)
				}
			}
		})
	}
}
