package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/store"
)

// form is audio with the model after the file.
func form(tb testing.TB, size int, model string) (raw []byte, kind string) {
	tb.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", "a.wav")
	if err != nil {
		tb.Fatal(err)
	}
	part.Write(bytes.Repeat([]byte{0, '\r', '\n', '-', 255}, size/5)) //nolint:errcheck // a buffer takes everything
	w.WriteField("model", model)                                      //nolint:errcheck // a buffer takes everything
	w.Close()                                                         //nolint:errcheck // a buffer takes everything
	return b.Bytes(), w.FormDataContentType()
}

// TestSurface_EveryPathReachesTheEngine covers P75: rerank and score with and without /v1, and all the others.
func TestSurface_EveryPathReachesTheEngine(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{e}})
	for _, path := range relay.Paths() {
		operation, _ := relay.Find(path)
		body, kind := []byte(whole), "application/json"
		if operation.Form {
			body, kind = form(t, 100, "m")
		}
		g := b.call(http.MethodPost, path+"?x=1", kind, bytes.NewReader(body))
		if g.status != http.StatusOK || g.err != nil {
			t.Errorf("%s: %d %s %v", path, g.status, g.body, g.err)
			b.row()
			continue
		}
		seen := receive(t, e.Arrived(), "a call")
		if seen.Path != path+"?x=1" || !bytes.Equal(seen.Body, body) || seen.Header.Get("Content-Type") != kind {
			t.Errorf("%s: the engine saw %s, %d bytes of %d", path, seen.Path, len(seen.Body), len(body))
		}
		row := b.row()
		if row.Operation != operation.Name || row.End != store.EndDone || row.Model != "m" || operation.Text && row.PromptTokens == nil {
			t.Errorf("%s: %+v", path, row)
		}
		if g := b.call(http.MethodGet, path, kind, nil); g.status != http.StatusMethodNotAllowed || !strings.Contains(g.body, "use POST") {
			t.Errorf("GET %s: %d %s", path, g.status, g.body)
		}
	}
}

func TestSurface_PathsOfTheEnginesOwn(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{e}, tags: []string{discover.PathTag + "/pooling", discover.ModelTag + "n"}})
	if g := b.post("/pooling", whole); g.status != http.StatusOK || len(e.Ledger()) != 1 || b.row().Operation != "pooling" {
		t.Errorf("a path that was opened: %d %s", g.status, g.body)
	}
	for _, path := range []string{"/classify", "/v1/files", "/v1", "/"} {
		g := b.post(path, whole)
		if g.status != http.StatusNotFound || !strings.Contains(g.body, "Unknown request URL: POST "+path) || !strings.Contains(g.body, discover.PathTag) {
			t.Errorf("%s: %d %s", path, g.status, g.body)
		}
	}
	if g := b.call(http.MethodGet, "/pooling", "application/json", nil); g.status != http.StatusNotFound || !strings.Contains(g.body, "unknown_url") {
		t.Errorf("GET: %d %s", g.status, g.body)
	}
	if len(e.Ledger()) != 1 {
		t.Error("a path that is not open reached the engine")
	}
}

// TestP72_ModelsAreThoseThatMayBeCalled: every listed name can be called, and no other.
func TestP72_ModelsAreThoseThatMayBeCalled(t *testing.T) {
	t.Parallel()
	b := setUp(t, of{
		engines: []*mockengine.Engine{mockengine.New(t)}, tags: []string{discover.ModelTag + "alias"},
		rows: []store.Endpoint{{ID: "e", Tenant: "default", Model: "mine", Service: "llm"}},
	})
	eventually(t, "the endpoint is in the table", func() bool { _, ok := b.h.table.Lookup("mine"); return ok })
	var list struct {
		Object string
		Data   []struct{ ID string }
	}
	g := b.call(http.MethodGet, "/v1/models", "", nil)
	if err := json.Unmarshal([]byte(g.body), &list); err != nil || list.Object != "list" {
		t.Fatalf("%s: %v", g.body, err)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
		if g := b.post(chat, `{"model":"`+m.ID+`","messages":[]}`); g.status != http.StatusOK {
			t.Errorf("%s is listed and answers %d %s", m.ID, g.status, g.body)
		}
		if g := b.call(http.MethodGet, "/v1/models/"+m.ID, "", nil); g.status != http.StatusOK {
			t.Errorf("%s is listed and not found: %s", m.ID, g.body)
		}
	}
	if want := []string{"alias", "m", "mine"}; !slices.Equal(names, want) {
		t.Errorf("models %v, want %v", names, want)
	}
	if g := b.call(http.MethodGet, "/v1/models", "", nil, "Anthropic-Version", "2023-06-01"); !strings.Contains(g.body, `"has_more":false`) || !strings.Contains(g.body, `"type":"model"`) {
		t.Errorf("for Anthropic's clients: %s", g.body)
	}
}

