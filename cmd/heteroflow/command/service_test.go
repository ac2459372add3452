package command

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/version"
)

const cards = `{"as_of":"2026-01-01T00:00:00Z","items":[
{"uuid":"GPU-2","vendor":"nvidia","model":"A100-SXM4-80GB","index":1,"node_id":"n1","node_name":"gpu-1","group":"nvidia/vgpu/A100-SXM4-80GB-1","form":"shared","switchable":true,"healthy":true,"memory":{"total_mib":81920,"used_mib":20480,"free_mib":61440},"units":{"total":80,"used":20,"free":60,"unit_mib":1024},"modes":["mps"],"jobs":[{"namespace":"default","job_id":"llm","task_group":"g","task":"t","alloc_id":"a","units":20}],"pci_address":"0000:3b:00.0","numa_node":1,"driver_version":"550.54"},
{"uuid":"GPU-1","vendor":"nvidia","model":"A100-SXM4-80GB","index":0,"node_id":"n1","node_name":"gpu-1","group":"nvidia/gpu/A100-SXM4-80GB","form":"whole","switchable":false,"healthy":true,"memory":{"total_mib":81920,"used_mib":0,"free_mib":81920},"units":{"total":1,"used":0,"free":1},"modes":[],"jobs":[]},
{"uuid":"ASC-1","vendor":"ascend","model":"910B3","index":0,"node_id":"n2","node_name":"gpu-2","group":"ascend/gpu/910B3","form":"whole","switchable":false,"healthy":false,"health_reason":"overheated","units":{"total":1,"used":0,"free":0},"modes":[],"jobs":[]}
]}`

func TestGPUs(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{"GET /api/v1/gpus": cards})
	golden(t, "gpus", f.call(t, nil, "gpus"))
	golden(t, "gpus_verbose", f.call(t, nil, "gpus", "-verbose"))
	if r := f.call(t, nil, "gpus", "-t", "{{range .Items}}{{.UUID}} {{end}}"); r.out != "GPU-2 GPU-1 ASC-1 \n" {
		t.Errorf("-t printed %q", r.out)
	}
	if r := f.call(t, nil, "gpus", "-t", "{{.Cards}}"); r.code != 1 || !strings.Contains(r.errors, "The fields are AsOf, Items") {
		t.Errorf("%+v", r)
	}
	r := f.call(t, map[string]string{"HETEROFLOW_TOKEN": "hf-tenant-x"}, "gpus", "-json", "-vendor", "nvidia", "-free", "-model", "A100*")
	if !json.Valid([]byte(r.out)) {
		t.Errorf("-json printed %q", r.out)
	}
	last := f.last(t, "GET /api/v1/gpus")
	if last.token != "hf-tenant-x" || last.query["vendor"][0] != "nvidia" || last.query["free"][0] != "true" || last.query["model"][0] != "A100*" {
		t.Errorf("asked %+v", last)
	}
	golden(t, "gpus_none", newFake(t, map[string]any{"GET /api/v1/gpus": `{"as_of":"2026-01-01T00:00:00Z","items":[]}`}).call(t, nil, "gpus"))
}

