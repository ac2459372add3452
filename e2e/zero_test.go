package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A model whose service has no instance is served: its requests wait at the gateway, one start is asked for, it is admitted
// like any other, and the first instance answers them all.
func scaledToZero(s *suite) {
	vars := append(s.engine(), s.provider(), "replicas=0", `args=["-model", "sim-7b", "-token-rate", "200"]`)
	s.runExample("shared-inference.nomad.hcl", vars...)
	var made struct{ ID string }
	if err := s.API(http.MethodPost, "/api/v1/endpoints", map[string]any{"model": "sim-7b", "service": "sim-llm", "tenant": "default"}, &made); err != nil {
		s.t.Fatal(err)
	}
	key := s.NewKey("endpoint", "zero")
	s.Eventually(30*time.Second, "the gateway knows the endpoint", func() error {
		req, err := http.NewRequest(http.MethodGet, s.ModelURL+"/models/sim-7b", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	began := time.Now()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			stream := []string{"true", "false"}[i%2]
			answer, status, err := s.chat(key, `{"model":"sim-7b","max_tokens":2,"stream":`+stream+`,"messages":[{"role":"user","content":"hi"}]}`)
			if err != nil || status != http.StatusOK || i%2 == 0 && !strings.Contains(answer, "[DONE]") {
				s.t.Errorf("request %d: %d %v %s", i, status, err, answer)
			}
		})
	}
	all.Wait()
	s.t.Logf("20 requests at zero were answered after %v", time.Since(began).Round(100*time.Millisecond))
	s.awaitAllocs("sim-llm", "running", 1)
	if err := s.API(http.MethodDelete, "/api/v1/endpoints/"+made.ID, nil, nil); err != nil {
		s.t.Error(err)
	}
}
