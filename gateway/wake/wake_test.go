package wake

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/heteroflow/heteroflow/gateway/hold"
)

// cluster answers the calls of Nomad's API that waking makes.
type cluster struct {
	mu     sync.Mutex
	jobs   []map[string]any
	status int // of scaling; 0 is 200
	read   int
	scaled []string
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Header().Set("X-Nomad-Index", "9")
	id, isJob := strings.CutPrefix(r.URL.Path, "/v1/job/")
	switch {
	case r.URL.Path == "/v1/jobs":
		if r.URL.Query().Get("namespace") != "*" {
			http.Error(w, "not all namespaces were asked for", http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(c.jobs) //nolint:errcheck // a test server
	case isJob && strings.HasSuffix(id, "/scale"):
		var ask struct {
			Count  int
			Target map[string]string
		}
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.scaled = append(c.scaled, fmt.Sprintf("%s %s %s %d %s", r.URL.Query().Get("namespace"), strings.TrimSuffix(id, "/scale"), ask.Target["Group"], ask.Count, r.Header.Get("X-Nomad-Token")))
		if c.status != 0 {
			http.Error(w, "no leader", c.status)
			return
		}
		w.Write([]byte(`{"EvalID":"e"}`)) //nolint:errcheck // a test server
	case isJob:
		c.read++
		for _, j := range c.jobs {
			if j["ID"] == id {
				json.NewEncoder(w).Encode(j) //nolint:errcheck // a test server
				return
			}
		}
		http.NotFound(w, r)
	}
}

func job(id, kind string, more map[string]any, groups ...map[string]any) map[string]any {
	j := map[string]any{"ID": id, "Name": id, "Namespace": "research", "Type": kind, "JobModifyIndex": 7, "TaskGroups": groups}
	for k, v := range more {
		j[k] = v
	}
	return j
}

func service(names ...string) []any {
	var list []any
	for _, n := range names {
		list = append(list, map[string]any{"Name": n})
	}
	return list
}

func TestWake(t *testing.T) {
	t.Parallel()
	group := func(count int, scaling any, services []any) map[string]any {
		return map[string]any{"Name": "serve", "Count": count, "Scaling": scaling, "Services": services}
	}
	for name, c := range map[string]struct {
		jobs  []map[string]any
		want  []string
		error error
	}{
		"from zero":                   {[]map[string]any{job("x", "service", nil, group(0, nil, service("db"))), job("llm", "service", nil, group(0, nil, service("llm")))}, []string{"research llm serve 1 secret"}, nil},
		"to the least":                {[]map[string]any{job("llm", "service", nil, group(0, map[string]any{"Min": 2, "Max": 4}, service("llm")))}, []string{"research llm serve 2 secret"}, nil},
		"a name with variables":       {[]map[string]any{job("llm", "service", nil, group(0, nil, service("${JOB}-${TASKGROUP}")))}, []string{"research llm serve 1 secret"}, nil},
		"it is on its way":            {[]map[string]any{job("llm", "service", nil, group(1, nil, service("llm")))}, nil, nil},
		"a job that was stopped":      {[]map[string]any{job("llm", "service", map[string]any{"Stop": true}, group(0, nil, service("llm")))}, nil, hold.ErrNothing},
		"a batch job":                 {[]map[string]any{job("llm", "batch", nil, group(0, nil, service("llm")))}, nil, hold.ErrNothing},
		"nobody registers it":         {[]map[string]any{job("x", "service", nil, group(0, nil, service("db")))}, nil, hold.ErrNothing},
		"a task of the job registers": {[]map[string]any{job("llm", "service", nil, map[string]any{"Name": "serve", "Count": 0, "Tasks": []any{map[string]any{"Name": "vllm", "Services": service("llm")}}})}, []string{"research llm serve 1 secret"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := &cluster{jobs: c.jobs}
			s := httptest.NewServer(http.HandlerFunc(fake.serve))
			defer s.Close()
			n, err := NewNomad(s.URL, "secret")
			if err != nil {
				t.Fatal(err)
			}
			want := "llm"
			if name == "a name with variables" {
				want = "llm-serve"
			}
			if err := n.Wake(t.Context(), want); !errors.Is(err, c.error) {
				t.Errorf("got %v, want %v", err, c.error)
			}
			if fmt.Sprint(fake.scaled) != fmt.Sprint(c.want) {
				t.Errorf("scaled %q, want %q", fake.scaled, c.want)
			}
		})
	}
}

// Jobs that have not changed are not read again, and an error says what was being done.
func TestWake_AgainAndInTrouble(t *testing.T) {
	t.Parallel()
	fake := &cluster{status: http.StatusInternalServerError, jobs: []map[string]any{
		job("a", "service", nil, map[string]any{"Name": "g", "Count": 1}),
		job("llm", "service", nil, map[string]any{"Name": "serve", "Count": 0, "Services": service("llm")}),
	}}
	s := httptest.NewServer(http.HandlerFunc(fake.serve))
	n, err := NewNomad(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := n.Wake(t.Context(), "llm"); err == nil || errors.Is(err, hold.ErrNothing) || !strings.Contains(err.Error(), "scale group serve of job llm from 0 to 1") {
			t.Errorf("got %v", err)
		}
	}
	if fake.read != 2 {
		t.Errorf("%d jobs were read", fake.read)
	}
	s.Close()
	if err := n.Wake(t.Context(), "llm"); err == nil || errors.Is(err, hold.ErrNothing) {
		t.Errorf("with nobody there: %v", err)
	}
}