func TestConnection_WhatCanBeWrong(t *testing.T) {
	t.Parallel()
	gone := newFake(t, nil)
	gone.Close()
	for name, c := range map[string]struct {
		result result
		want   string
	}{
		"nothing listens":      {gone.call(t, nil, "gpus"), `Start it with "heteroflow server"`},
		"nothing listens, job": {gone.call(t, nil, "job", "status"), "connection refused"},
		"no address":           {call(t, map[string]string{"HETEROFLOW_ADDR": "localhost"}, "gpus"), `address "localhost" is not one`},
		"something else":       {newFake(t, map[string]any{"GET /api/v1/gpus": "hello"}).call(t, nil, "gpus"), "is this a placement service?"},
		"not found":            {newFake(t, nil).call(t, nil, "gpus"), "is this a placement service?"},
		"no key": {
			newFake(t, map[string]any{"GET /api/v1/gpus": answer{http.StatusUnauthorized, `{"type":"about:blank","title":"Unauthorized","status":401,"code":"no_credentials","detail":"no key was given"}`}}).call(t, nil, "gpus"),
			"no key was given\nGive a key: -token, or HETEROFLOW_TOKEN",
		},
		"unknown brand": {newFake(t, nil).call(t, nil, "gpus", "-vendor", "acme"), `unknown brand "acme"`},
	} {
		if c.result.code != 1 || c.result.out != "" || !strings.Contains(c.result.errors, c.want) {
			t.Errorf("%s: %+v does not say %q", name, c.result, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	body := `{"job":{"id":"llm","namespace":"default","tenant":"research","user":"u","state":"waiting","priority":50,"queue_position":1,"queued_at":"2026-01-01T00:00:00Z","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","reason":"needs 50 GiB on one card","placements":[]},
"now":{"outcome":"waiting","at":"2026-01-01T00:00:00Z","reason_code":"no_room","reason":"needs 50 GiB on one card: the best has 40 GiB","counts":[{"code":"memory","nodes":2,"example":"gpu-1: 40 GiB free"}],"placements":[],"switches":[{"node_id":"12345678-9","card_uuid":"GPU-1","form":"shared"}],"suggestions":[{"field":"memory","task":"vllm","from":"50 GiB","to":"40 GiB","text":"it would start now with memory = 40 GiB instead of 50 GiB in task vllm"}]},
"history":[{"outcome":"waiting","at":"2026-01-01T00:00:00Z","reason":"needs 50 GiB on one card","counts":[],"placements":[],"switches":[],"suggestions":[]}]}`
	f := newFake(t, map[string]any{"GET /api/v1/jobs/llm/explain": body})
	golden(t, "explain", f.call(t, nil, "explain", "llm"))
	answers := map[string]any{
		"GET /api/v1/jobs/llm/explain": body, "GET /v1/jobs": []any{map[string]any{"ID": "llm"}}, "GET /v1/job/llm": map[string]any{"ID": "llm"},
		"GET /api/v1/jobs/ll/explain": answer{http.StatusNotFound, `{"type":"about:blank","title":"Not Found","status":404,"code":"not_found","detail":"not found"}`},
	}
	if r := newFake(t, answers).call(t, nil, "explain", "ll"); r.code != 0 || !strings.HasPrefix(r.out, "Job            = llm") {
		t.Errorf("the beginning of an id: %+v", r)
	}
	missing := newFake(t, map[string]any{"GET /v1/jobs": []any{}, "GET /api/v1/jobs/no/explain": answer{http.StatusNotFound, `{"type":"about:blank","title":"Not Found","status":404,"code":"not_found","detail":"there is no job no"}`}})
	golden(t, "explain_unknown", missing.call(t, nil, "explain", "no"))
}

const key = `{"id":"k1","kind":"tenant","name":"ci","tenant":"research","role":"member","prefix":"hf-tenant-abc","endpoints":[],"created_at":"2026-01-01T00:00:00Z"}`

func TestKeys(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{
		"POST /api/v1/keys":      answer{http.StatusCreated, `{"key":` + key + `,"plaintext":"hf-tenant-secret"}`},
		"GET /api/v1/keys":       `{"items":[` + key + `],"next_cursor":"c2"}`,
		"DELETE /api/v1/keys/k1": answer{http.StatusNoContent, ""},
	})
	golden(t, "key_create", f.call(t, nil, "key", "create", "-kind", "tenant", "-role", "member", "-expires", "1h", "-endpoint", "e1", "-endpoint", "e2", "ci"))
	var sent struct {
		Name, Kind, Role string
		Endpoints        []string
		ExpiresAt        string `json:"expires_at"`
	}
	if err := json.Unmarshal(f.last(t, "POST /api/v1/keys").body, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Name != "ci" || sent.Kind != "tenant" || sent.Role != "member" || len(sent.Endpoints) != 2 || sent.ExpiresAt == "" {
		t.Errorf("sent %+v", sent)
	}
	golden(t, "key_list", f.call(t, nil, "key", "list"))
	golden(t, "key_delete", f.call(t, nil, "key", "delete", "k1"))
	bad := newFake(t, map[string]any{"POST /api/v1/keys": answer{http.StatusBadRequest, `{"type":"about:blank","title":"Bad Request","status":400,"code":"invalid","detail":"the body is wrong","errors":[{"pointer":"/name","detail":"is too long"}]}`}})
	if r := f.call(t, nil, "key", "create", "-kind", "people", "x"); r.code != 1 || !strings.Contains(r.errors, `-kind "people" is not known: write admin, tenant, node or endpoint`) {
		t.Errorf("%+v", r)
	}
	golden(t, "key_create_bad", bad.call(t, nil, "key", "create", "x"))
}

func TestKeys_RotateAndRetire(t *testing.T) {
	t.Parallel()
	rotated := strings.Replace(key, `"role"`, `"prior_until":"2026-01-02T00:00:00Z","role"`, 1)
	f := newFake(t, map[string]any{
		"POST /api/v1/keys/k1/rotate": answer{http.StatusCreated, `{"key":` + rotated + `,"plaintext":"hf-tenant-new"}`},
		"POST /api/v1/keys/k1/retire": key,
	})
	golden(t, "key_rotate", f.call(t, nil, "key", "rotate", "-overlap", "1h", "k1"))
	if body := string(f.last(t, "POST /api/v1/keys/k1/rotate").body); body != `{"overlap_s":3600}` {
		t.Errorf("sent %s", body)
	}
	golden(t, "key_retire", f.call(t, nil, "key", "retire", "k1"))
	if r := f.call(t, nil, "key", "rotate", "-overlap", "9000h", "k1"); r.code != 1 || !strings.Contains(r.errors, "-overlap is no time from 0s to 2160h") {
		t.Errorf("%+v", r)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	const limit = `{"id":"l1","tenant":"research","scope":"member","subject":"ann","model":"m","requests_per_minute":60,"money_per_month":2.5,"used":{"month":"2026-01","tokens":7,"money":0.25},"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}`
	f := newFake(t, map[string]any{
		"PUT /api/v1/limits":       limit,
		"GET /api/v1/limits":       `{"items":[` + limit + `,{"id":"l2","tenant":"research","scope":"tenant","subject":"research","concurrency":0,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}]}`,
		"DELETE /api/v1/limits/l1": answer{http.StatusNoContent, ""},
	})
	if r := f.call(t, nil, "limit", "set", "member", "ann", "-model", "m", "-requests-per-minute", "60", "-money-per-month", "2.5"); r.code != 0 || r.out != "l1\n" {
		t.Errorf("%+v", r)
	}
	if body := string(f.last(t, "PUT /api/v1/limits").body); body != `{"model":"m","money_per_month":2.5,"requests_per_minute":60,"scope":"member","subject":"ann"}` {
		t.Errorf("sent %s", body)
	}
	golden(t, "limit_list", f.call(t, nil, "limit", "list"))
	golden(t, "limit_delete", f.call(t, nil, "limit", "delete", "l1"))
	for want, args := range map[string][]string{
		`"planet" is no scope: write key, member, tenant or endpoint`: {"planet", "x", "-concurrency", "1"},
		"no number is given":                {"key", "x"},
		"write a whole number of 0 or more": {"key", "x", "-concurrency", "-1"},
		"write a number of 0 or more":       {"key", "x", "-money-per-month", "much"},
	} {
		if r := f.call(t, nil, append([]string{"limit", "set"}, args...)...); r.code != 1 || !strings.Contains(r.errors, want) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestPricesAndAudit(t *testing.T) {
	t.Parallel()
	const price = `{"model":"m","prompt":2.5,"cached":0.5,"completion":10,"request":0,"updated_at":"2026-01-01T00:00:00Z"}`
	f := newFake(t, map[string]any{
		"PUT /api/v1/prices": price, "GET /api/v1/prices": `{"items":[` + price + `]}`, "DELETE /api/v1/prices": answer{http.StatusNoContent, ""},
		"GET /api/v1/audit": `{"items":[{"id":"a1","at":"2026-01-01T00:00:00Z","tenant":"research","actor":"root","action":"key.rotate","object":"k1"}]}`,
	})
	golden(t, "price_set", f.call(t, nil, "price", "set", "m", "-prompt", "2.5", "-cached", "0.5", "-completion", "10"))
	if body := string(f.last(t, "PUT /api/v1/prices").body); body != `{"cached":0.5,"completion":10,"model":"m","prompt":2.5}` {
		t.Errorf("sent %s", body)
	}
	golden(t, "price_list", f.call(t, nil, "price", "list"))
	golden(t, "price_delete", f.call(t, nil, "price", "delete", "m"))
	if asked := f.last(t, "DELETE /api/v1/prices"); asked.query["model"][0] != "m" {
		t.Errorf("asked %+v", asked)
	}
	golden(t, "audit", f.call(t, nil, "audit"))
}

const endpoint = `{"id":"e1","tenant":"research","model":"sim-7b","service":"sim-llm","policy":"round_robin","created_at":"2026-01-01T00:00:00Z","version":1}`

func TestEndpoints(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{
		"POST /api/v1/endpoints":      answer{http.StatusCreated, endpoint},
		"GET /api/v1/endpoints":       `{"items":[` + endpoint + `]}`,
		"GET /api/v1/endpoints/e1":    endpoint,
		"DELETE /api/v1/endpoints/e1": answer{http.StatusNoContent, ""},
	})
	golden(t, "endpoint_create", f.call(t, nil, "endpoint", "create", "-policy", "round_robin", "sim-7b", "sim-llm"))
	golden(t, "endpoint_list", f.call(t, nil, "endpoint", "list"))
	golden(t, "endpoint_delete", f.call(t, nil, "endpoint", "delete", "e1"))
}

func TestUsage(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{
		"GET /api/v1/usage/sum": `{"items":[{"name":"sim-7b","requests":3,"prompt_tokens":30,"cached_tokens":12,"completion_tokens":60,"estimated":2,"unknown":1,"gpu_seconds":90.25},{"name":"","requests":0,"gpu_seconds":5400}],"gpu_settled_to":"2026-01-01T11:45:00Z"}`,
		"GET /api/v1/usage":     `{"items":[{"id":"u1","tenant":"t","key_id":"k","model":"sim-7b","operation":"chat.completions","end":"done","stream":true,"status":200,"tries":1,"started_at":"2026-01-01T00:00:00Z","duration_ms":120,"first_byte_ms":8,"prompt_tokens":10,"cached_tokens":4,"estimated":true,"backend":"llm-0","chunks":3}]}`,
	})
	golden(t, "usage", f.call(t, nil, "usage", "-from", "2026-01-01T00:00:00Z"))
	if got := f.last(t, "GET /api/v1/usage/sum").query; got["group_by"][0] != "model" || got["from"][0] != "2026-01-01T00:00:00Z" {
		t.Errorf("asked %v", got)
	}
	for by, want := range map[string]string{"key": "ci", "endpoint": "sim-7b"} {
		f := newFake(t, map[string]any{
			"GET /api/v1/usage/sum": `{"items":[{"name":"` + by[:1] + `1","requests":3,"prompt_tokens":30,"completion_tokens":60,"unknown":1}]}`,
			"GET /api/v1/keys":      `{"items":[` + key + `]}`,
			"GET /api/v1/endpoints": `{"items":[` + endpoint + `]}`,
		})
		if r := f.call(t, nil, "usage", "-by", by); !strings.Contains(r.out, want) {
			t.Errorf("-by %s does not name %s: %s", by, want, r.out)
		}
	}
	golden(t, "usage_request", f.call(t, nil, "usage", "-by", "request"))
	for _, args := range [][]string{{"usage", "-by", "day"}, {"usage", "-from", "yesterday"}, {"usage", "-json", "-t", "x"}} {
		if r := f.call(t, nil, args...); r.code != 1 || r.out != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{
		"GET /health":      `{"status":"ok","version":"` + version.Version + `"}`,
		"GET /ready":       answer{http.StatusServiceUnavailable, `{"ready":false,"parts":[{"name":"nomad","ok":true},{"name":"database","ok":false,"reason":"connection refused"}]}`},
		"GET /api/v1/info": `{"version":"1","public_key":"x","identity":{"tenant":"research","user":"u","role":"member","kind":"tenant"}}`,
		"GET /v1/nodes":    []any{map[string]any{"ID": "n1", "Name": "gpu-1"}, map[string]any{"ID": "n2", "Name": "cpu-1"}, map[string]any{"ID": "n3", "Name": "down-1"}},
		"GET /v1/node/n1": map[string]any{
			"ID": "n1", "Name": "gpu-1", "Status": "ready", "Attributes": map[string]string{"driver.heteroflow.version": "0.1.0"},
			"Drivers":       map[string]any{"heteroflow": map[string]any{"Detected": true, "Healthy": true}},
			"NodeResources": map[string]any{"Devices": []any{map[string]any{"Vendor": "nvidia", "Type": "gpu", "Name": "A100", "Instances": []any{map[string]any{"ID": "GPU-1"}}}}},
		},
		"GET /v1/node/n2":       map[string]any{"ID": "n2", "Name": "cpu-1", "Status": "ready"},
		"GET /v1/node/n3":       map[string]any{"ID": "n3", "Name": "down-1", "Status": "down"},
		"GET /v1/status/leader": `"127.0.0.1:8300"`,
		"GET /api/v1/jobs": `{"items":[
			{"id":"stuck","namespace":"default","tenant":"t","user":"u","state":"waiting","priority":50,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","queued_at":"2026-01-01T00:00:00Z","reason_code":"form_switch","reason":"GPU-1 on node gpu-1 to shared","placements":[]},
			{"id":"patient","namespace":"default","tenant":"t","user":"u","state":"waiting","priority":50,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","queued_at":"2026-01-01T00:00:00Z","reason_code":"memory","placements":[]}]}`,
	})
	nomad := newFake(t, map[string]any{"GET /v1/agent/self": map[string]any{"config": map[string]any{"Version": map[string]any{"Version": "2.0.5"}}}})
	// A DOCKER_HOST of this machine would show in the output; the line is the machine's, not the test's.
	r := f.call(t, map[string]string{"NOMAD_ADDR": nomad.URL, "CONSUL_HTTP_ADDR": strings.TrimPrefix(f.URL, "http://"), "DATABASE_URL": "sqlite:///x.db"}, "doctor", "-bin-dir", "/nowhere", "-state-dir", t.TempDir())
	lines := strings.Split(r.out, "\n")
	var kept []string
	for i := 0; i < len(lines); i++ {
		if strings.Contains(lines[i], "Docker") {
			if i+1 < len(lines) && strings.Contains(lines[i+1], "→") {
				i++
			}
			continue
		}
		kept = append(kept, lines[i])
	}
	r.out = strings.Join(kept, "\n")
	golden(t, "doctor", r)
	var findings []finding
	if r := f.call(t, nil, "doctor", "-json", "-bin-dir", "/nowhere"); json.Unmarshal([]byte(r.out), &findings) != nil || len(findings) == 0 {
		t.Errorf("-json printed %q", r.out)
	}
	if !slices.ContainsFunc(findings, func(f finding) bool { return f.Name == "its nomad" }) {
		t.Errorf("-json indents names: %+v", findings)
	}
	if r := f.call(t, map[string]string{"NOMAD_ADDR": f.URL + "/"}, "doctor", "-bin-dir", "/nowhere"); !strings.Contains(r.out, "NOMAD_ADDR is the placement service") {
		t.Errorf("%s", r.out)
	}
}

func TestDoctor_NoNodeServes(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{
		"GET /health":     `{"status":"ok","version":"` + version.Version + `"}`,
		"GET /v1/nodes":   []any{map[string]any{"ID": "n2", "Name": "cpu-1"}},
		"GET /v1/node/n2": map[string]any{"ID": "n2", "Name": "cpu-1", "Status": "ready"},
	})
	if r := f.call(t, nil, "doctor", "-bin-dir", "/nowhere"); r.code != 2 || !strings.Contains(r.out, "none offers cards") {
		t.Errorf("%+v", r)
	}
}

// Whoever reads that nodes cannot be listed must not change a good key while it is Nomad that is away.
func TestDoctor_NodesThatCannotBeListed(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{http.StatusForbidden: "use a key or token that may read nodes", http.StatusBadGateway: "have Nomad answer the placement service first"} {
		f := newFake(t, map[string]any{"GET /v1/nodes": answer{status, "no"}})
		if r := f.call(t, nil, "doctor", "-bin-dir", "/nowhere"); !strings.Contains(r.out, want) {
			t.Errorf("%d: %s", status, r.out)
		}
	}
}

func TestRedacted_KeepsThePassword(t *testing.T) {
	t.Parallel()
	gone := newFake(t, nil)
	gone.Close()
	r := gone.call(t, map[string]string{"DATABASE_URL": "postgres://u:hunter2@127.0.0.1:1/x?sslmode=disable"}, "doctor", "-bin-dir", "/nowhere")
	if strings.Contains(r.out, "hunter2") || !strings.Contains(r.out, "fail  database") {
		t.Errorf("%s", r.out)
	}
}

func TestScaling(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{"GET /api/v1/scaling": `{"items":[
		{"namespace":"default","job_id":"llm","group":"serve","services":["llm"],"count":2,"wanted":3,"needed":3,"min":1,"max":8,"reason":"its load needs 3","signals":["41 requests in flight and 4 held, 16 for each: 3"],"dry_run":true,"decided_at":"2026-01-01T00:00:00Z"},
		{"namespace":"default","job_id":"new","group":"serve","services":[],"count":1,"wanted":1,"min":0,"max":0,"reason":"","signals":[],"dry_run":false,"problem":"scaling.max: write how many instances there may be at most","decided_at":"2026-01-01T00:00:00Z"}]}`})
	golden(t, "scaling", f.call(t, nil, "scaling"))
	golden(t, "scaling_verbose", f.call(t, nil, "scaling", "-verbose"))
}
