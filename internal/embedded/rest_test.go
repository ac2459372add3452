package embedded_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

func TestHTTP_TheAgentAnswersForItself(t *testing.T) {
	t.Parallel()
	e, c := start(t, oneNode())
	for path, want := range map[string]string{
		"/":                        "embedded engine",
		"/v1/agent/health":         `"ok":true`,
		"/v1/status/leader":        "127.0.0.1:",
		"/v1/status/peers":         "127.0.0.1:",
		"/v1/agent/servers":        "127.0.0.1:",
		"/v1/agent/self?pretty":    `"VersionMetadata": "heteroflow"`,
		"/v1/namespace/default":    "Default shared namespace",
		"/v1/node/pools":           "Default node pool.",
		"/v1/node/pool/all":        "all nodes",
		"/v1/acl/token/self":       "acls-disabled",
		"/v1/nodes?os=true":        `"os.name":"simulated"`,
		"/v1/jobs?per_page=1&meta": "[]",
	} {
		if status, text, _ := call(t, "GET", e.Addr()+path, ""); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("GET %s: %d %s, want %q in it", path, status, text, want)
		}
	}
	for path, want := range map[string]int{
		"/v1/namespace/other": 404, "/v1/node/pool/none": 404, "/v1/job/x/nope/deeper": 404, "/v2/jobs": 404, "/v1/job/%zz": 400,
		"/v1/nodes?resources=maybe": 400, "/v1/jobs?per_page=x": 400, "/v1/client/stats?node_id=none": 404, "/v1/client/fs/ls/": 400,
	} {
		if want == 400 && strings.Contains(path, "%zz") {
			continue // a path that does not decode never leaves a Go client
		}
		if status, text, _ := call(t, "GET", e.Addr()+path, ""); status != want {
			t.Errorf("GET %s: %d %s, want %d", path, status, text, want)
		}
	}
	out, _, err := c.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{SchedulerAlgorithm: "spread"}, nil)
	if err != nil || !out.Updated {
		t.Errorf("setting the algorithm: %+v, %v", out, err)
	}
	cfg, _, err := c.Operator().SchedulerGetConfiguration(nil)
	if err != nil || cfg.SchedulerConfig.SchedulerAlgorithm != "spread" {
		t.Errorf("configuration is %+v, %v", cfg, err)
	}
	for body, want := range map[string]int{`{"SchedulerAlgorithm":"x"}`: 400, `{"PreemptionConfig":{"ServiceSchedulerEnabled":true}}`: 501} {
		if status, text, _ := call(t, "PUT", e.Addr()+"/v1/operator/scheduler/configuration", body); status != want {
			t.Errorf("configuration %s: %d %s, want %d", body, status, text, want)
		}
	}
}

func TestHTTP_PagesAndSearches(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	for _, id := range []string{"aa", "ab", "b"} {
		j := job(id, 1, nil)
		j.Type, j.Update = new("batch"), nil
		register(t, c, j)
	}
	first, meta, err := c.Jobs().List(&api.QueryOptions{PerPage: 2})
	if err != nil || len(first) != 2 || meta.NextToken != "b" {
		t.Errorf("first page has %d, next %q, %v", len(first), meta.NextToken, err)
	}
	second, meta, err := c.Jobs().List(&api.QueryOptions{PerPage: 2, NextToken: "b"})
	if err != nil || len(second) != 1 || meta.NextToken != "" {
		t.Errorf("second page has %d, next %q, %v", len(second), meta.NextToken, err)
	}
	if found, _, err := c.Jobs().PrefixList("a"); err != nil || len(found) != 2 {
		t.Errorf("prefix finds %d, %v", len(found), err)
	}
	if found, _, err := c.Jobs().List(&api.QueryOptions{Filter: `ID == "b"`}); err != nil || len(found) != 1 {
		t.Errorf("filter finds %d, %v", len(found), err)
	}
	res, _, err := c.Search().PrefixSearch("a", "jobs", nil)
	if err != nil || len(res.Matches["jobs"]) != 2 {
		t.Errorf("search finds %+v, %v", res, err)
	}
}

