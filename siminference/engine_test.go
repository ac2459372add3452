package siminference

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func start(t *testing.T, cfg Config) (*Engine, *httptest.Server) {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = "sim-7b"
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(e.Handler())
	t.Cleanup(s.Close)
	return e, s
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestChat_WholeAndStreamCountAlike(t *testing.T) {
	t.Parallel()
	e, s := start(t, Config{})
	const ask = `{"model":"sim-7b","messages":[{"role":"user","content":"Hello, 世界"}],"max_tokens":5`
	_, whole := post(t, s.URL+"/v1/chat/completions", ask+`}`)
	var answer struct {
		Choices []struct {
			Message struct{ Content string }
		}
		Usage usage
	}
	if err := json.Unmarshal([]byte(whole), &answer); err != nil {
		t.Fatal(err)
	}
	want := usage{PromptTokens: 4, CompletionTokens: 5, TotalTokens: 9}
	if diff := cmp.Diff(want, answer.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	resp, stream := post(t, s.URL+"/v1/chat/completions", ask+`,"stream":true,"stream_options":{"include_usage":true}}`)
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		t.Errorf("content type %q", got)
	}
	var text strings.Builder
	var streamed usage
	events := 0
	for _, line := range strings.Split(stream, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		events++
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *usage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Delta.Content)
		}
		if chunk.Usage != nil {
			streamed = *chunk.Usage
		}
	}
	if events != 7 || !strings.HasSuffix(stream, "data: [DONE]\n\n") {
		t.Errorf("want 5 words, a last chunk, a usage chunk and the end mark, got %d events:\n%s", events, stream)
	}
	if text.String() != answer.Choices[0].Message.Content || streamed != want {
		t.Errorf("stream and whole differ: %q %+v, %q", text.String(), streamed, answer.Choices[0].Message.Content)
	}
	if _, body := post(t, s.URL+"/v1/chat/completions", ask+`,"stream":true}`); strings.Contains(body, `"usage"`) {
		t.Error("usage must come only when asked for, as vLLM does")
	}
	if page := scrape(t, s.URL); !strings.Contains(page, `vllm:generation_tokens_total{model_name="sim-7b"} 15`) || !strings.Contains(page, `vllm:prompt_tokens_total{model_name="sim-7b"} 12`) {
		t.Errorf("own counters differ from what was answered:\n%s", page)
	}
	if !e.Ready() {
		t.Error("no start-up delay: ready at once")
	}
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestGenerate_ClientLeaves(t *testing.T) {
	t.Parallel()
	_, s := start(t, Config{TokensPerSec: 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", strings.NewReader(`{"model":"sim-7b","prompt":"a","max_tokens":100000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	resp.Body.Close()
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(scrape(t, s.URL), `vllm:num_requests_running{model_name="sim-7b"} 0`) {
		if time.Now().After(deadline) {
			t.Fatal("the engine goes on after its client left")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	_, s := start(t, Config{})
	for name, tc := range map[string]struct {
		path, body string
		want       int
	}{
		"another model":     {"/v1/chat/completions", `{"model":"gpt-4","messages":[]}`, http.StatusNotFound},
		"not JSON":          {"/v1/chat/completions", `{`, http.StatusBadRequest},
		"no tokens":         {"/v1/completions", `{"model":"sim-7b","prompt":"a","max_tokens":0}`, http.StatusBadRequest},
		"a prompt of parts": {"/v1/completions", `{"model":"sim-7b","prompt":["a","b"]}`, http.StatusOK},
	} {
		if resp, body := post(t, s.URL+tc.path, tc.body); resp.StatusCode != tc.want {
			t.Errorf("%s: want %d, got %d: %s", name, tc.want, resp.StatusCode, body)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("an engine without a model name must be refused")
	}
}

func TestHealth_WhileLoading(t *testing.T) {
	t.Parallel()
	e, s := start(t, Config{StartupDelay: time.Hour})
	resp, err := http.Get(s.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || e.Ready() {
		t.Errorf("loading: want 503, got %d", resp.StatusCode)
	}
	if resp, _ := post(t, s.URL+"/v1/embeddings", `{"model":"sim-7b","input":"x"}`); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("loading: want 503, got %d", resp.StatusCode)
	}
}

func TestEmbeddings_DependOnTheTextAlone(t *testing.T) {
	t.Parallel()
	_, s := start(t, Config{})
	_, body := post(t, s.URL+"/v1/embeddings", `{"model":"sim-7b","input":["a b","a b","c"]}`)
	var got struct {
		Data  []struct{ Embedding []float64 }
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != 3 || got.Usage.PromptTokens != 5 || !cmp.Equal(got.Data[0], got.Data[1]) || cmp.Equal(got.Data[0], got.Data[2]) {
		t.Errorf("embeddings: %s", body)
	}
}

func TestEmbeddings_PackedAsTheSDKsAsk(t *testing.T) {
	t.Parallel()
	_, s := start(t, Config{})
	_, body := post(t, s.URL+"/v1/embeddings", `{"model":"sim-7b","input":"a b","encoding_format":"base64"}`)
	var got struct {
		Data []struct{ Embedding []byte } // Go reads base64 into bytes
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Data) != 1 {
		t.Fatalf("%v in %s", err, body)
	}
	want := vector("a b")
	if len(got.Data[0].Embedding) != 4*len(want) {
		t.Fatalf("%d bytes for %d numbers", len(got.Data[0].Embedding), len(want))
	}
	for i, x := range want {
		if y := math.Float32frombits(binary.LittleEndian.Uint32(got.Data[0].Embedding[4*i:])); y != float32(x) {
			t.Errorf("number %d is %v, want %v", i, y, x)
		}
	}
}

func FuzzCountTokens(f *testing.F) {
	f.Add("Hello, 世界 42")
	f.Fuzz(func(t *testing.T, s string) {
		if n := CountTokens(s); n < 0 || n > len(s) {
			t.Errorf("%q: %d", s, n)
		}
	})
}
