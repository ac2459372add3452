package inference_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/inference"
	"github.com/heteroflow/heteroflow/siminference"
)

func models(owner string, ids ...string) string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","created":1,"owned_by":%q}`, id, owner))
	}
	return `{"object":"list","data":[` + strings.Join(list, ",") + `]}`
}

// Answers are written from the engines' documentation; none was recorded.
func TestIdentify(t *testing.T) {
	t.Parallel()
	const qwen = "Qwen/Qwen3-8B"
	for name, c := range map[string]struct {
		answers map[string]string
		want    inference.Engine
		none    bool
	}{
		"vLLM":                        {map[string]string{"/v1/models": models("vllm", qwen, "lora"), "/version": `{"version":"0.10.1"}`}, inference.Engine{Kind: "vllm", Version: "0.10.1", Models: []string{qwen, "lora"}}, false},
		"vLLM that wants a key":       {map[string]string{"/version": `{"version":"0.10.1"}`, "/metrics": "# HELP x\nvllm:num_requests_running 0\n"}, inference.Engine{Kind: "vllm", Version: "0.10.1"}, false},
		"SGLang":                      {map[string]string{"/v1/models": models("sglang", qwen), "/server_info": `{"version":"0.5.9","tp_size":1}`}, inference.Engine{Kind: "sglang", Version: "0.5.9", Models: []string{qwen}}, false},
		"SGLang of before":            {map[string]string{"/v1/models": models("sglang", qwen), "/get_server_info": `{"version":"0.4.3"}`}, inference.Engine{Kind: "sglang", Version: "0.4.3", Models: []string{qwen}}, false},
		"SGLang that wants a key":     {map[string]string{"/get_model_info": `{"model_path":"x","is_generation":true}`}, inference.Engine{Kind: "sglang"}, false},
		"llama.cpp":                   {map[string]string{"/v1/models": models("llamacpp", "qwen.gguf"), "/props": `{"build_info":"b8681-9fcad3e","total_slots":4}`}, inference.Engine{Kind: "llama.cpp", Version: "b8681-9fcad3e", Models: []string{"qwen.gguf"}}, false},
		"TensorRT-LLM":                {map[string]string{"/v1/models": models("tensorrt_llm", qwen), "/version": `{"version":"1.0.0"}`}, inference.Engine{Kind: "tensorrt-llm", Version: "1.0.0", Models: []string{qwen}}, false},
		"MindIE":                      {map[string]string{"/v1/models": models("MindIE Server", "llama_65b"), "/v2": `{"name":"MindIE Server","version":"1.0.0","extensions":{}}`}, inference.Engine{Kind: "mindie", Version: "1.0.0", Models: []string{"llama_65b"}}, false},
		"somebody's own":              {map[string]string{"/v1/models": models("me", "m")}, inference.Engine{Kind: "other", Models: []string{"m"}}, false},
		"a version that is no text":   {map[string]string{"/v1/models": models("vllm", "m"), "/version": `{"version":{"a":1}}`}, inference.Engine{Kind: "vllm", Models: []string{"m"}}, false},
		"names that spoil a line":     {map[string]string{"/v1/models": `{"data":[{"id":"a\u001b[2J\n","owned_by":"vllm"},{"id":"\n"}]}`}, inference.Engine{Kind: "vllm", Models: []string{"a[2J"}}, false},
		"a web server":                {map[string]string{"/version": `{"version":"1"}`, "/v2": `<html>`}, inference.Engine{}, true},
		"nothing":                     {nil, inference.Engine{}, true},
		"a list that is none":         {map[string]string{"/v1/models": `[1,2]`}, inference.Engine{}, true},
		"an object without its field": {map[string]string{"/v1/models": `{"data":[]}`, "/props": `null`}, inference.Engine{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Errorf("%s %s is more than reading", r.Method, r.URL)
				}
				if body, ok := c.answers[r.URL.Path]; ok {
					fmt.Fprint(w, body)
					return
				}
				http.NotFound(w, r)
			}))
			t.Cleanup(s.Close)
			got, err := inference.Identify(context.Background(), s.Client(), s.URL+"/")
			if c.none != errors.Is(err, inference.ErrNoEngine) {
				t.Fatalf("error is %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestIdentify_OurOwn(t *testing.T) {
	t.Parallel()
	e, err := siminference.New(siminference.Config{Model: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(e.Handler())
	t.Cleanup(s.Close)
	got, err := inference.Identify(context.Background(), s.Client(), s.URL)
	if err != nil || got.Kind != inference.Simulated || !cmp.Equal(got.Models, []string{"tiny"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestIdentify_AnswersWithoutEnd(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(`{"data":[` + strings.Repeat(`{"id":"x"},`, 1000))); err != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if e, err := inference.Identify(ctx, s.Client(), s.URL); !errors.Is(err, inference.ErrNoEngine) {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestEngine_String(t *testing.T) {
	t.Parallel()
	e := inference.Engine{Kind: "vllm", Version: "1", Models: []string{"a", "b", "c", "d", "e"}}
	if got := e.String(); got != "vllm 1 with a, b, c and 2 more" {
		t.Error(got)
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add(models("vllm", "m"), `{"version":"1"}`)
	f.Add(`{"data":[{"id":1}]}`, `{"build_info":"\u0000"}`)
	f.Fuzz(func(t *testing.T, list, other string) {
		client := &http.Client{Transport: answer(func(path string) string {
			if path == "/v1/models" {
				return list
			}
			return other
		})}
		e, err := inference.Identify(context.Background(), client, "http://x")
		if err == nil && e.Kind == "" {
			t.Error("an engine of no kind")
		}
		if strings.ContainsFunc(e.String(), func(r rune) bool { return r < ' ' }) || len(e.Models) > 64 {
			t.Errorf("%q", e)
		}
	})
}

type answer func(path string) string

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	fmt.Fprint(w, a(r.URL.Path))
	return w.Result(), nil
}
