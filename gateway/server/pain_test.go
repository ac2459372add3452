package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/store"
)

// The rows of the pain log of other gateways that are about metering, streams, failures and leaving clients, each with
// the right value. Those about bodies and headers are in surface_test.go, the catalogue in catalogue_test.go.

type behaviour = mockengine.Behaviour

func one(t *testing.T, script ...behaviour) (*bench, *mockengine.Engine) {
	t.Helper()
	e := mockengine.New(t, script...)
	return setUp(t, of{engines: []*mockengine.Engine{e}}), e
}

// TestP01_P02_P06_UsageIsAskedForAndKeptFromWhoDidNot for chat and text completions.
func TestP01_P02_P06_UsageIsAskedForAndKeptFromWhoDidNot(t *testing.T) {
	t.Parallel()
	b, e := one(t, behaviour{Tokens: 5, Cached: 2})
	for _, path := range []string{chat, "/v1/completions"} {
		g := b.post(path, streamed)
		if well(g, 5) != "" || strings.Contains(g.body, `"usage"`) || strings.Contains(g.body, `"choices":[]`) || !strings.HasSuffix(g.body, "data: [DONE]\n\n") {
			t.Errorf("%s: a client that did not ask got\n%s", path, g.body)
		}
		if seen := receive(t, e.Arrived(), "a call"); !strings.Contains(string(seen.Body), `"include_usage":true`) {
			t.Errorf("the engine was sent %s", seen.Body)
		}
		if row := b.row(); tokens(row.CompletionTokens) != 5 || tokens(row.CachedTokens) != 2 || row.Estimated || row.FirstByte <= 0 {
			t.Errorf("%s: %+v", path, row)
		}
		g = b.post(path, strings.Replace(streamed, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
		if strings.Count(g.body, `"choices":[],`) != 1 || strings.Count(g.body, `"usage"`) != 1 {
			t.Errorf("%s: a client that asked got\n%s", path, g.body)
		}
		receive(t, e.Arrived(), "a call")
		b.row()
	}
}

// TestP05_UsageIsCountedOnce however often an engine tells it.
func TestP05_UsageIsCountedOnce(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]behaviour{"twice": {Tokens: 9, Twice: true}, "with every token": {Tokens: 9, Cumulative: true}} {
		b, _ := one(t, script)
		b.post(chat, streamed)
		if row := b.row(); tokens(row.CompletionTokens) != 9 || row.Estimated {
			t.Errorf("%s: %+v", name, row)
		}
	}
}

// TestP08_EachProtocolsOwnPlace: passed on unchanged and metered.
func TestP08_EachProtocolsOwnPlace(t *testing.T) {
	t.Parallel()
	b, e := one(t, behaviour{Tokens: 6, Cached: 3})
	for _, path := range []string{chat, "/v1/responses", "/v1/messages", "/v1/completions"} {
		for _, body := range []string{whole, streamed} {
			direct, err := http.Post("http://"+e.Addr+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			want, err := io.ReadAll(direct.Body)
			direct.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			g := b.post(path, body)
			if g.body != string(want) {
				t.Errorf("%s %s became\n%s\nwant\n%s", path, body, g.body, want)
			}
			prompt := int64(2) // words of the body as the engine counts them
			if row := b.row(); tokens(row.CompletionTokens) != 6 || tokens(row.CachedTokens) != 3 || tokens(row.PromptTokens) < prompt-1 || row.Estimated || row.End != store.EndDone {
				t.Errorf("%s %s: prompt %d, cached %d, output %d; %+v", path, body, tokens(row.PromptTokens), tokens(row.CachedTokens), tokens(row.CompletionTokens), row)
			}
		}
	}
}

// TestP10_ErrorsAreNotOutput: 200, then an error and no token.
func TestP10_ErrorsAreNotOutput(t *testing.T) {
	t.Parallel()
	for _, path := range []string{chat, "/v1/responses", "/v1/messages"} {
		b, _ := one(t, behaviour{ErrorFirst: true})
		g := b.post(path, streamed)
		if g.status != http.StatusOK || !strings.Contains(g.body, "boom") || strings.Contains(g.body, "[DONE]") {
			t.Errorf("%s: %d %s", path, g.status, g.body)
		}
		if row := b.row(); tokens(row.CompletionTokens) != 0 || tokens(row.PromptTokens) != 0 || row.End != store.EndUpstreamError || row.Chunks != 0 {
			t.Errorf("%s: %+v", path, row)
		}
	}
}

// TestP11_P15_PW14_ALeavingClientStopsTheEngine in every phase, and leaves a row.
func TestP11_P15_PW14_ALeavingClientStopsTheEngine(t *testing.T) {
	t.Parallel()
	never := make(chan bool)
	for name, c := range map[string]struct {
		script behaviour
		body   string
		first  bool // bytes of the answer are read before leaving
	}{
		"waiting for a whole answer":  {behaviour{Silent: true}, whole, false},
		"waiting for headers":         {behaviour{Gate: never}, streamed, false},
		"waiting for the first token": {behaviour{TokenGate: never}, streamed, true},
		"in the middle of a stream":   {behaviour{StallAfter: 3}, streamed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, e := one(t, c.script)
			conn := b.dial(chat, c.body)
			seen := receive(t, e.Arrived(), "the call")
			if c.first {
				if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			conn.Close()
			receive(t, seen.Left, "the end of the engine's work")
			row := b.row()
			if row.End != store.EndClientGone || tokens(row.PromptTokens) <= 0 || !row.Estimated || tokens(row.CompletionTokens) != int64(row.Chunks) {
				t.Errorf("%+v", row)
			}
			if wantChunks := c.script.StallAfter; row.Chunks > wantChunks {
				t.Errorf("%d chunks of %d", row.Chunks, wantChunks)
			}
			if !c.first && row.Status != relay.StatusClientGone {
				t.Errorf("status %d", row.Status)
			}
		})
	}
}

// TestP12_HalfAnswersLeaveARow with what was given out until then.
func TestP12_HalfAnswersLeaveARow(t *testing.T) {
	t.Parallel()
	for path, tokensTold := range map[string]int64{chat: 40, "/v1/responses": 40, "/v1/messages": 40} {
		b, _ := one(t, behaviour{CloseAfter: 40})
		b.post(path, streamed)
		if row := b.row(); row.End != store.EndUpstreamCut || row.Chunks != 40 || tokens(row.CompletionTokens) != tokensTold || !row.Estimated {
			t.Errorf("%s: %+v", path, row)
		}
	}
}

// TestP14_CachedTokensHaveTheirOwnColumn.
func TestP14_CachedTokensHaveTheirOwnColumn(t *testing.T) {
	t.Parallel()
	b, _ := one(t, behaviour{Body: `{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":900}}}`})
	b.post(chat, whole)
	if row := b.row(); tokens(row.PromptTokens) != 1000 || tokens(row.CachedTokens) != 900 || tokens(row.CompletionTokens) != 3 {
		t.Errorf("%+v", row)
	}
}

// TestP18_AClientThatOnlyListens has closed its sending side after the body, and gets its answer in full.
func TestP18_AClientThatOnlyListens(t *testing.T) {
	t.Parallel()
	for _, body := range []string{whole, streamed} {
		gate := make(chan bool)
		script := behaviour{Gate: gate}
		if body == streamed {
			script = behaviour{TokenGate: gate}
		}
		b, e := one(t, script)
		c := b.dial(chat, body)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		seen := receive(t, e.Arrived(), "the call")
		held := make(chan struct{})
		time.AfterFunc(300*time.Millisecond, func() { close(held) }) // long enough for the end to have been taken for leaving
		select {
		case <-held:
		case <-seen.Left:
			t.Fatal("the client was taken for gone")
		}
		close(gate)
		if g := b.answerOf(c); well(g, 60) != "" {
			t.Errorf("%s: %s", body, well(g, 60))
		}
		if row := b.row(); row.End != store.EndDone || tokens(row.CompletionTokens) != 60 {
			t.Errorf("%+v", row)
		}
	}
}

// TestP19_P20_EventsLeaveAtOnce also small ones, comments and halves of tool calls: each is read before the next is made.
func TestP19_P20_EventsLeaveAtOnce(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", 200) + "\"}}]}\n\n", ": heartbeat\n\n",
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{\"}}]}}]}\n\n", "event: ping\r\ndata: {}\r\n\r\n",
	}
	step := make(chan bool)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range pieces {
			io.WriteString(w, piece)              //nolint:errcheck // the reader tells
			http.NewResponseController(w).Flush() //nolint:errcheck // the reader tells
			if _, ok := <-step; !ok {
				return
			}
		}
	}))
	t.Cleanup(engine.Close)
	t.Cleanup(func() { close(step) })
	b := setUp(t, of{addrs: []string{strings.TrimPrefix(engine.URL, "http://")}})
	resp, err := http.Post(b.url+chat, "application/json", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, want := range pieces {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		step <- true
	}
	// P21: nothing in front may collect events.
	if resp.Header.Get("X-Accel-Buffering") != "no" || resp.Header.Get("Cache-Control") != "no-cache, no-transform" {
		t.Errorf("headers: %v", resp.Header)
	}
}

