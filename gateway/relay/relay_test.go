package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// gateway is a relay in front of backends; outcomes arrive one for each request.
type gateway struct {
	url      string
	pool     *balance.Pool
	rules    Rules
	served   string // the model's name at the backends, when that is another
	outcomes chan Outcome
}

func front(t *testing.T, backends ...http.HandlerFunc) *gateway {
	t.Helper()
	g := &gateway{pool: balance.NewPool(clock.System()), outcomes: make(chan Outcome, 100)}
	var list []balance.Backend
	for i, b := range backends {
		s := httptest.NewServer(b)
		t.Cleanup(s.Close)
		list = append(list, balance.Backend{ID: fmt.Sprintf("b%d", i), Addr: strings.TrimPrefix(s.URL, "http://")})
	}
	g.pool.Set(list)
	r := New("test")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		raw, err := io.ReadAll(in.Body)
		if err != nil {
			t.Error(err)
		}
		req, err := body.Read(raw)
		if err != nil {
			t.Error(err)
			return
		}
		operation, ok := Find(in.URL.Path)
		if !ok {
			t.Errorf("no operation at %s", in.URL.Path)
		}
		g.outcomes <- r.Exchange(w, in, &Call{
			Operation: operation, Content: &JSON{req, g.served}, Model: req.Model, Stream: req.Stream, WantUsage: req.WantUsage,
			PromptTokens: req.PromptTokens, Pool: g.pool, Ask: balance.Ask{Policy: balance.RoundRobin}, Rules: g.rules,
		})
	}))
	t.Cleanup(s.Close)
	g.url = s.URL + "/v1/chat/completions"
	return g
}

func (g *gateway) post(t *testing.T, body string) (status int, answer string, readErr error) {
	t.Helper()
	resp, err := http.Post(g.url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

func events(w http.ResponseWriter, list ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range list {
		fmt.Fprintf(w, "data: %s\n\n", e)
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

const (
	chunk     = `{"choices":[{"delta":{"content":"a"}}]}`
	usageOnly = `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`
	ask       = `{"model":"m","stream":true,"messages":[]}`
)

func whole(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer) //nolint:errcheck // a test server
	}
}

func TestStream_UsageIsMeteredAndTheChunkNobodyAskedForIsKept(t *testing.T) {
	t.Parallel()
	var got string
	backend := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = string(body)
		events(w, chunk, chunk, usageOnly, "[DONE]")
	}
	g := front(t, backend)
	_, plain, err := g.post(t, ask)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain, `"usage"`) || !strings.HasSuffix(plain, "data: [DONE]\n\n") || strings.Count(plain, "content") != 2 {
		t.Errorf("a client that did not ask for usage got:\n%s", plain)
	}
	if !strings.Contains(got, `"include_usage":true`) || !strings.Contains(got, `"messages":[]`) {
		t.Errorf("the backend was sent %s", got)
	}
	o := <-g.outcomes
	if o.End != store.EndDone || o.Usage.PromptTokens == nil || *o.Usage.PromptTokens != 7 || *o.Usage.CompletionTokens != 3 {
		t.Errorf("outcome: %+v", o)
	}
	_, asked, err := g.post(t, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(asked, usageOnly) {
		t.Errorf("a client that asked for usage got:\n%s", asked)
	}
}

func TestExchange_AnotherBackendBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	good := func(w http.ResponseWriter, _ *http.Request) { events(w, chunk, "[DONE]") }
	for name, bad := range map[string]http.HandlerFunc{
		"cut before headers": func(w http.ResponseWriter, _ *http.Request) { cut(w) },
		"503":                func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "full", http.StatusServiceUnavailable) },
		"500":                func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "fault", http.StatusInternalServerError) },
		"cut after headers":  func(w http.ResponseWriter, _ *http.Request) { events(w); http.NewResponseController(w).Flush(); cut(w) }, //nolint:errcheck // a test server
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := front(t, bad, good)
			status, answer, err := g.post(t, ask)
			if status != http.StatusOK || err != nil || !strings.Contains(answer, "[DONE]") {
				t.Fatalf("want the second backend's answer, got %d %v:\n%s", status, err, answer)
			}
			if o := <-g.outcomes; len(o.Tried) != 2 || o.Backend != "b1" || o.End != store.EndDone {
				t.Errorf("outcome: %+v", o)
			}
		})
	}
}

