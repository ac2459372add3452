package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// short are time-outs of faults that are silent; each test waits for what follows, not for a time. They are long enough
// for an engine that is well on a machine with much else to do.
var short = relay.Rules{Headers: 2 * time.Second, Whole: 2 * time.Second, FirstToken: 2 * time.Second, Idle: 2 * time.Second}

func well(g got, tokens int) string {
	switch {
	case g.err != nil || g.status != http.StatusOK:
		return fmt.Sprintf("got %d, %v: %.300s", g.status, g.err, g.body)
	case strings.Count(g.body, "word ") != tokens:
		return fmt.Sprintf("%d tokens, want %d", strings.Count(g.body, "word "), tokens)
	case strings.Contains(g.body, `"error"`):
		return "an error is among it: " + g.body
	}
	return ""
}

func tried(list ...*mockengine.Engine) string {
	var counts []string
	for _, e := range list {
		counts = append(counts, fmt.Sprint(len(e.Ledger())))
	}
	return strings.Join(counts, " ")
}

// TestCatalogue is the public catalogue of failures, S01 to S16, each with what has to come of it.
// Source of the scenarios: the methodology of failoverbench 0.1.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	type b = mockengine.Behaviour
	retryAfter := http.Header{"Retry-After": {"2"}}
	limited := b{Status: http.StatusTooManyRequests, Header: retryAfter, Body: `{"error":{"message":"slow down","type":"rate_limit_error"}}`}
	down := b{Status: http.StatusServiceUnavailable, Body: `{"error":{"message":"loading"}}`}
	const contextLength = `{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}`
	const filtered = `{"error":{"message":"no","type":"invalid_request_error","code":"content_policy_violation"}}`
	// broken is the answer of a stream that ended in the middle after so many tokens.
	broken := func(t *testing.T, g got, tokens int, code string) {
		t.Helper()
		if g.err == nil || g.status != http.StatusOK || strings.Count(g.body, "word ") != tokens || !strings.Contains(g.body, code) || strings.Contains(g.body, "[DONE]") {
			t.Errorf("got %d, %v: %d tokens: ...%s", g.status, g.err, strings.Count(g.body, "word "), g.body[max(0, len(g.body)-300):])
		}
	}
	for name, s := range map[string]struct {
		engines [][]b
		body    string
		rules   relay.Rules
		check   func(t *testing.T, g got, row store.Usage, engines []*mockengine.Engine, bench *bench)
	}{
		"S01 429 with Retry-After, once": {engines: [][]b{{limited, {}}, {{}}}, body: whole, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || tried(e...) != "1 1" || row.Backend != "e1" || row.Tries != 2 {
				t.Errorf("%s; tried %s, %+v", why, tried(e...), row)
			}
		}},
		"S02 429 persistent": {engines: [][]b{{limited}}, body: whole, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if g.status != http.StatusTooManyRequests || g.header.Get("Retry-After") != "2" || g.body != limited.Body || tried(e...) != "1" || row.End != store.EndUpstreamError || tokens(row.PromptTokens) != 0 {
				t.Errorf("got %d %v %s; tried %s; %+v", g.status, g.header, g.body, tried(e...), row)
			}
		}},
		"S03 500 once": {engines: [][]b{{{Status: 500, Body: "fault"}, {}}, {{}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || tried(e...) != "1 1" || row.Tries != 2 {
				t.Errorf("%s; tried %s, %+v", why, tried(e...), row)
			}
		}},
		"S04 503 persistent": {engines: [][]b{{down}, {down}, {down}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if g.status != http.StatusServiceUnavailable || g.body != down.Body || row.Tries != 2 || row.End != store.EndUpstreamError {
				t.Errorf("got %d %s; tried %s; %+v", g.status, g.body, tried(e...), row)
			}
		}},
		"S05 reset before headers": {engines: [][]b{{{Reset: true}}, {{}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || tried(e...) != "1 1" || row.Backend != "e1" {
				t.Errorf("%s; tried %s, %+v", why, tried(e...), row)
			}
		}},
		"S06 no response": {engines: [][]b{{{Silent: true}}, {{}}}, body: streamed, rules: short, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || tried(e...) != "1 1" || !strings.Contains(row.Tried, "no answer came in time") {
				t.Errorf("%s; tried %s, %+v", why, tried(e...), row)
			}
			receive(t, receive(t, e[0].Arrived(), "the call").Left, "the end of the silent backend's request")
		}},
		"S07 first token late": {engines: [][]b{{{TokenGate: later()}}, {{}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || tried(e...) != "1 0" || row.End != store.EndDone {
				t.Errorf("%s; tried %s, %+v", why, tried(e...), row)
			}
		}},
		"S08 cut after 40 of 60": {engines: [][]b{{{CloseAfter: 40}}, {{}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			broken(t, g, 40, "upstream_cut")
			if tried(e...) != "1 0" || row.End != store.EndUpstreamCut || row.Chunks != 40 || tokens(row.CompletionTokens) != 40 || !row.Estimated {
				t.Errorf("tried %s; %+v", tried(e...), row)
			}
		}},
		"S09 stall after 20": {engines: [][]b{{{StallAfter: 20}}, {{}}}, body: streamed, rules: short, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			broken(t, g, 20, "upstream_timeout")
			if tried(e...) != "1 0" || row.End != store.EndUpstreamTimeout || row.Chunks != 20 {
				t.Errorf("tried %s; %+v", tried(e...), row)
			}
			receive(t, receive(t, e[0].Arrived(), "the call").Left, "the end of the stalled backend's request")
		}},
		"S10 malformed event": {engines: [][]b{{{Broken: 10}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, _ []*mockengine.Engine, _ *bench) {
			if why := well(g, 59); why != "" || !strings.Contains(g.body, "data: {\"choices\":[{\"delta\":{\"content\n\n") || !strings.HasSuffix(g.body, "data: [DONE]\n\n") || tokens(row.CompletionTokens) != 60 || row.Estimated || row.End != store.EndDone {
				t.Errorf("%s; %+v", why, row)
			}
		}},
		"S11 no [DONE]": {engines: [][]b{{{NoDone: true}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, _ []*mockengine.Engine, _ *bench) {
			if why := well(g, 60); why != "" || strings.Contains(g.body, "[DONE]") || tokens(row.CompletionTokens) != 60 || row.End != store.EndDone {
				t.Errorf("%s; %+v", why, row)
			}
		}},
		"S12 context length": {engines: [][]b{{{Status: 400, Body: contextLength}}, {{}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if g.status != http.StatusBadRequest || g.body != contextLength || tried(e...) != "1 0" || tokens(row.PromptTokens) != 0 {
				t.Errorf("got %d %s; tried %s; %+v", g.status, g.body, tried(e...), row)
			}
		}},
		"S13 content filter": {engines: [][]b{{{Status: 400, Body: filtered}}, {{}}}, body: whole, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			if g.status != http.StatusBadRequest || g.body != filtered || tried(e...) != "1 0" || row.End != store.EndUpstreamError {
				t.Errorf("got %d %s; tried %s; %+v", g.status, g.body, tried(e...), row)
			}
		}},
		// A backend that refuses to go on from a given beginning gets none to go on from: what was cut is told as cut.
		"S14 cut, and a fallback that rejects beginnings": {engines: [][]b{{{CloseAfter: 40}}, {{Status: 400, Body: filtered}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			broken(t, g, 40, "upstream_cut")
			if tried(e...) != "1 0" || row.End != store.EndUpstreamCut || row.Chunks != 40 {
				t.Errorf("tried %s; %+v", tried(e...), row)
			}
		}},
		"S15 down for a minute": {engines: [][]b{{down}, {{}}}, body: whole, check: func(t *testing.T, g got, _ store.Usage, e []*mockengine.Engine, bench *bench) {
			moved := bench.clock.(*clock.Fake) //nolint:forcetypeassert // every scenario has one
			if why := well(g, 60); why != "" {
				t.Error(why)
			}
			for n := 1; n < 20; n++ {
				moved.Advance(4 * time.Second)
				if n == 15 {
					e[0].Set(b{})
				}
				if why := well(bench.post(chat, whole), 60); why != "" {
					t.Errorf("request %d: %s", n, why)
				}
				bench.row()
			}
			back := len(e[0].Ledger())
			for n := range 20 { // it is found to be well, and takes part in conversations that begin now
				moved.Advance(4 * time.Second)
				bench.post(chat, strings.Replace(whole, "hi", fmt.Sprint("hi ", n), 1))
				bench.row()
			}
			if len(e[0].Ledger()) < back+3 {
				t.Errorf("tried %s: the backend that is well again gets nothing", tried(e...))
			}
		}},
		"S16 accounting of a fail-over": {engines: [][]b{{down}, {{Tokens: 7}}}, body: streamed, check: func(t *testing.T, g got, row store.Usage, e []*mockengine.Engine, _ *bench) {
			want := `[{"backend":"e0","status":503,"error":"` + e[0].Addr + ` answered 503"},{"backend":"e1","status":200}]`
			if why := well(g, 7); why != "" || row.Backend != "e1" || row.Tried != want || tokens(row.CompletionTokens) != 7 || row.Estimated {
				t.Errorf("%s; %+v", why, row)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var engines []*mockengine.Engine
			for _, script := range s.engines {
				engines = append(engines, mockengine.New(t, script...))
			}
			bench := setUp(t, of{engines: engines, rules: s.rules, clock: clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))})
			g := bench.post(chat, s.body)
			s.check(t, g, bench.row(), engines, bench)
			if left := len(bench.rows); left > 0 {
				t.Errorf("%d rows too many", left)
			}
		})
	}
}

// later opens after the headers of a stream have been passed on without a token.
func later() <-chan bool {
	gate := make(chan bool)
	time.AfterFunc(time.Second, func() { close(gate) })
	return gate
}
