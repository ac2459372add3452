package client

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// fakeConsul is the part of an agent that services need. It can be told to fail.
type fakeConsul struct {
	mu       sync.Mutex
	services map[string]map[string]any
	down     bool
	health   string
}

func (f *fakeConsul) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		http.Error(w, "away", http.StatusInternalServerError)
		return
	}
	reply := func(v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			panic(err)
		}
	}
	switch path := strings.TrimPrefix(r.URL.Path, "/v1/agent/"); {
	case path == "services":
		reply(f.services)
	case path == "service/register":
		var s map[string]any
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.services[s["ID"].(string)] = s
	case strings.HasPrefix(path, "service/deregister/"):
		delete(f.services, strings.TrimPrefix(path, "service/deregister/"))
	case strings.HasPrefix(path, "health/service/id/"):
		id := strings.TrimPrefix(path, "health/service/id/")
		if f.services[id] == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if f.health != "passing" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		reply(map[string]any{"AggregatedStatus": f.health, "Service": f.services[id]})
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeConsul) get(id string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services[id]
}

func (f *fakeConsul) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func TestConsulServices(t *testing.T) {
	t.Parallel()
	agent := &fakeConsul{services: map[string]map[string]any{}, down: true, health: "critical"}
	srv := httptest.NewServer(agent)
	defer srv.Close()
	cfg := testConfig(t)
	cfg.ConsulAddr = srv.URL
	r := start(t, cfg)
	alloc := newAlloc(forever, func(a *api.Allocation, tg *api.TaskGroup, task *api.Task) {
		a.DeploymentID = "d1"
		tg.Update = &api.UpdateStrategy{MinHealthyTime: ptr(10 * time.Millisecond), HealthyDeadline: ptr(time.Minute), HealthCheck: ptr("checks")}
		task.Services = []*api.Service{{
			Name: "web", PortLabel: "http", Provider: "consul", Tags: []string{"heteroflow.model=m"}, Meta: map[string]string{"k": "${NOMAD_JOB_ID}"},
			Checks: []api.ServiceCheck{{Type: "http", Path: "/health", Interval: time.Second}},
		}}
	})
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	agent.set(func() { agent.down = false })
	id := "_nomad-task-" + allocID + "-web-web-http"
	until(t, "the registration after the agent came back", func() bool { return agent.get(id) != nil })
	s := agent.get(id)
	meta, checks := s["Meta"].(map[string]any), s["Checks"].([]any)
	if s["Name"] != "web" || s["Port"] != 20123.0 || meta["external-source"] != "nomad" || meta["k"] != "job" ||
		checks[0].(map[string]any)["HTTP"] != "http://127.0.0.1:20123/health" {
		t.Errorf("registered %v", s)
	}
	if h := r.up.alloc(allocID).Healthy; h != nil {
		t.Errorf("healthy is %t while the check fails", *h)
	}
	agent.set(func() { agent.health = "passing" })
	until(t, "a healthy allocation", func() bool { h := r.up.alloc(allocID).Healthy; return h != nil && *h })
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	r.status(t, "complete")
	if agent.get(id) != nil {
		t.Error("the service is left in Consul")
	}
}

func TestCheckRestart(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc(forever, func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
		task.RestartPolicy.Attempts = ptr(1)
		task.Services = []*api.Service{{Name: "web", PortLabel: "1", Provider: "nomad", Checks: []api.ServiceCheck{{
			Name: "alive", Type: "tcp", Interval: 10 * time.Millisecond, Timeout: time.Second, CheckRestart: &api.CheckRestart{Limit: 2, Grace: ptr(time.Duration(0))},
		}}}}
	})})
	u := r.status(t, "failed")
	if got := eventTypes(u.TaskStates["web"]); strings.Count(got, api.TaskRestartSignal) != 2 || u.TaskStates["web"].Restarts != 1 {
		t.Errorf("restarts %d, events %s", u.TaskStates["web"].Restarts, got)
	}
}

func TestUnsupportedBlocksAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*api.TaskGroup, *api.Task){
		"artifact":     func(_ *api.TaskGroup, task *api.Task) { task.Artifacts = []*api.TaskArtifact{{}} },
		"volume_mount": func(_ *api.TaskGroup, task *api.Task) { task.VolumeMounts = []*api.VolumeMount{{}} },
		"bridge":       func(tg *api.TaskGroup, _ *api.Task) { tg.Networks = []*api.NetworkResource{{Mode: "bridge"}} },
	} {
		tg, task := &api.TaskGroup{Name: ptr("g")}, &api.Task{Name: "web"}
		change(tg, task)
		if err := supported(tg, task); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