// TestP23_P29_BytesAreThoseOfTheEngine: signs of several bytes, one byte at a time, and tool calls in hundreds of pieces.
func TestP23_P29_BytesAreThoseOfTheEngine(t *testing.T) {
	t.Parallel()
	text := "data: {\"choices\":[{\"delta\":{\"content\":\"\u4f60\u597d \U0001f600\"}}],\"model\":\"m\"}\n\n"
	for n := range 200 {
		for index := range 2 {
			text += fmt.Sprintf("data: {\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":\"\\u00e9%d\"}}]}}]}\n\n", index, n)
		}
	}
	text += "data: [DONE]\n\n"
	var bytewise []string
	for i := range 300 {
		bytewise = append(bytewise, text[i:i+1])
	}
	b, _ := one(t, behaviour{Raw: append(bytewise, text[300:])})
	if g := b.post(chat, streamed); g.body != text || g.err != nil {
		t.Errorf("%d bytes became %d: %v", len(text), len(g.body), g.err)
	}
	if row := b.row(); row.Chunks != 401 || row.End != store.EndDone {
		t.Errorf("%+v", row)
	}
}

// TestP25_CommentsWhileAnEngineThinks keep front balancers from cutting a stream; a whole answer gets none.
func TestP25_CommentsWhileAnEngineThinks(t *testing.T) {
	t.Parallel()
	gate := make(chan bool)
	e := mockengine.New(t, behaviour{TokenGate: gate, Tokens: 3}, behaviour{Tokens: 3})
	b := setUp(t, of{engines: []*mockengine.Engine{e}, rules: relay.Rules{Keepalive: 10 * time.Millisecond}})
	resp, err := http.Post(b.url+chat, "application/json", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := r.ReadString('\n'); err != nil || line != ": keepalive\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != "\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	close(gate)
	rest, err := io.ReadAll(r)
	if err != nil || strings.Count(string(rest), "word ") != 3 {
		t.Errorf("%s, %v", rest, err)
	}
	for event := range strings.SplitSeq(strings.TrimSpace(string(rest)), "\n\n") {
		if !strings.HasPrefix(event, "data: ") && event != ": keepalive" {
			t.Errorf("a comment is inside of an event: %q", event)
		}
	}
	if g := b.post(chat, whole); strings.Contains(g.body, "keepalive") || g.status != http.StatusOK {
		t.Errorf("whole: %s", g.body)
	}
}

// TestP27_P32_HowEachProtocolTellsAnError that the engine told itself, and one that the gateway has to tell.
func TestP27_P32_HowEachProtocolTellsAnError(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		chat:            `data: {"error":{"message":`,
		"/v1/responses": `data: {"type":"response.failed","sequence_number":`,
		"/v1/messages":  "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
	} {
		b, _ := one(t, behaviour{ErrorAfter: 5}, behaviour{CutAfter: 5})
		g := b.post(path, streamed)
		if g.status != http.StatusOK || strings.Count(g.body, "boom") != 1 || strings.Contains(g.body, "upstream_cut") {
			t.Errorf("%s: the engine's own error: %d %v %s", path, g.status, g.err, g.body)
		}
		if row := b.row(); row.End != store.EndUpstreamError || row.Chunks != 5 {
			t.Errorf("%s: %+v", path, row)
		}
		g = b.post(path, streamed)
		if g.err == nil || !strings.Contains(g.body, want) || strings.Contains(g.body, "[DONE]") || strings.Contains(g.body, "message_stop") || strings.Contains(g.body, "response.completed") {
			t.Errorf("%s: a cut: %v %s", path, g.err, g.body)
		}
		b.row()
	}
}