func TestExchange_WholeAnswerCutMidwayIsAskedAgain(t *testing.T) {
	t.Parallel()
	g := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"id":`) //nolint:errcheck // a test server
		cut(w)
	}, whole(`{"id":"x","usage":{"prompt_tokens":1,"completion_tokens":2}}`))
	status, answer, err := g.post(t, `{"model":"m"}`)
	if status != http.StatusOK || err != nil || !strings.Contains(answer, `"x"`) {
		t.Fatalf("got %d %v %s", status, err, answer)
	}
	if o := <-g.outcomes; len(o.Tried) != 2 || *o.Usage.CompletionTokens != 2 {
		t.Errorf("outcome: %+v", o)
	}
}

func TestStream_CutInTheMiddleIsNoSuccess(t *testing.T) {
	t.Parallel()
	g := front(t, func(w http.ResponseWriter, _ *http.Request) { events(w, chunk, chunk); cut(w) })
	_, answer, err := g.post(t, ask)
	if err == nil {
		t.Error("the connection must end abnormally")
	}
	if !strings.Contains(answer, `"error"`) || strings.Contains(answer, "[DONE]") {
		t.Errorf("want an error event and no end mark:\n%s", answer)
	}
	if o := <-g.outcomes; o.End != store.EndUpstreamCut || *o.Usage.CompletionTokens != 2 || !o.Estimated || o.Chunks != 2 || len(o.Tried) != 1 {
		t.Errorf("outcome: %+v (what is not told is estimated, and says so)", o)
	}
}

func TestExchange_ClientErrorsAreNotTriedElsewhere(t *testing.T) {
	t.Parallel()
	const refusal = `{"error":{"message":"too long","code":"context_length_exceeded"}}`
	g := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, refusal) //nolint:errcheck // a test server
	}, whole(`{}`))
	status, answer, _ := g.post(t, `{"model":"m"}`)
	if o := <-g.outcomes; status != http.StatusBadRequest || answer != refusal || len(o.Tried) != 1 {
		t.Errorf("got %d %s, %+v", status, answer, o)
	}
}

func TestExchange_NobodyAnswers(t *testing.T) {
	t.Parallel()
	g := front(t)
	status, answer, _ := g.post(t, `{"model":"m"}`)
	if o := <-g.outcomes; status != http.StatusServiceUnavailable || !strings.Contains(answer, "no live backend") || len(o.Tried) != 0 || o.End != store.EndRefused || o.Usage.CompletionTokens == nil || *o.Usage.CompletionTokens != 0 {
		t.Errorf("no backend: %d %s %+v", status, answer, o)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.pool.Set([]balance.Backend{{ID: "gone", Addr: l.Addr().String()}})
	l.Close()
	status, answer, _ = g.post(t, `{"model":"m"}`)
	if o := <-g.outcomes; status != http.StatusBadGateway || !strings.Contains(answer, "upstream_unreachable") || o.End != store.EndUpstreamError {
		t.Errorf("refused: %d %s %+v", status, answer, o)
	}
}

func TestExchange_AddressThatIsNoneCostsOneTry(t *testing.T) {
	t.Parallel()
	g := front(t, whole(`{"id":"x"}`))
	live := g.pool.Take(balance.Ask{Policy: balance.RoundRobin})
	live.Done(balance.Neutral)
	g.pool.Set([]balance.Backend{{ID: "a", Addr: "no address"}, {ID: "b", Addr: live.Addr}})
	tries := 0
	for range 2 { // one of the two is sent to the bad address first
		status, answer, err := g.post(t, `{"model":"m"}`)
		if status != http.StatusOK || err != nil || answer != `{"id":"x"}` {
			t.Errorf("got %d %q %v", status, answer, err)
		}
		o := <-g.outcomes
		if o.Backend != "b" || o.End != store.EndDone {
			t.Errorf("outcome: %+v", o)
		}
		tries += len(o.Tried)
	}
	if tries != 3 && tries != 4 { // whether one fault makes it rest is the pool's matter
		t.Errorf("%d tries, want one for each request and one or two for the bad address", tries)
	}
}

func TestExchange_LeavingClientStopsTheBackend(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			t.Parallel()
			reached, stopped := make(chan struct{}), make(chan struct{})
			g := front(t, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.ReadAll(r.Body); err != nil {
					t.Error(err)
				}
				if stream {
					events(w, chunk)
				}
				close(reached)
				<-r.Context().Done()
				close(stopped)
			})
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, strings.NewReader(fmt.Sprintf(`{"model":"m","stream":%v}`, stream)))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					bufio.NewReader(resp.Body).ReadString('\n') //nolint:errcheck // the first event or nothing
					resp.Body.Close()
				}
			}()
			<-reached
			leave()
			select {
			case <-stopped:
			case <-time.After(10 * time.Second):
				t.Fatal("the backend works on after the client left")
			}
			if o := <-g.outcomes; o.End != store.EndClientGone {
				t.Errorf("outcome: %+v", o)
			}
		})
	}
}

func TestExchange_HeadersOfOneConnectionStay(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	g := front(t, func(w http.ResponseWriter, r *http.Request) { seen <- r.Header; whole(`{}`)(w, r) })
	req, err := http.NewRequest(http.MethodPost, g.url, strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer hf-endpoint-secret")
	req.Header.Set("X-Nomad-Token", "hf-endpoint-secret")
	req.Header.Set("Connection", "X-Secret")
	req.Header.Set("X-Secret", "1")
	req.Header.Set("Traceparent", "00-abc")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	h := <-seen
	if h.Get("Authorization") != "" || h.Get("X-Nomad-Token") != "" || h.Get("X-Secret") != "" || h.Get("Traceparent") != "00-abc" {
		t.Errorf("the backend saw %v", h)
	}
}

// FuzzEvents: events in any pieces are those that one piece gives, and without a reason to change them they are the bytes.
func FuzzEvents(f *testing.F) {
	f.Add("data: "+usageOnly+"\n\n", false)
	f.Add(": comment\n\nevent: x\r\ndata: {\"model\":\"m\"}\r\n\r\n", true)
	f.Add("data: [DONE]\n\ndata: {\"error\":{}}\n\n", true)
	f.Fuzz(func(t *testing.T, text string, want bool) {
		read := func(list ...string) (out string, s sse) {
			s = sse{call: &Call{Operation: chat, Model: "m", WantUsage: want}, asked: []byte(`"model":"m"`)}
			for _, piece := range list {
				out += string(s.read([]byte(piece)))
			}
			return out, s
		}
		whole, one := read(text)
		if !strings.Contains(text, `"model"`) && !strings.Contains(text, `"usage"`) && whole != text {
			t.Fatalf("%q became %q", text, whole)
		}
		at := boundary([]byte(text), 0)
		cut, two := read(text[:at], text[at:])
		if cut != whole || one.finished != two.finished || one.failed != two.failed || one.chunks != two.chunks {
			t.Fatalf("%q: %q and %q", text, whole, cut)
		}
	})
}

// TestStream_EndlessEventIsCut: a backend that never ends a line must not fill the gateway's memory.
func TestStream_EndlessEventIsCut(t *testing.T) {
	t.Parallel()
	g := front(t, func(w http.ResponseWriter, _ *http.Request) {
		events(w, chunk)
		fmt.Fprint(w, "data: ")
		for line := strings.Repeat("x", 1<<20); ; {
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
		}
	})
	_, answer, _ := g.post(t, ask)
	if !strings.Contains(answer, "upstream_cut") || len(answer) > 1000 {
		t.Errorf("%d bytes: %.300s", len(answer), answer)
	}
	if out := <-g.outcomes; out.End != store.EndUpstreamCut {
		t.Errorf("%+v", out)
	}
}

func TestStream_EventsInAnyPieces(t *testing.T) {
	t.Parallel()
	long := `{"choices":[{"delta":{"content":"` + strings.Repeat("y", 100_000) + `"}}]}`
	text := "data: " + chunk + "\r\n\r\n: a comment\n\ndata: " + long + "\n\ndata: " + usageOnly + "\r\n\r\ndata: [DONE]\n\n"
	g := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for rest := text; rest != ""; {
			n := min(len(rest), 1+len(rest)%997)
			if _, err := io.WriteString(w, rest[:n]); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			rest = rest[n:]
		}
	})
	_, answer, err := g.post(t, ask)
	if want := strings.Replace(text, "data: "+usageOnly+"\r\n\r\n", "", 1); answer != want || err != nil {
		t.Errorf("%d bytes, want %d: %v", len(answer), len(want), err)
	}
	if out := <-g.outcomes; out.End != store.EndDone || *out.Usage.CompletionTokens != 3 {
		t.Errorf("%+v", out)
	}
}

// TestError_LongerThanIsKept: the length told is that of what is sent.
func TestError_LongerThanIsKept(t *testing.T) {
	t.Parallel()
	g := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(2<<20))
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, strings.Repeat("e", 2<<20)) //nolint:errcheck // the gateway stops reading
	})
	status, answer, err := g.post(t, ask)
	if status != http.StatusInternalServerError || len(answer) != 1<<20 || err != nil {
		t.Errorf("%d with %d bytes: %v", status, len(answer), err)
	}
}
