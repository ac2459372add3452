package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

func (s *service) call(method, path string, body any, want int) map[string]any {
	s.t.Helper()
	status, header, text := s.do(method, path, s.key, body)
	if status != want {
		s.t.Fatalf("%s %s: %d %s, want %d", method, path, status, text, want)
	}
	out := map[string]any{}
	if len(text) > 0 && strings.Contains(header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &out); err != nil {
			s.t.Fatal(err)
		}
	}
	out["etag"] = header.Get("ETag")
	return out
}

func TestAPI_KeysOpenAndClose(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), anonymous(""))
	if status, _, _ := s.do(http.MethodGet, "/api/v1/gpus", "", nil); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d, want 401", status)
	}
	if status, _, _ := s.do(http.MethodGet, "/v1/jobs", "", nil); status != http.StatusUnauthorized {
		t.Errorf("Nomad's API without a key: %d, want 401", status)
	}
	operator := s.key
	made := s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": "tenant", "name": "ann", "tenant": "research", "role": "viewer"}, http.StatusCreated)
	viewer, id := made["plaintext"].(string), made["key"].(map[string]any)["id"].(string)
	s.key = viewer
	s.call(http.MethodGet, "/api/v1/gpus", nil, http.StatusOK)
	if status, body := s.get("/v1/nodes"); status != http.StatusOK {
		t.Errorf("nodes for a viewer: %d %s", status, body)
	}
	if _, _, body := s.do(http.MethodPut, "/v1/jobs", viewer, map[string]any{"Job": share("x", 1, "1GiB")}); !strings.Contains(string(body), "role viewer may not write jobs") {
		t.Errorf("a viewer's job is answered with %s", body)
	}
	s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": "endpoint", "name": "app"}, http.StatusForbidden)
	s.key = operator
	for _, kind := range []string{"node", "endpoint"} {
		other := s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": kind, "name": kind}, http.StatusCreated)["plaintext"].(string)
		for _, path := range []string{"/v1/jobs", "/api/v1/gpus"} {
			if status, _, body := s.do(http.MethodGet, path, other, nil); status != http.StatusForbidden {
				t.Errorf("%s with a key of kind %s: %d %s, want 403", path, kind, status, body)
			}
		}
	}
	if keys := s.items("/api/v1/keys"); len(keys) != 4 {
		t.Errorf("there are %d keys, want 4", len(keys))
	}
	s.call(http.MethodDelete, "/api/v1/keys/"+id, nil, http.StatusNoContent)
	eventually(t, "the deleted key stops working", func() bool {
		status, _, _ := s.do(http.MethodGet, "/api/v1/gpus", viewer, nil)
		return status == http.StatusUnauthorized
	})
	if status, body := s.get("/metrics"); status != http.StatusOK || !strings.Contains(string(body), "heteroflow_cards{") {
		t.Errorf("/metrics is %d %.200s", status, body)
	}
}

func TestAPI_TenantsKeepOutOfEachOthersJobs(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), anonymous(""))
	token := func(tenant string) string {
		return s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": "tenant", "name": tenant, "tenant": tenant}, http.StatusCreated)["plaintext"].(string)
	}
	a, b := token("a"), token("b")
	asOf := func(token string) *api.Client {
		c, err := api.NewClient(&api.Config{Address: s.addr, SecretID: token})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if _, _, err := asOf(a).Jobs().Register(share("secret", 1, "10GiB"), nil); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func(*api.Client) error{
		"register": func(c *api.Client) error {
			_, _, err := c.Jobs().Register(share("secret", 2, "10GiB"), nil)
			return err
		},
		"plan": func(c *api.Client) error {
			_, _, err := c.Jobs().Plan(share("secret", 2, "10GiB"), true, nil)
			return err
		},
		"scale": func(c *api.Client) error {
			_, _, err := c.Jobs().Scale("secret", "g", new(2), "", false, nil, nil)
			return err
		},
		"stop": func(c *api.Client) error { _, _, err := c.Jobs().Deregister("secret", false, nil); return err },
		"read": func(c *api.Client) error { _, _, err := c.Jobs().Info("secret", nil); return err },
	} {
		if err := do(asOf(b)); err == nil || !strings.Contains(err.Error(), "another tenant") {
			t.Errorf("%s by another tenant answers %v", what, err)
		}
	}
	if list, _, err := asOf(b).Jobs().List(nil); err != nil || len(list) != 0 {
		t.Errorf("another tenant sees %d jobs, %v", len(list), err)
	}
	if list, _, err := asOf(a).Jobs().List(nil); err != nil || len(list) != 1 {
		t.Errorf("the tenant sees %d jobs, %v; want its own", len(list), err)
	}
	s.key = b
	s.call(http.MethodGet, "/api/v1/jobs/secret", nil, http.StatusNotFound)
	s.call(http.MethodDelete, "/api/v1/jobs/secret", nil, http.StatusNotFound)
	eventually(t, "the share is there", func() bool { return len(s.gpus()[0]["jobs"].([]any)) == 1 })
	if use := s.gpus()[0]["jobs"].([]any)[0].(map[string]any); use["job_id"] != "" {
		t.Errorf("another tenant sees whose the share is: %v", use)
	}
}

