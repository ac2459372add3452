package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
)

// A service of two replicas is found, answers through the gateway with the official OpenAI SDK, its usage equals the
// engines' own count, and a replica killed under load costs no request that had not begun to stream.
func inferenceService(s *suite) {
	vars := append(s.engine(), s.provider(), `args=["-model", "sim-7b", "-token-rate", "200"]`)
	s.runExample("shared-inference.nomad.hcl", vars...)
	s.awaitAllocs("sim-llm", "running", 2)
	key := s.NewKey("endpoint", "e2e")
	if strings.HasSuffix(s.provider(), "consul") {
		s.Eventually(60*time.Second, "both replicas pass in Consul", func() error {
			n, err := s.passing("sim-llm")
			if err == nil && n != 2 {
				err = fmt.Errorf("%d pass", n)
			}
			return err
		})
	}
	s.Eventually(60*time.Second, "the gateway serves the model", func() error {
		_, status, err := s.chat(key, `{"model":"sim-7b","max_tokens":1,"messages":[]}`)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	s.openAISDK(key)
	s.openAIGo(key, "sim-7b")
	s.anthropicSDK(key, "sim-7b")
	s.openAISDKAtLimits()
	s.usageEqualsEngines()
	s.killReplicaUnderLoad(key)
}

func (s *suite) passing(service string) (int, error) {
	resp, err := http.Get(s.Consuls + "/v1/health/service/" + service + "?passing")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var list []json.RawMessage
	err = json.NewDecoder(resp.Body).Decode(&list)
	return len(list), err
}

func (s *suite) chat(key, body string) (answer string, status int, err error) {
	req, err := http.NewRequest(http.MethodPost, s.ModelURL+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), resp.StatusCode, err
}

// nodeClient runs a program of the official SDK for Node, installed from its lock file; nil where there is no npm.
func (s *suite) nodeClient(program string, args ...string) []byte {
	s.t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		s.t.Log("no npm on PATH: the official SDKs for Node were not tried")
		return nil
	}
	_, here, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(here), "openai")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@anthropic-ai", "sdk")); err != nil {
		install := exec.Command(npm, "ci", "--no-audit", "--no-fund")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			s.t.Fatalf("install the SDKs: %v\n%s", err, out)
		}
	}
	cmd := exec.Command("node", append([]string{program}, args...)...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("OpenAI SDK: %v\n%s", err, errs.String())
	}
	return out
}