// TestP28_HeadersGoOnBeforeContent so that a client's time-out for headers does not end a long prefill.
func TestP28_HeadersGoOnBeforeContent(t *testing.T) {
	t.Parallel()
	gate := make(chan bool)
	b, _ := one(t, behaviour{TokenGate: gate, Tokens: 2})
	resp, err := http.Post(b.url+chat, "application/json", strings.NewReader(streamed)) // gives back at the headers
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	close(gate)
	if raw, err := io.ReadAll(resp.Body); err != nil || strings.Count(string(raw), "word ") != 2 {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestP33_OneCleanErrorWhenBothBreak before content, with a real status and nothing of either.
func TestP33_OneCleanErrorWhenBothBreak(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]behaviour{"reset": {Reset: true}, "500": {Status: 500, Body: `{"error":{"message":"fault"}}`}} {
		b := setUp(t, of{engines: []*mockengine.Engine{mockengine.New(t, script), mockengine.New(t, script)}})
		g := b.post(chat, streamed)
		if g.err != nil || g.status < 500 || strings.Contains(g.body, "data:") || !strings.Contains(g.body, `"error"`) || !strings.Contains(g.header.Get("Content-Type"), "json") {
			t.Errorf("%s: %d %v %s", name, g.status, g.header, g.body)
		}
		if row := b.row(); row.Tries != 2 || row.End != store.EndUpstreamError {
			t.Errorf("%s: %+v", name, row)
		}
	}
}

// TestP34_NoFallbackIsObeyed.
func TestP34_NoFallbackIsObeyed(t *testing.T) {
	t.Parallel()
	bad, good := mockengine.New(t, behaviour{Reset: true}), mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{bad, good}, rules: relay.Rules{Tries: 1}})
	if g := b.post(chat, streamed); g.status != http.StatusBadGateway || len(good.Ledger()) != 0 {
		t.Errorf("%d %s; the other one saw %d", g.status, g.body, len(good.Ledger()))
	}
}