// TestP73_TheNameThatWasAsked: an alias is answered by its name, whole and in every event of every protocol.
func TestP73_TheNameThatWasAsked(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{e}, tags: []string{discover.ServedTag + "Qwen/Qwen3-8B"}})
	for _, path := range []string{chat, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"} {
		for _, body := range []string{whole, streamed} {
			if path == "/v1/embeddings" && body == streamed {
				continue
			}
			g := b.post(path, body)
			seen := receive(t, e.Arrived(), "a call")
			if g.status != http.StatusOK || strings.Contains(g.body, "Qwen") || !strings.Contains(g.body, `"model":"m"`) {
				t.Errorf("%s %s: %d %.300s", path, body, g.status, g.body)
			}
			if !strings.Contains(string(seen.Body), `"model":"Qwen/Qwen3-8B"`) {
				t.Errorf("%s: the engine was asked %s", path, seen.Body)
			}
			if row := b.row(); row.Model != "m" || row.ServedModel != "Qwen/Qwen3-8B" {
				t.Errorf("%s: %+v", path, row)
			}
		}
	}
}

// TestP76_LargeAudio: 25 MB with the model after the file arrive byte by byte, also at the second backend and with an alias.
func TestP76_LargeAudio(t *testing.T) {
	t.Parallel()
	down := mockengine.New(t, mockengine.Behaviour{Status: http.StatusServiceUnavailable, Body: "{}"})
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{down, e}, tags: []string{discover.ServedTag + "whisper-large-v3"}})
	raw, kind := form(t, 25<<20, "m")
	for name, body := range map[string]io.Reader{"with a length": bytes.NewReader(raw), "in chunks": struct{ io.Reader }{bytes.NewReader(raw)}} {
		g := b.call(http.MethodPost, "/v1/audio/transcriptions", kind, body)
		row := b.row()
		if g.status != http.StatusOK || row.Backend != "e1" || row.Model != "m" {
			t.Errorf("%s: %d %s; %+v", name, g.status, g.body, row)
		}
		seen := receive(t, e.Arrived(), "the upload")
		if want := bytes.Replace(raw, []byte("\r\n\r\nm\r\n"), []byte("\r\n\r\nwhisper-large-v3\r\n"), 1); !bytes.Equal(seen.Body, want) {
			t.Errorf("%s: %d bytes arrived, %d were sent", name, len(seen.Body), len(want))
		}
		if seen.Header.Get("Content-Type") != kind {
			t.Errorf("%s: content type %q", name, seen.Header.Get("Content-Type"))
		}
	}
}

// TestP78_EngineOnlyFields: whatever an engine alone knows arrives as it is.
func TestP78_EngineOnlyFields(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{e}, tags: []string{discover.ServedTag + "real"}})
	const body = `{ "model" : "m","top_k":5,"min_p":0.05,"chat_template_kwargs":{"enable_thinking":false},"repetition_penalty":1.1,"guided_json":{"type":"object"},` +
		`"ignore_eos":true,"stop_token_ids":[1,2],"skip_special_tokens":false,"mm_processor_kwargs":{},"priority":3,"cache_salt":"a","seed":12345678901234567890,"messages":[{"role":"user","content":"\u4f60\n"}]}`
	if g := b.post(chat, body); g.status != http.StatusOK {
		t.Fatal(g.body)
	}
	if got, want := string(e.Ledger()[0].Body), strings.Replace(body, `"m"`, `"real"`, 1); got != want {
		t.Errorf("the engine saw\n%s\nwant\n%s", got, want)
	}
}