func TestHTTP_DeploymentByHand(t *testing.T) {
	t.Parallel()
	cfg := oneNode()
	_, c := start(t, cfg)
	register(t, c, job("big", 1, device("vgpu", 81))) // never placed, so its deployment stays open
	var d *api.Deployment
	eventually(t, "a deployment runs", func() bool {
		var err error
		d, _, err = c.Jobs().LatestDeployment("big", nil)
		return err == nil && d != nil
	})
	for _, step := range []struct {
		want string
		do   func() error
	}{
		{"paused", func() error { _, _, err := c.Deployments().Pause(d.ID, true, nil); return err }},
		{"running", func() error { _, _, err := c.Deployments().Pause(d.ID, false, nil); return err }},
		{"failed", func() error { _, _, err := c.Deployments().Fail(d.ID, nil); return err }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got, _, err := c.Deployments().Info(d.ID, nil); err != nil || got.Status != step.want {
			t.Errorf("deployment is %+v, %v; want %s", got, err, step.want)
		}
	}
	if _, _, err := c.Deployments().Fail(d.ID, nil); err == nil {
		t.Error("a deployment that is over was changed")
	}
	if _, _, err := c.Deployments().PromoteAll(d.ID, nil); err == nil || !strings.Contains(err.Error(), "no canaries") {
		t.Errorf("promoting: %v", err)
	}
}

func TestHTTP_EvaluateAndStability(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	j := job("a", 1, nil)
	j.TaskGroups[0].Tasks[0].Config = map[string]any{"start_error": "no"}
	j.Reschedule = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	register(t, c, j)
	var failed string
	eventually(t, "it failed", func() bool {
		allocs, _, err := c.Jobs().Allocations("a", true, nil)
		if err != nil || len(allocs) != 1 || allocs[0].ClientStatus != "failed" {
			return false
		}
		failed = allocs[0].ID
		return true
	})
	if _, _, err := c.Jobs().EvaluateWithOpts("a", api.EvalOptions{ForceReschedule: true}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was replaced by force", func() bool {
		a, _, err := c.Allocations().Info(failed, nil)
		return err == nil && a.NextAllocation != ""
	})
	if _, _, err := c.Jobs().Stable("a", 0, true, nil); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.Jobs().Info("a", nil); err != nil || !*got.Stable {
		t.Errorf("job is %v, %v; want it stable", got.Stable, err)
	}
	a, _, err := c.Allocations().Info(failed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Nodes().ForceEvaluate(a.NodeID, nil); err != nil {
		t.Error(err)
	}
}

func TestEngine_PeriodicJobRunsWhenItsTimeComes(t *testing.T) {
	t.Parallel()
	fake := clock.NewFake(time.Date(2026, 1, 1, 11, 59, 30, 0, time.UTC))
	cfg := oneNode()
	cfg.Clock = fake
	_, c := start(t, cfg)
	j := job("per", 1, nil)
	j.Type, j.Update = new("batch"), nil
	j.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: new("0 * * * *"), SpecType: new("cron"), ProhibitOverlap: new(true)}
	register(t, c, j)
	children := func() int {
		found, _, err := c.Jobs().PrefixList("per/periodic-")
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	eventually(t, "it is launched at noon", func() bool {
		if children() == 0 {
			fake.Advance(10 * time.Second) // the loop may not have set its timer yet
		}
		return children() == 1
	})
	eventually(t, "it runs", func() bool {
		fake.Advance(time.Millisecond)
		found, _, err := c.Jobs().PrefixList("per/periodic-")
		return err == nil && found[0].Status == "running"
	})
	fake.Advance(2 * time.Hour)
	if _, _, err := c.Jobs().PeriodicForce("per", nil); err != nil {
		t.Fatal(err)
	}
	if got := children(); got != 2 {
		t.Errorf("%d launches, want the first and the forced one: overlap is prohibited", got)
	}
}

func TestEngine_SilentNodeTellsWhenItIsBack(t *testing.T) {
	t.Parallel()
	e, c := start(t, oneNode())
	nodes, _, err := c.Nodes().List(nil)
	if err != nil {
		t.Fatal(err)
	}
	e.SetFault(nodes[0].ID, embedded.Fault{Silent: true})
	out := register(t, c, job("a", 1, nil))
	eventually(t, "it is placed", func() bool {
		ev, _, err := c.Evaluations().Info(out.EvalID, nil)
		return err == nil && ev.Status == "complete"
	})
	if n := len(running(t, c, "a")); n != 0 {
		t.Fatalf("%d run on a node that tells nothing", n)
	}
	e.SetFault(nodes[0].ID, embedded.Fault{})
	eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
}