func TestAPI_Endpoints(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	made := s.call(http.MethodPost, "/api/v1/endpoints", map[string]any{"model": "llama", "service": "llm"}, http.StatusCreated)
	path := "/api/v1/endpoints/" + made["id"].(string)
	s.call(http.MethodPost, "/api/v1/endpoints", map[string]any{"model": "llama", "service": "other"}, http.StatusConflict)
	update := func(etag, service string) (int, []byte) {
		req, err := http.NewRequest(http.MethodPut, s.addr+path, strings.NewReader(`{"model":"llama","service":"`+service+`","policy":"least_connections"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("If-Match", etag)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	if status, _ := update(made["etag"].(string), "second"); status != http.StatusOK {
		t.Errorf("update: %d", status)
	}
	if status, _ := update(made["etag"].(string), "third"); status != http.StatusPreconditionFailed {
		t.Errorf("update of an old version: %d, want 412", status)
	}
	if got := s.tree(path); got["service"] != "second" || got["policy"] != "least_connections" {
		t.Errorf("endpoint is %v", got)
	}
	s.call(http.MethodDelete, path, nil, http.StatusNoContent)
	s.call(http.MethodGet, path, nil, http.StatusNotFound)
}

func TestAPI_PluginsTakeEffectAndViewsAnswer(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.call(http.MethodPut, "/api/v1/plugins/spread", map[string]any{"enabled": true, "weight": 2}, http.StatusOK)
	s.call(http.MethodPut, "/api/v1/plugins/nothing", map[string]any{"enabled": true}, http.StatusNotFound)
	found := false
	for _, p := range s.items("/api/v1/plugins") {
		found = found || p["name"] == "spread" && p["enabled"] == true && p["weight"] == 2.0
	}
	if !found {
		t.Error("the plugin was not changed")
	}
	s.call(http.MethodPut, "/api/v1/plugins/binpack", map[string]any{"weight": 5}, http.StatusOK)
	s.call(http.MethodPost, "/api/v1/plugin-versions/1/restore", nil, http.StatusOK)
	s.call(http.MethodPost, "/api/v1/plugin-versions/9/restore", nil, http.StatusNotFound)
	s.call(http.MethodGet, "/api/v1/plugin-versions?cursor=x", nil, http.StatusBadRequest)
	versions := s.tree("/api/v1/plugin-versions?limit=2")
	if items := versions["items"].([]any); len(items) != 2 || items[0].(map[string]any)["restores"] != 1.0 || versions["next_cursor"] != "1" {
		t.Errorf("versions are %v", versions)
	}
	if items := s.items("/api/v1/plugin-versions?cursor=1"); len(items) != 1 || items[0]["version"] != 1.0 {
		t.Errorf("the oldest version is %v", items)
	}
	s.register(share("llm", 1, "20GiB"))
	s.runs("llm", 1)
	gpu := s.gpus()[0]
	if memory := gpu["memory"].(map[string]any); memory["free_mib"] != 61440.0 {
		t.Errorf("free memory is %v, want 61440 MiB", memory)
	}
	var job map[string]any
	eventually(t, "the service hears of the allocation", func() bool {
		job = s.tree("/api/v1/jobs/llm")
		return len(job["placements"].([]any)) > 0
	})
	if place := job["placements"].([]any)[0].(map[string]any); place["memory_mib"] != 20480.0 || place["card_uuids"].([]any)[0] != gpu["uuid"] {
		t.Errorf("placement is %v", place)
	}
	for _, path := range []string{
		"/health", "/ready", "/api/v1/info", "/api/v1/nodes", "/api/v1/jobs", "/api/v1/jobs/llm/explain", "/api/v1/queue",
		"/api/v1/reservations", "/api/v1/keys", "/api/v1/usage", "/api/v1/usage/sum?group_by=key", "/api/v1/openapi.yaml", "/metrics",
	} {
		if status, body := s.get(path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	s.call(http.MethodDelete, "/api/v1/jobs/llm", nil, http.StatusOK)
	eventually(t, "the card is free", func() bool { return s.usedUnits() == 0 })
}

func TestRegister_WrongBodies(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	ask := func(block string) string {
		return `{"Job":{"ID":"x","Type":"service","Datacenters":["dc1"],"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"image":"i","accelerator":[` + block + `]}}]}]}}`
	}
	for name, c := range map[string]struct{ path, body, want string }{
		"empty":               {"/v1/jobs", "", "empty"},
		"truncated":           {"/v1/jobs", `{"Job":{"ID":"x"`, "ends in the middle"},
		"not an object":       {"/v1/jobs", `[1]`, "must be an object"},
		"null":                {"/v1/jobs", `null`, "must be a JSON object"},
		"no job":              {"/v1/jobs", `{}`, "/Job"},
		"job of wrong type":   {"/v1/jobs", `{"Job":5}`, "/Job"},
		"count as text":       {"/v1/jobs", `{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Count":"two"}]}}`, "/Job/TaskGroups/0/Count"},
		"id missing":          {"/v1/jobs", `{"Job":{"Name":"x"}}`, "Job.ID"},
		"id differs":          {"/v1/job/y", `{"Job":{"ID":"x"}}`, "does not match"},
		"two jobs":            {"/v1/jobs", `{"Job":{"ID":"x"},"job":{"ID":"y"}}`, "write it once"},
		"memory over card":    {"/v1/jobs", ask(`{"memory":"100GiB"}`), "80 GiB"},
		"memory without unit": {"/v1/jobs", ask(`{"memory":"20"}`), `"20GiB"`},
		"compute too low":     {"/v1/jobs", ask(`{"memory":"20GiB","compute":5}`), "10–100"},
		"negative count":      {"/v1/jobs", ask(`{"count":-1}`), "negative"},
		"unknown brand":       {"/v1/jobs", ask(`{"vendor":["nvidea"]}`), "nvidia"},
		"absent model":        {"/v1/jobs", ask(`{"model":["H100*"]}`), "A100-SXM4-80GB"},
		"plan, count":         {"/v1/job/x/plan", `{"Job":{"ID":"x","TaskGroups":[{"Count":true}]}}`, "/Job/TaskGroups/0/Count"},
		"validate, no job":    {"/v1/validate/job", `{}`, "/Job"},
		"scale, not JSON":     {"/v1/job/x/scale", `count=2`, "not JSON"},
		"revert, wrong type":  {"/v1/job/x/revert", `{"JobID":"x","JobVersion":"one"}`, "/JobVersion"},
	} {
		status, _, body := s.do(http.MethodPost, c.path, "", c.body)
		if status < 400 || status >= 500 || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: answer is %d %s, want 4xx that says %q", name, status, body, c.want)
		}
	}
	if status, _, body := s.do(http.MethodPost, "/v1/jobs", "", `{"Job":{"ID":"`+strings.Repeat("x", 33<<20)+`"}}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %.100s", status, body)
	}
	if len(s.items("/api/v1/jobs")) != 0 {
		t.Error("a refused job was kept")
	}
}

// TestRegister_KeysInAnotherCase: Nomad takes any case, so asks must not hide in it.
func TestRegister_KeysInAnotherCase(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	body := `{"job":{"id":"x","type":"service","datacenters":["dc1"],"taskgroups":[{"name":"g","count":1,"tasks":[{"name":"t","driver":"heteroflow","config":{"image":"i","accelerator":[{"memory":"20GiB"}]}}]}]}}`
	if status, _, answer := s.do(http.MethodPut, "/v1/jobs", "", body); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	s.runs("x", 1)
	eventually(t, "the ledger holds 20 units", func() bool { return s.usedUnits() == 20 })
}

// TestRegister_WhereItIsWrong: people read the place in names, programs that ask for a problem get a pointer.
func TestRegister_WhereItIsWrong(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	for memory, want := range map[string]string{
		"20":     `group "g", task "main", accelerator.memory: memory "20" has no unit: write "20GiB" or "20MiB"`,
		"100GiB": `group "g", task "main", accelerator.memory: `,
	} {
		body, err := json.Marshal(map[string]any{"Job": share("x", 1, memory)})
		if err != nil {
			t.Fatal(err)
		}
		status, header, text := s.do(http.MethodPost, "/v1/jobs", "", string(body))
		if status != http.StatusBadRequest || !strings.HasPrefix(string(text), want) || strings.Contains(string(text), "TaskGroups") || header.Get("X-HeteroFlow-Code") != "invalid_ask" {
			t.Errorf("%s: %d %s", memory, status, text)
		}
		req, err := http.NewRequest(http.MethodPost, s.addr+"/v1/jobs", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/problem+json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var problem httpx.Problem
		if err := errors.Join(json.NewDecoder(resp.Body).Decode(&problem), resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if len(problem.Errors) != 1 || problem.Errors[0].Pointer != "/Job/TaskGroups/0/Tasks/0/Config/accelerator/0/memory" {
			t.Errorf("%s: problem is %+v", memory, problem)
		}
	}
}

// TestFirstKey_IsHandedOver: who starts the service may take the first key, once, and then it is not printed.
func TestFirstKey_IsHandedOver(t *testing.T) {
	t.Parallel()
	db := database("sqlite://" + t.TempDir() + "/state.db")
	var keys []string
	take := func(c *server.Config) {
		c.FirstKey = func(plaintext string) error { keys = append(keys, plaintext); return nil }
	}
	for range 2 {
		s := startService(t, "http://127.0.0.1:1", db, take, anonymous(""))
		if printed := s.stderr.String(); printed != "" || len(keys) != 1 {
			t.Fatalf("printed %q, handed over %d keys", printed, len(keys))
		}
		s.key = keys[0]
		s.call(http.MethodGet, "/api/v1/keys", nil, http.StatusOK)
		s.stop()
	}
}
