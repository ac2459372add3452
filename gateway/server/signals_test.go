package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/inference"
	"github.com/heteroflow/heteroflow/internal/store"
)

// tellings keeps what is told, and refuses the first.
type tellings struct {
	got    chan []store.Signal
	refuse bool
}

func (t *tellings) TellSignals(_ context.Context, s []store.Signal) error {
	t.got <- s
	if t.refuse {
		t.refuse = false
		return errors.New("the store is away")
	}
	return nil
}

// PW18: requests that run count, however long ago they came and though none has ended.
func TestPW18_SignalsCountWhatRuns(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	pool := balance.NewPool(now)
	pool.Set([]balance.Backend{{ID: "a", Addr: "a:1"}, {ID: "b", Addr: "b:1"}})
	services := func() []route.Service {
		return []route.Service{{Name: "llm", Pool: pool}, {Name: "idle", Pool: balance.NewPool(now)}}
	}
	reading := func(service string) inference.Reading {
		if service == "llm" {
			return inference.Reading{Waiting: new(3), KVUse: new(0.2504)}
		}
		return inference.Reading{}
	}
	to := &tellings{got: make(chan []store.Signal, 1), refuse: true}
	s := newSignals("gw", services, reading, to, now, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 20 {
		pool.Take(balance.Ask{Policy: balance.RoundRobin, Stream: true}).FirstByte()
	}
	s.observe(store.Usage{Service: "llm", Stream: true, PromptTokens: new(int64(100)), CompletionTokens: new(int64(20)), FirstByte: 300 * time.Millisecond})
	s.observe(store.Usage{Service: "llm", Stream: true, PromptTokens: new(int64(80)), FirstByte: 100 * time.Millisecond})
	s.observe(store.Usage{Service: "llm", FirstByte: time.Hour})
	next := func() []store.Signal {
		t.Helper()
		if err := now.AwaitWaiters(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		now.Advance(signalsEvery)
		return receive(t, to.got, "a telling")
	}
	busy := store.Signal{Service: "llm", Gateway: "gw", Backends: 2, InFlight: 20, TokensPerMinute: 1200, FirstToken: new(200 * time.Millisecond), EngineWaiting: new(3), KVPermille: new(250)}
	idle := store.Signal{Service: "idle", Gateway: "gw"}
	ignore := cmpopts.IgnoreFields(store.Signal{}, "ToldAt")
	if diff := cmp.Diff([]store.Signal{busy, idle}, next(), ignore); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for range 30 { // five minutes in which none ends
		busy.TokensPerMinute, busy.FirstToken = 0, nil
		if diff := cmp.Diff([]store.Signal{busy, idle}, next(), ignore); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	}
	cancel()
	<-done
}

func TestMetrics_OfBackends(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	pool := balance.NewPool(now)
	pool.Set([]balance.Backend{{ID: "a", Addr: "10.0.0.1:80"}, {ID: "b", Addr: "10.0.0.2:80"}})
	pool.Take(balance.Ask{Policy: balance.RoundRobin}).FirstByte()
	for range 3 {
		pool.Probed("b", false)
	}
	c := &backends{
		services: func() []route.Service { return []route.Service{{Name: "llm", Pool: pool}} },
		reading: func(string) inference.Reading {
			return inference.Reading{Running: new(1), Waiting: new(2), KVUse: new(0.5)}
		},
		stale: func() map[string]int { return map[string]int{"llm": 1} },
	}
	m := newMetrics()
	m.registry.MustRegister(c)
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`heteroflow_gateway_backend_up{backend="10.0.0.1:80",service="llm"} 1`,
		`heteroflow_gateway_backend_up{backend="10.0.0.2:80",service="llm"} 0`,
		`heteroflow_gateway_backend_breaker_state{backend="10.0.0.2:80",service="llm",state="closed"} 1`,
		`heteroflow_gateway_backend_requests_in_flight{backend="10.0.0.1:80",service="llm"} 1`,
		`heteroflow_gateway_backend_outstanding_tokens{backend="10.0.0.1:80",service="llm"} 0`,
		`heteroflow_gateway_backend_share_ratio{backend="10.0.0.1:80",service="llm"} 1`,
		`heteroflow_gateway_engine_running_requests{service="llm"} 1`,
		`heteroflow_gateway_engine_waiting_requests{service="llm"} 2`,
		`heteroflow_gateway_engine_cache_use_ratio{service="llm"} 0.5`,
		`heteroflow_gateway_session_keys{service="llm"} 0`,
		`heteroflow_gateway_stale_instances{service="llm"} 1`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("/metrics has no %s", line)
		}
	}
	if strings.Contains(w.Body.String(), "prompt_tokens_per_second{") {
		t.Error("a rate that is not known is told")
	}
}

// The names of OpenTelemetry's conventions, with what engines told and no guesses.
func TestMetrics_GenAI(t *testing.T) {
	t.Parallel()
	b := setUp(t, of{engines: []*mockengine.Engine{mockengine.New(t, mockengine.Behaviour{Tokens: 5}, mockengine.Behaviour{Tokens: 5}, mockengine.Behaviour{NoUsage: true, Tokens: 5})}})
	for _, body := range []string{streamed, whole, whole} {
		if a := b.post(chat, body); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		b.row()
	}
	a := b.call(http.MethodGet, "/metrics", "", nil)
	for _, line := range []string{
		`gen_ai_server_request_duration_seconds_count{error_type="",gen_ai_operation_name="chat",gen_ai_request_model="m"} 3`,
		`gen_ai_server_time_to_first_token_seconds_count{gen_ai_operation_name="chat",gen_ai_request_model="m"} 1`,
		`gen_ai_client_token_usage_sum{gen_ai_operation_name="chat",gen_ai_request_model="m",gen_ai_token_type="output"} 10`,
		`gen_ai_client_token_usage_count{gen_ai_operation_name="chat",gen_ai_request_model="m",gen_ai_token_type="input"} 2`,
	} {
		if !strings.Contains(a.body, line) {
			t.Errorf("/metrics has no %s", line)
		}
	}
}