// TestP35_OneSilentBackendOfFour costs the others nothing.
func TestP35_OneSilentBackendOfFour(t *testing.T) {
	t.Parallel()
	engines := []*mockengine.Engine{mockengine.New(t, behaviour{Silent: true}), mockengine.New(t), mockengine.New(t), mockengine.New(t)}
	b := setUp(t, of{engines: engines, rules: short})
	for n := range 12 {
		body := []string{whole, streamed}[n%2]
		if g := b.post(chat, body); well(g, 60) != "" {
			t.Errorf("request %d: %s", n, well(g, 60))
		}
		b.row()
	}
}

// TestP38_AllReset is an error, never 200.
func TestP38_AllReset(t *testing.T) {
	t.Parallel()
	b, _ := one(t, behaviour{Reset: true})
	for _, body := range []string{whole, streamed} {
		if g := b.post(chat, body); g.status != http.StatusBadGateway || !strings.Contains(g.body, "upstream_unreachable") {
			t.Errorf("%d %s", g.status, g.body)
		}
		if row := b.row(); row.Status != http.StatusBadGateway || row.End != store.EndUpstreamError {
			t.Errorf("%+v", row)
		}
	}
}

// TestP42_TheSecondTryIsElsewhere always.
func TestP42_TheSecondTryIsElsewhere(t *testing.T) {
	t.Parallel()
	bad, good := mockengine.New(t, behaviour{Status: 500, Body: "{}"}), mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{bad, good}})
	for range 20 {
		if g := b.post(chat, whole); g.status != http.StatusOK {
			t.Errorf("%d %s", g.status, g.body)
		}
		if row := b.row(); row.Backend != "e1" || row.Tries > 2 {
			t.Errorf("%+v", row)
		}
	}
}