// TestP79_LargeBodies: 1, 10 and 60 MB pass both ways; above the limit the answer names it before all has been read.
func TestP79_LargeBodies(t *testing.T) {
	t.Parallel()
	big := `{"data":[{"embedding":[` + strings.Repeat("-0.0123456,", 40<<20/11) + `1]}],"model":"real","usage":{"prompt_tokens":9,"total_tokens":9}}`
	e := mockengine.New(t, mockengine.Behaviour{}, mockengine.Behaviour{}, mockengine.Behaviour{}, mockengine.Behaviour{Body: big})
	b := setUp(t, of{engines: []*mockengine.Engine{e}})
	for _, size := range []int{1 << 20, 10 << 20, 60 << 20} {
		body := `{"model":"m","messages":[{"role":"user","content":[{"image_url":{"url":"data:image/png;base64,` + strings.Repeat("QUJD", size/4) + `"}}]}]}`
		if g := b.post(chat, body); g.status != http.StatusOK {
			t.Errorf("%d bytes: %d %.200s", size, g.status, g.body)
		}
		if seen := receive(t, e.Arrived(), "a call"); string(seen.Body) != body {
			t.Errorf("%d bytes became %d", len(body), len(seen.Body))
		}
		if row := b.row(); row.End != store.EndDone {
			t.Errorf("%+v", row)
		}
	}
	g := b.post("/v1/embeddings", `{"model":"m","input":"a"}`)
	if want := strings.Replace(big, `"real"`, `"m"`, 1); g.status != http.StatusOK || g.body != want {
		t.Errorf("an answer of %d bytes became %d, status %d", len(big), len(g.body), g.status)
	}
	if row := b.row(); tokens(row.PromptTokens) != 9 || tokens(row.CompletionTokens) != 0 || row.End != store.EndDone {
		t.Errorf("usage at the end of a long answer: %+v", row)
	}
	touched := len(e.Ledger())
	c := b.dial(chat, "") // says that a gigabyte comes, and sends nothing of it
	c.Close()
	for _, path := range []string{chat, "/v1/messages"} {
		req, err := http.NewRequest(http.MethodPost, b.url+path, io.LimitReader(zeros{}, 1<<30))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 1 << 30
		req.Header.Set("Expect", "100-continue")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge || err != nil || !strings.Contains(string(raw), "limit of 67108864 bytes") {
			t.Errorf("%s: %d %s, %v", path, resp.StatusCode, raw, err)
		}
		for row := b.row(); row.Status != http.StatusRequestEntityTooLarge; row = b.row() {
			continue
		}
	}
	chunked := b.call(http.MethodPost, chat, "application/json", io.LimitReader(zeros{}, 65<<20))
	if chunked.err == nil && chunked.status != http.StatusRequestEntityTooLarge {
		t.Errorf("in chunks: %d %s", chunked.status, chunked.body)
	}
	if len(e.Ledger()) != touched {
		t.Error("a body over the limit reached the engine")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestP82_HopByHopAndLoops: headers of one connection stay on it, keys stay here, and a gateway that is its own backend
// answers 508.
func TestP82_HopByHopAndLoops(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	b := setUp(t, of{engines: []*mockengine.Engine{e}})
	g := b.post(chat, whole, "Connection", "X-Secret", "X-Secret", "1", "Te", "trailers", "Upgrade", "h2c", "Keep-Alive", "5",
		"Authorization", "Bearer sk-1234567890", "X-Api-Key", "sk-1234567890", "Api-Key", "sk-1234567890", "Cookie", "a=b", "Via", "1.1 front", "X-Custom", "kept")
	if g.status != http.StatusOK {
		t.Fatal(g.body)
	}
	h := e.Ledger()[0].Header
	for _, name := range []string{"X-Secret", "Te", "Upgrade", "Keep-Alive", "Authorization", "X-Api-Key", "Api-Key", "Cookie", "Connection"} {
		if h.Get(name) != "" {
			t.Errorf("%s reached the engine", name)
		}
	}
	if via := h.Values("Via"); len(via) != 2 || via[0] != "1.1 front" || h.Get("X-Custom") != "kept" {
		t.Errorf("the engine saw %v", h)
	}

	loop := setUp(t, of{addrs: []string{"127.0.0.1:1"}})
	target, _ := loop.h.table.Lookup("m")
	target.Pool.Set(backendAt(loop.addr))
	got := loop.post(chat, whole)
	if got.status != http.StatusLoopDetected || !strings.Contains(got.body, "loop_detected") {
		t.Errorf("a gateway that is its own backend: %d %s", got.status, got.body)
	}
	if row := loop.row(); row.Status != http.StatusLoopDetected || row.Tries != 1 {
		t.Errorf("%+v", row)
	}
	var far []string
	for n := range 9 {
		far = append(far, fmt.Sprintf("1.1 heteroflow-%d", n))
	}
	if got := b.post(chat, whole, "Via", strings.Join(far, ", ")); got.status != http.StatusLoopDetected {
		t.Errorf("after nine gateways: %d", got.status)
	}
}

// TestP83_TraceAndSessionHeaders are passed on, and a request's id is made where there is none.
func TestP83_TraceAndSessionHeaders(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t, mockengine.Behaviour{Header: http.Header{"X-Request-Id": {"of the engine"}}})
	b := setUp(t, of{engines: []*mockengine.Engine{e}})
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	g := b.post(chat, whole, "Traceparent", trace, "Tracestate", "a=1", "X-Session-Id", "s", "X-Request-Id", "mine")
	h := e.Ledger()[0].Header
	if h.Get("Traceparent") != trace || h.Get("Tracestate") != "a=1" || h.Get("X-Session-Id") != "s" || h.Get("X-Request-Id") != "mine" || g.header.Get("X-Request-Id") != "mine" {
		t.Errorf("the engine saw %v, the client %v", h, g.header)
	}
	g = b.post(chat, whole)
	if id := g.header.Get("X-Request-Id"); !strings.HasPrefix(id, "req-") || e.Ledger()[1].Header.Get("X-Request-Id") != id {
		t.Errorf("made %q, the engine saw %v", id, e.Ledger()[1].Header)
	}
}

// TestBadInput_OneClearErrorEach: nothing of it touches a backend, and nothing of it is logged.
func TestBadInput_OneClearErrorEach(t *testing.T) {
	t.Parallel()
	e := mockengine.New(t)
	log, out := logged()
	b := setUp(t, of{engines: []*mockengine.Engine{e}, log: log})
	const secret = "a secret prompt"
	for name, c := range map[string]struct {
		body, want string
		header     []string
		status     int
	}{
		"cut short":        {`{"model":"m","prompt":"` + secret, "ends in the middle", nil, 400},
		"nested":           {`{"model":"m","prompt":"` + secret + `","x":` + strings.Repeat("[", 100_000), "more than 256 deep", nil, 400},
		"a name twice":     {`{"model":"m","prompt":"` + secret + `","model":"n"}`, "there twice", nil, 400},
		"Latin-1":          {"{\"model\":\"m\",\"prompt\":\"" + secret + "\xe9\"}", "not UTF-8", nil, 400},
		"UTF-16":           {"\xff\xfe{\x00\"\x00", "not UTF-8", nil, 400},
		"packed":           {"\x1f\x8b\x08", "Content-Encoding", []string{"Content-Encoding", "gzip"}, 415},
		"an unknown model": {`{"model":"gpt-9","prompt":"` + secret + `"}`, "does not exist", nil, 404},
		"no body":          {"", "not a JSON object", nil, 400},
	} {
		for _, path := range []string{chat, "/v1/messages"} {
			g := b.post(path, c.body, c.header...)
			var shape struct {
				Type  string
				Error struct{ Message, Type string }
			}
			if err := json.Unmarshal([]byte(g.body), &shape); err != nil || shape.Error.Type == "" || (path == "/v1/messages") != (shape.Type == "error") {
				t.Errorf("%s at %s: the shape of %s", name, path, g.body)
			}
			if g.status != c.status || !strings.Contains(shape.Error.Message, c.want) {
				t.Errorf("%s at %s: %d %s", name, path, g.status, g.body)
			}
			if row := b.row(); row.End != store.EndRefused || row.Status != c.status || tokens(row.PromptTokens) != 0 || row.Tries != 0 {
				t.Errorf("%s: %+v", name, row)
			}
		}
	}
	if len(e.Ledger()) != 0 {
		t.Error("the engine was touched")
	}
	if strings.Contains(out.String(), secret) || strings.Contains(out.String(), "gpt-9") {
		t.Errorf("the log repeats what was sent:\n%s", out)
	}
}

// TestKeys_InTheWrongPlace get told what to write.
func TestKeys_InTheWrongPlace(t *testing.T) {
	t.Parallel()
	b := setUp(t, of{engines: []*mockengine.Engine{mockengine.New(t)}, keys: no{}})
	for _, c := range []struct {
		path, want string
		header     []string
	}{
		{chat, "no scheme Bearer", []string{"Authorization", "hf-endpoint-0123456789abcdef"}},
		{chat, "Api-Key is not read", []string{"Api-Key", "hf-endpoint-0123456789abcdef"}},
		{chat + "?api_key=hf-endpoint-0123456789abcdef", "URL is not read", nil},
		{chat, "****cdef", []string{"X-Api-Key", "hf-endpoint-0123456789abcdef"}},
		{"/v1/messages", "****cdef", []string{"X-Api-Key", "hf-endpoint-0123456789abcdef"}},
	} {
		g := b.post(c.path, whole, c.header...)
		if g.status != http.StatusUnauthorized || !strings.Contains(g.body, c.want) || strings.Contains(g.body, "0123456789") {
			t.Errorf("%s %v: %d %s", c.path, c.header, g.status, g.body)
		}
	}
}
