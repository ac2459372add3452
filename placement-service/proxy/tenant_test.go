package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

const (
	foreignID = "5fd75a51-ddfa-6b33-8a10-f71d40434bd1"
	ownID     = "0b04c732-daa7-abf9-85b2-0e040bbec1dc"
)

// twoTenants answers as a Nomad in which the tenant alpha has the job mine, beta the job theirs, and nobody the job
// wild. It notes every write.
type twoTenants struct {
	mu     sync.Mutex
	writes []string
}

func (n *twoTenants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && !strings.HasPrefix(r.URL.Path, "/v1/search") && r.URL.Path != "/v1/jobs/statuses" {
		n.mu.Lock()
		n.writes = append(n.writes, r.Method+" "+r.URL.String())
		n.mu.Unlock()
	}
	entries := func(field string) []any {
		var out []any
		for _, job := range []string{"mine", "theirs", "theirs/dispatch-1-a", "wild"} {
			out = append(out, map[string]any{field: job, "Namespace": "default", "of": job})
		}
		return out
	}
	parts := strings.Split(r.URL.Path, "/")
	id := parts[len(parts)-1]
	var out any
	switch {
	case r.URL.Path == "/v1/jobs", r.URL.Path == "/v1/jobs/statuses":
		out = entries("ID")
	case r.URL.Path == "/v1/search":
		out = map[string]any{"Matches": map[string]any{
			"jobs": []string{"mine", "theirs"}, "allocs": []string{ownID, foreignID}, "evals": []string{ownID, foreignID}, "nodes": []string{"n"}, "vars": []string{"v"},
		}}
	case r.URL.Path == "/v1/allocations", r.URL.Path == "/v1/evaluations", r.URL.Path == "/v1/deployments",
		strings.HasPrefix(r.URL.Path, "/v1/node/"), strings.HasPrefix(r.URL.Path, "/v1/service/"):
		out = entries("JobID")
	case strings.HasPrefix(r.URL.Path, "/v1/job/") && strings.Contains(r.URL.Path, "absent"):
		http.Error(w, "job not found", http.StatusNotFound)
		return
	case strings.HasPrefix(r.URL.Path, "/v1/job/"):
		out = map[string]any{"ID": id}
	case strings.EqualFold(id, foreignID):
		out = map[string]any{"ID": foreignID, "JobID": "theirs", "Namespace": "default"}
	default:
		out = map[string]any{"ID": ownID, "JobID": "mine", "Namespace": "default"}
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		panic(err)
	}
}