// openAISDKAtLimits: the SDK waits as long as it is told to, and gives up at a budget that is used up.
func (s *suite) openAISDKAtLimits() {
	s.t.Helper()
	limited := func(name string, limit map[string]any) string {
		key := s.NewKey("endpoint", name)
		var keys struct{ Items []struct{ ID, Name string } }
		if err := s.API(http.MethodGet, "/api/v1/keys?limit=1000", nil, &keys); err != nil {
			s.t.Fatal(err)
		}
		for _, k := range keys.Items {
			if k.Name == name {
				limit["scope"], limit["subject"] = "key", k.ID
			}
		}
		if err := s.API(http.MethodPut, "/api/v1/limits", limit, nil); err != nil {
			s.t.Fatal(err)
		}
		return key
	}
	single, poor := limited("one at a time", map[string]any{"concurrency": 1}), limited("without a budget", map[string]any{"tokens_per_month": 0})
	s.Eventually(10*time.Second, "the limits hold", func() error {
		_, status, err := s.chat(poor, `{"model":"sim-7b","max_tokens":1,"messages":[]}`)
		if err == nil && status != http.StatusTooManyRequests {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	out := s.nodeClient("limits.mjs", s.ModelURL, single, poor, "sim-7b")
	if out == nil {
		return
	}
	var got struct {
		Waited struct {
			Statuses []int
			Text     string
		}
		Refused struct {
			Kind, Code, Type string
			Status           int
			Statuses         []int
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	if w := got.Waited; w.Text == "" || len(w.Statuses) < 3 || w.Statuses[1] != http.StatusTooManyRequests || w.Statuses[len(w.Statuses)-1] != http.StatusOK {
		s.t.Errorf("at the limit on requests at the same time: %s", out)
	}
	if r := got.Refused; r.Kind != "RateLimitError" || r.Code != "insufficient_quota" || r.Type != "insufficient_quota" || len(r.Statuses) != 1 {
		s.t.Errorf("at the budget: %s", out)
	}
}

// openAISDK has the official SDK use the model.
func (s *suite) openAISDK(key string) {
	s.t.Helper()
	out := s.nodeClient("client.mjs", s.ModelURL, key, "sim-7b")
	if out == nil {
		return
	}
	type usage struct {
		Completion int `json:"completion_tokens"`
		Prompt     int `json:"prompt_tokens"`
	}
	var got struct {
		Whole struct {
			Text, Model string
			Usage       usage
		}
		Streamed             string
		ChunksWithoutChoices int
		StreamUsage          *usage
		Embeddings           []int // length of each vector
		Models               []string
		Missing              struct {
			Status int
			Code   string
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	if got.Whole.Text == "" || got.Whole.Text != got.Streamed {
		s.t.Errorf("whole and streamed answers differ: %q and %q", got.Whole.Text, got.Streamed)
	}
	if got.ChunksWithoutChoices != 0 {
		s.t.Errorf("%d chunks without choices reached a client that did not ask for usage", got.ChunksWithoutChoices)
	}
	if got.Whole.Usage.Completion != 6 || got.StreamUsage == nil || *got.StreamUsage != got.Whole.Usage {
		s.t.Errorf("usage: %+v and %+v", got.Whole.Usage, got.StreamUsage)
	}
	if !slices.Equal(got.Embeddings, []int{8, 8}) || len(got.Models) != 1 || got.Missing.Status != 404 || got.Missing.Code != "model_not_found" {
		s.t.Errorf("embeddings, models or the missing model: %s", out)
	}
}

// usageEqualsEngines compares the store's sums with the engines' own counters.
func (s *suite) usageEqualsEngines() {
	s.t.Helper()
	prompt, completion := 0.0, 0.0
	for _, addr := range s.backends() {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			s.t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
		prompt += countTokens(string(page), "vllm:prompt_tokens_total")
		completion += countTokens(string(page), "vllm:generation_tokens_total")
	}
	s.Eventually(20*time.Second, "the store's usage equals the engines' count", func() error {
		p, c, err := s.usage("sim-7b")
		if err == nil && (p != prompt || c != completion || completion == 0) {
			err = fmt.Errorf("store %v and %v, engines %v and %v", p, c, prompt, completion)
		}
		return err
	})
}

func (s *suite) usage(model string) (prompt, completion float64, err error) {
	query := url.Values{"group_by": {"model"}, "from": {time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}, "to": {time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}}
	var list client.UsageSumList
	if err := s.API(http.MethodGet, "/api/v1/usage/sum?"+query.Encode(), nil, &list); err != nil {
		return 0, 0, err
	}
	for _, sum := range list.Items {
		if sum.Name == model {
			return float64(sum.PromptTokens), float64(sum.CompletionTokens), nil
		}
	}
	return 0, 0, errors.New("no row for the model")
}

// backends are the addresses of the replicas, as the agent gave them.
func (s *suite) backends() []string {
	s.t.Helper()
	var list []string
	for _, stub := range s.withStatus("sim-llm", "running") {
		var alloc api.Allocation
		if err := s.Nomads(http.MethodGet, "/v1/allocation/"+stub.ID, nil, &alloc); err != nil {
			s.t.Fatal(err)
		}
		for _, p := range alloc.AllocatedResources.Shared.Ports {
			list = append(list, fmt.Sprintf("%s:%d", p.HostIP, p.Value))
		}
	}
	return list
}

// killReplicaUnderLoad kills one of two replicas while requests come in. Every whole answer and every stream that had
// shown no event yet must succeed.
func (s *suite) killReplicaUnderLoad(key string) {
	s.t.Helper()
	victim := s.awaitAllocs("sim-llm", "running", 2)[0]
	var sent, answered, cutAfterBegin, lost atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				began, err := s.oneChat(key, worker%2 == 0)
				switch {
				case err == nil:
					answered.Add(1)
				case began:
					cutAfterBegin.Add(1)
				default:
					lost.Add(1)
					s.t.Logf("lost: %v", err)
				}
			}
		})
	}
	s.Eventually(30*time.Second, "the load runs", func() error {
		if answered.Load() < 20 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := s.Nomads(http.MethodPut, "/v1/client/allocation/"+victim.ID+"/signal", map[string]string{"Signal": "SIGKILL"}, nil); err != nil {
		s.t.Errorf("kill a replica: %v", err)
	}
	after := answered.Load() + 100
	s.Eventually(60*time.Second, "the load goes on after the kill", func() error {
		if answered.Load() < after {
			return errors.New("not yet")
		}
		return nil
	})
	close(stop)
	wg.Wait()
	s.t.Logf("%d requests, %d answered, %d cut after their first event, %d lost", sent.Load(), answered.Load(), cutAfterBegin.Load(), lost.Load())
	if lost.Load() != 0 {
		s.t.Errorf("%d requests that had not begun to stream were lost", lost.Load())
	}
}

// oneChat sends one request and reports whether an event had come when it failed.
func (s *suite) oneChat(key string, stream bool) (began bool, err error) {
	body := fmt.Sprintf(`{"model":"sim-7b","max_tokens":10,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream)
	if !stream {
		answer, status, err := s.chat(key, body)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, answer)
		}
		return false, err
	}
	req, err := http.NewRequest(http.MethodPost, s.ModelURL+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	done := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done = true
		case strings.Contains(data, `"error"`):
			return began, errors.New(data)
		default:
			began = true
		}
	}
	if err := lines.Err(); err != nil {
		return began, err
	}
	if !done {
		return began, errors.New("the stream had no end mark")
	}
	return began, nil
}
