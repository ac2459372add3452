package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// openAIGo has the official OpenAI client for Go use the model, whole and streamed.
func (s *suite) openAIGo(key, model string) {
	s.t.Helper()
	_, here, _, _ := runtime.Caller(0)
	program := filepath.Join(s.t.TempDir(), "openaigo")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(filepath.Dir(here), "openaigo") // a module of its own
	if out, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("build with the OpenAI client: %v\n%s", err, out)
	}
	var errs bytes.Buffer
	ask := exec.Command(program, s.ModelURL, key, model)
	ask.Stderr = &errs
	out, err := ask.Output()
	if err != nil {
		s.t.Fatalf("OpenAI client for Go: %v\n%s", err, errs.String())
	}
	type answer struct {
		Text              string
		Completion, Total int
	}
	var got struct {
		Whole, Streamed, Counted answer
		Embeddings               []int // length of each vector
		Models                   []string
		Missing                  struct {
			Status int
			Code   string
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	if got.Whole.Text == "" || got.Whole.Text != got.Streamed.Text || got.Whole.Completion != 6 || got.Counted != got.Whole || got.Streamed.Total != 0 {
		s.t.Errorf("whole and streamed answers or their usage: %s", out)
	}
	if !slices.Equal(got.Embeddings, []int{8, 8}) || !slices.Equal(got.Models, []string{model}) || got.Missing.Status != 404 || got.Missing.Code != "model_not_found" {
		s.t.Errorf("embeddings, models or the missing model: %s", out)
	}
}

// anthropicSDK has the official Anthropic client for Node use the model, whole and streamed.
func (s *suite) anthropicSDK(key, model string) {
	s.t.Helper()
	out := s.nodeClient("anthropic.mjs", strings.TrimSuffix(s.ModelURL, "/v1"), key, model)
	if out == nil {
		return
	}
	type usage struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
	var got struct {
		Whole struct {
			Text, Model, Stop string
			Usage             usage
		}
		Streamed string
		Last     struct {
			Text, Stop string
			Usage      usage
		}
		Models  []string
		Missing struct {
			Status     int
			Type, Name string
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	if got.Whole.Text == "" || got.Whole.Model != model || got.Whole.Text != got.Streamed || got.Streamed != got.Last.Text {
		s.t.Errorf("whole and streamed answers differ: %s", out)
	}
	if got.Whole.Usage.Output != 6 || got.Last.Usage != got.Whole.Usage || got.Whole.Stop != "max_tokens" || got.Last.Stop != "max_tokens" {
		s.t.Errorf("usage or end: %s", out)
	}
	if !slices.Equal(got.Models, []string{model}) || got.Missing.Status != 404 || got.Missing.Type != "not_found_error" {
		s.t.Errorf("models or the missing model: %s", out)
	}
}