func alphaAndBeta(t *testing.T) (addr string, nomad *twoTenants) {
	t.Helper()
	nomad = &twoTenants{}
	who := identity.Who{Identity: auth.Identity{Role: auth.RoleMember, Kind: auth.KindTenant, User: "ann", Tenant: "alpha"}}
	addr, db := front(t, who, nomad.ServeHTTP)
	for _, job := range []store.Job{
		{Tenant: "alpha", Namespace: "default", ID: "mine"}, {Tenant: "beta", Namespace: "default", ID: "theirs"}, {Tenant: "beta", Namespace: "other", ID: "mine"},
	} {
		job.State, job.Priority, job.Spec = store.JobSubmitted, 50, []byte(`{"Job":{"ID":"x"}}`)
		if _, err := db.PutJob(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	return addr, nomad
}

func send(t *testing.T, request, body string, addr string) (int, string) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestTenant_TouchesNothingOfOthers: whatever names another tenant's job, in whatever spelling, is refused before
// Nomad hears of it.
func TestTenant_TouchesNothingOfOthers(t *testing.T) {
	t.Parallel()
	addr, nomad := alphaAndBeta(t)
	upper := strings.ToUpper(foreignID)
	for _, request := range []string{
		"GET /v1/job/theirs", "DELETE /v1/job/theirs", "DELETE /v1/job/theirs?namespace=*", "GET /v1/job/theirs?namespace=*", "GET /v1/job/theirs/dispatch-1-a",
		"POST /v1/job/theirs/evaluate", "POST /v1/job/theirs/periodic/force", "DELETE /v1/job/theirs/dispatch-1-a", "DELETE /v1/job/theirs/periodic-1",
		"POST /v1/job/wild/dispatch", "POST /v1/job/wild/evaluate", "DELETE /v1/job/wild",
		"GET /v1/allocation/" + foreignID, "GET /v1/allocation/" + upper, "PUT /v1/allocation/" + upper + "/stop", "PUT /v1/client/allocation/" + upper + "/restart",
		"GET /v1/client/allocation/" + upper + "/exec", "GET /v1/client/fs/cat/" + upper, "GET /v1/client/fs/logs/" + foreignID,
		"GET /v1/evaluation/" + foreignID, "GET /v1/evaluation/" + upper, "GET /v1/deployment/" + foreignID, "PUT /v1/deployment/fail/" + foreignID,
		"PUT /v1/deployment/pause/" + upper, "PUT /v1/deployment/promote/" + foreignID, "GET /v1/deployment/allocations/" + foreignID,
		"GET /v1/event/stream", "POST /v1/search/fuzzy", "GET /v1/scaling/policies",
	} {
		if status, text := send(t, request, `{}`, addr); status != http.StatusForbidden && status != http.StatusBadRequest {
			t.Errorf("%s is answered with %d %s", request, status, text)
		}
	}
	for request, body := range map[string]string{
		"PUT /v1/jobs":       `{"Job":{"ID":"wild","TaskGroups":[]}}`,
		"PUT /v1/job/theirs": `{"Job":{"ID":"theirs","TaskGroups":[]}}`,
	} {
		if status, text := send(t, request, body, addr); status != http.StatusForbidden {
			t.Errorf("%s is answered with %d %s", request, status, text)
		}
	}
	if status, _ := send(t, "POST /v1/job/mine/scale", `{"Namespace":"other","Message":"x"}`, addr); status != http.StatusForbidden {
		t.Errorf("another namespace in the body is answered with %d", status)
	}
	if len(nomad.writes) > 0 {
		t.Errorf("reached Nomad: %v", nomad.writes)
	}
}

// TestTenant_WorksOnItsOwn: and in the namespace that was checked, whatever the body says.
func TestTenant_WorksOnItsOwn(t *testing.T) {
	t.Parallel()
	addr, nomad := alphaAndBeta(t)
	for _, request := range []string{
		"GET /v1/job/mine", "GET /v1/job/wild", "GET /v1/allocation/" + ownID, "GET /v1/client/fs/logs/" + ownID, "GET /v1/evaluation/" + ownID, "GET /v1/deployment/" + ownID,
		"POST /v1/job/mine/evaluate",
	} {
		if status, text := send(t, request, `{"Namespace":"other"}`, addr); status != http.StatusOK {
			t.Errorf("%s is answered with %d %s", request, status, text)
		}
	}
	if got, want := fmt.Sprint(nomad.writes), "[POST /v1/job/mine/evaluate?namespace=default]"; got != want {
		t.Errorf("Nomad got %s, want %s", got, want)
	}
	if status, _ := send(t, "DELETE /v1/job/absent?no_shutdown_delay=true", "", addr); status != http.StatusNotFound {
		t.Errorf("a job that nobody has is answered with %d", status)
	}
}

func TestTenant_SeesNothingOfOthersInLists(t *testing.T) {
	t.Parallel()
	addr, _ := alphaAndBeta(t)
	for _, request := range []string{
		"GET /v1/jobs", "GET /v1/jobs?filter=x", "GET /v1/jobs?namespace=*", "POST /v1/jobs/statuses", "GET /v1/allocations", "GET /v1/evaluations", "GET /v1/deployments",
		"GET /v1/node/n/allocations", "GET /v1/service/web", "POST /v1/search",
	} {
		status, text := send(t, request, `{}`, addr)
		if status != http.StatusOK || strings.Contains(text, "theirs") || strings.Contains(text, foreignID) || !strings.Contains(text, "mine") {
			t.Errorf("%s is answered with %d %s", request, status, text)
		}
	}
}