// TestPW10_AnEngineThatRefusesStreamOptions is asked again without, once, and never again with them.
func TestPW10_AnEngineThatRefusesStreamOptions(t *testing.T) {
	t.Parallel()
	refusal := behaviour{Status: 400, Body: `{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options')}]"}`}
	b, e := one(t, refusal, behaviour{Tokens: 4, NoUsage: true})
	for range 2 {
		if g := b.post(chat, streamed); well(g, 4) != "" {
			t.Error(well(g, 4))
		}
		if row := b.row(); tokens(row.CompletionTokens) != 4 || !row.Estimated || tokens(row.PromptTokens) <= 0 || row.Tries != 1 {
			t.Errorf("%+v", row)
		}
	}
	var asked []bool
	for _, seen := range e.Ledger() {
		asked = append(asked, strings.Contains(string(seen.Body), "include_usage"))
	}
	if fmt.Sprint(asked) != "[true false false]" {
		t.Errorf("usage was asked for: %v", asked)
	}
}

// TestPW09_EnginesThatTellNothing are estimated, and the estimate says so.
func TestPW09_EnginesThatTellNothing(t *testing.T) {
	t.Parallel()
	b, _ := one(t, behaviour{Tokens: 8, NoUsage: true})
	for _, path := range []string{chat, "/v1/messages", "/v1/responses"} {
		b.post(path, streamed)
		if row := b.row(); tokens(row.CompletionTokens) != 8 || tokens(row.PromptTokens) <= 0 || !row.Estimated {
			t.Errorf("%s: %+v", path, row)
		}
		b.post(path, whole)
		if row := b.row(); tokens(row.CompletionTokens) < 5 || tokens(row.CompletionTokens) > 15 || !row.Estimated {
			t.Errorf("%s: %d tokens for 8; %+v", path, tokens(row.CompletionTokens), row)
		}
	}
}

// TestP84_RunningStreamsEndWell when the gateway is told to end.
func TestP84_RunningStreamsEndWell(t *testing.T) {
	t.Parallel()
	gate := make(chan bool)
	b, e := one(t, behaviour{TokenGate: gate})
	answers := make(chan got, 50)
	for range 50 {
		go func() {
			resp, err := http.Post(b.url+chat, "application/json", strings.NewReader(streamed))
			if err != nil {
				answers <- got{err: err}
				return
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			answers <- got{status: resp.StatusCode, body: string(raw), err: err}
		}()
	}
	for range 50 {
		receive(t, e.Arrived(), "a call")
	}
	ended := make(chan error, 1)
	go func() { ended <- b.front.Shutdown(context.Background()) }()
	close(gate)
	for range 50 {
		if g := receive(t, answers, "an answer"); well(g, 60) != "" {
			t.Error(well(g, 60))
		}
	}
	if err := receive(t, ended, "the end"); err != nil {
		t.Error(err)
	}
}

// TestP86_AbortsLeaveNothingBehind: every row is written, every lease given back.
func TestP86_AbortsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	b, e := one(t, behaviour{StallAfter: 2})
	const n = 200
	for range n {
		go func() {
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chat, strings.NewReader(streamed))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			bufio.NewReader(resp.Body).ReadString('\n') //nolint:errcheck // the first event
			leave()
			resp.Body.Close()
		}()
	}
	for range n {
		if row := b.row(); row.End != store.EndClientGone || row.Chunks > 2 {
			t.Errorf("%+v", row)
		}
	}
	for _, seen := range e.Ledger() {
		receive(t, seen.Left, "the end of an engine's work")
	}
}

// TestEngine_WhoseHeadersComeWithTheFirstToken is not taken for silent while it works off a prompt.
func TestEngine_WhoseHeadersComeWithTheFirstToken(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int{"sglang": http.StatusOK, "vllm": http.StatusGatewayTimeout} {
		gate := make(chan bool)
		e := mockengine.New(t, behaviour{Gate: gate})
		b := setUp(t, of{
			engines: []*mockengine.Engine{e}, tags: []string{discover.EngineTag + kind},
			rules: relay.Rules{Headers: time.Second, FirstToken: time.Minute},
		})
		if want == http.StatusOK {
			time.AfterFunc(1500*time.Millisecond, func() { close(gate) })
		}
		if g := b.post(chat, streamed); g.status != want {
			t.Errorf("%s: %d %s", kind, g.status, g.body)
		}
	}
}
