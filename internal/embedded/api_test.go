package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

func oneNode() embedded.Config {
	return embedded.Config{SimNodes: embedded.SimNodes(1, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)}
}

func call(t *testing.T, method, url, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

func TestHTTP_RefusesInNomadsWords(t *testing.T) {
	t.Parallel()
	e, _ := start(t, oneNode())
	const none = "11111111-1111-1111-1111-111111111111"
	// Texts and codes recorded from Nomad 2.0.5, but for those that speak of the embedded engine.
	cases := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"PUT", "/v1/jobs", "", 400, "Request body is empty"},
		{"PUT", "/v1/jobs", "{}", 400, "Job must be specified"},
		{"PUT", "/v1/jobs", `{"Job":{"ID":5}}`, 400, "json: cannot unmarshal number into Go struct field Job.Job.ID of type string"},
		{"PUT", "/v1/jobs", `{"Job":`, 400, "unexpected end of JSON input"},
		{"PUT", "/v1/jobs", `{"job":{"id":"a b","type":"foo","priority":0,"taskgroups":[]}}`, 500, "4 errors occurred:\n\t* Job ID contains a space\n\t* Invalid job type: \"foo\"\n\t* Job priority must be between [1, 100]\n\t* Missing job task groups\n\n"},
		{"PUT", "/v1/job/x", `{"Job":{"ID":"y"}}`, 400, "Job ID does not match name"},
		{"PUT", "/v1/job/x/plan", `{"Job":{"ID":"y"}}`, 400, "Job ID does not match"},
		{"GET", "/v1/job/nope", "", 404, "job not found"},
		{"GET", "/v1/job/nope/summary", "", 404, "job not found"},
		{"GET", "/v1/job/nope/versions", "", 404, "job versions not found"},
		{"GET", "/v1/job/nope/submission?version=0", "", 404, "job source not found"},
		{"GET", "/v1/job/nope/allocations", "", 200, "[]"},
		{"GET", "/v1/job/nope/evaluations", "", 200, "[]"},
		{"GET", "/v1/job/nope/deployments", "", 200, "[]"},
		{"GET", "/v1/job/nope/deployment", "", 200, "null"},
		{"PUT", "/v1/job/nope/scale", "{}", 400, "missing task group name for scaling action"},
		{"PUT", "/v1/job/nope/evaluate", "{}", 500, "job not found"},
		{"GET", "/v1/evaluation/nope", "", 500, "failed to lookup eval: eval lookup failed: index error: UUID must be 36 characters"},
		{"GET", "/v1/evaluation/" + none, "", 404, "eval not found"},
		{"GET", "/v1/allocation/" + none, "", 404, "alloc not found"},
		{"PUT", "/v1/allocation/" + none + "/stop", "", 404, "allocation not found"},
		{"GET", "/v1/node/" + none, "", 404, "node not found"},
		{"GET", "/v1/deployment/" + none, "", 404, "deployment not found"},
		{"GET", "/v1/client/fs/logs/" + none + "?task=x&type=stdout", "", 404, `Unknown allocation "` + none + `"`},
		{"POST", "/v1/nodes", "", 405, "Invalid method"},
		{"GET", "/v1/services", "", 200, "[]"},
		{"GET", "/v1/service/x", "", 200, "[]"},
		{"GET", "/v1/regions", "", 200, `["global"]`},
		{"GET", "/v1/nodes?region=mars", "", 500, "No path to region"},
		{"GET", "/v1/jobs?filter=Nope+%3D%3D+1", "", 200, "[]"},
		{"GET", "/v1/nodes?filter=%3D", "", 400, ""},
		{"GET", "/v1/jobs?index=x", "", 400, "Invalid index"},
		{"GET", "/v1/jobs?index=1&wait=x", "", 400, "Invalid wait time"},
		{"GET", "/v1/acl/policies", "", 400, "ACL support disabled"},
		{"GET", "/v1/vars", "", 404, "/v1/vars is not served: the embedded engine serves one machine and the part of Nomad's API that HeteroFlow needs; for the rest use Nomad"},
		{"PUT", "/v1/system/gc", "", 200, ""},
		{"PUT", "/v1/jobs/parse", `{"JobHCL":"job \"x\" {"}`, 400, ""},
	}
	for _, c := range cases {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			t.Parallel()
			status, text, _ := call(t, c.method, e.Addr()+c.path, c.body)
			if status != c.status || (c.want != "" && text != c.want) {
				t.Errorf("got %d %q, want %d %q", status, text, c.status, c.want)
			}
		})
	}
}

func TestHTTP_BlockingQueryWaitsForItsJob(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	register(t, c, job("a", 1, nil))
	eventually(t, "a runs", func() bool { return len(running(t, c, "a")) == 1 })
	_, meta, err := c.Jobs().Allocations("a", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan uint64, 1)
	go func() {
		_, next, err := c.Jobs().Allocations("a", false, &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: 30 * time.Second})
		if err != nil {
			got <- 0
			return
		}
		got <- next.LastIndex
	}()
	register(t, c, job("b", 1, nil))
	eventually(t, "b runs", func() bool { return len(running(t, c, "b")) == 1 })
	select {
	case index := <-got:
		t.Fatalf("another job's change ended the wait at %d", index)
	default:
	}
	if _, _, err := c.Jobs().Deregister("a", false, nil); err != nil {
		t.Fatal(err)
	}
	if index := <-got; index <= meta.LastIndex {
		t.Errorf("the wait ended at index %d, want above %d", index, meta.LastIndex)
	}
	_, quiet, err := c.Jobs().List(&api.QueryOptions{WaitIndex: 1 << 40, WaitTime: 20 * time.Millisecond})
	if err != nil || quiet.LastIndex == 0 {
		t.Errorf("a wait in vain answered %v, %v; want the list as it is", quiet, err)
	}
}

func TestHTTP_EventStream(t *testing.T) {
	t.Parallel()
	e, c := start(t, oneNode())
	register(t, c, job("a/b", 1, nil))
	eventually(t, "it runs", func() bool { return len(running(t, c, "a/b")) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Addr()+"/v1/event/stream?topic=Job&topic=Allocation:a%2Fb&topic=Deployment:other&index=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != "{}" {
		t.Fatalf("first line is %q, want a heartbeat at once", lines.Text())
	}
	var seen []string
	last := uint64(0)
	for !slices.Contains(seen, "Allocation AllocationUpdated") && lines.Scan() {
		var batch api.Events
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatal(err)
		}
		if batch.Index < last {
			t.Errorf("index went from %d to %d", last, batch.Index)
		}
		last = batch.Index
		for _, ev := range batch.Events {
			seen = append(seen, string(ev.Topic)+" "+ev.Type)
			if ev.Topic == api.TopicAllocation {
				if a, err := ev.Allocation(); err != nil || a.JobID != "a/b" || a.Job != nil {
					t.Errorf("allocation event carries %+v, %v; want the allocation without its job", a, err)
				}
			}
			if ev.Topic == api.TopicDeployment || ev.Topic == api.TopicEvaluation || ev.Topic == api.TopicNode {
				t.Errorf("got an event of topic %s that nobody asked for", ev.Topic)
			}
		}
	}
	if !slices.Contains(seen, "Job JobRegistered") || !slices.Contains(seen, "Allocation PlanResult") {
		t.Errorf("events are %v", seen)
	}
}

func TestHTTP_PlanChangesNothingAndSaysWhatWould(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	plan := func(j *api.Job) *api.JobPlanResponse {
		t.Helper()
		out, _, err := c.Jobs().Plan(j, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	p := plan(job("a", 2, device("vgpu", 40)))
	if p.JobModifyIndex != 0 || p.Diff.Type != "Added" || p.Annotations.DesiredTGUpdates["g"].Place != 2 || len(p.FailedTGAllocs) != 0 {
		t.Errorf("plan of a new job is %+v", p)
	}
	p = plan(job("a", 3, device("vgpu", 40)))
	if m := p.FailedTGAllocs["g"]; m == nil || m.DimensionExhausted["devices: no devices match request"] != 1 {
		t.Errorf("plan beyond the card says %+v", p.FailedTGAllocs)
	}
	if jobs, _, err := c.Jobs().List(nil); err != nil || len(jobs) != 0 {
		t.Errorf("planning left %v, %v", jobs, err)
	}
	register(t, c, job("a", 2, device("vgpu", 40)))
	eventually(t, "both run", func() bool { return len(running(t, c, "a")) == 2 })
	before := running(t, c, "a")
	p = plan(job("a", 2, device("vgpu", 40)))
	if p.Diff.Type != "None" || p.Annotations.DesiredTGUpdates["g"].Ignore != 2 {
		t.Errorf("plan of the same job says %+v, %+v", p.Diff, p.Annotations.DesiredTGUpdates["g"])
	}
	out := register(t, c, job("a", 2, device("vgpu", 40)))
	eventually(t, "the evaluation is done", func() bool {
		ev, _, err := c.Evaluations().Info(out.EvalID, nil)
		return err == nil && ev.Status == "complete"
	})
	after := running(t, c, "a")
	if len(after) != 2 || before[0].ID != after[0].ID || before[1].ID != after[1].ID {
		t.Error("running the same job again restarted it")
	}
}

func TestHTTP_EnforceIndexAndPreserveCounts(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	if _, _, err := c.Jobs().EnforceRegister(job("a", 1, nil), 7, nil); err == nil || !strings.Contains(err.Error(), "Enforcing job modify index 7: job does not exist") {
		t.Errorf("new job with an index: %v", err)
	}
	out, _, err := c.Jobs().EnforceRegister(job("a", 1, nil), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Jobs().EnforceRegister(job("a", 2, nil), 0, nil); err == nil || !strings.Contains(err.Error(), "Enforcing job modify index 0: job already exists") {
		t.Errorf("index 0 for a job that is there: %v", err)
	}
	if _, _, err := c.Jobs().EnforceRegister(job("a", 3, nil), out.JobModifyIndex, nil); err != nil {
		t.Errorf("the right index: %v", err)
	}
	if _, _, err := c.Jobs().RegisterOpts(job("a", 1, nil), &api.RegisterOptions{PreserveCounts: true}, nil); err != nil {
		t.Fatal(err)
	}
	if j, _, err := c.Jobs().Info("a", nil); err != nil || *j.TaskGroups[0].Count != 3 {
		t.Errorf("count is %v, %v; want the stored 3", j, err)
	}
}

func TestHTTP_ScaleRevertHistory(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	register(t, c, job("a", 1, nil))
	if _, _, err := c.Jobs().Scale("a", "g", new(3), "more", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three run", func() bool { return len(running(t, c, "a")) == 3 })
	status, _, err := c.Jobs().ScaleStatus("a", nil)
	if err != nil || status.TaskGroups["g"].Desired != 3 || len(status.TaskGroups["g"].Events) != 1 {
		t.Errorf("scale status is %+v, %v", status, err)
	}
	if _, _, err := c.Jobs().Revert("a", 0, nil, nil, "", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one runs", func() bool { return len(running(t, c, "a")) == 1 })
	versions, diffs, _, err := c.Jobs().Versions("a", true, nil)
	if err != nil || len(versions) != 3 || *versions[0].Version != 2 || len(diffs) != 2 {
		t.Errorf("history has %d versions and %d differences, %v", len(versions), len(diffs), err)
	}
	for range 8 {
		j := job("a", 1, nil)
		j.Meta = map[string]string{"n": time.Now().String()}
		register(t, c, j)
	}
	versions, _, _, err = c.Jobs().Versions("a", false, nil)
	if err != nil || len(versions) != 6 {
		t.Errorf("%d versions are kept, %v", len(versions), err)
	}
}

func TestHTTP_WaitingJobStartsWhenRoomComes(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	register(t, c, job("first", 1, device("vgpu", 50)))
	eventually(t, "first runs", func() bool { return len(running(t, c, "first")) == 1 })
	out := register(t, c, job("second", 1, device("vgpu", 50)))
	var blocked string
	eventually(t, "second waits", func() bool {
		ev, _, err := c.Evaluations().Info(out.EvalID, nil)
		if err != nil {
			t.Fatal(err)
		}
		blocked = ev.BlockedEval
		return ev.Status == "complete" && blocked != ""
	})
	ev, _, err := c.Evaluations().Info(blocked, nil)
	if err != nil || ev.Status != "blocked" || ev.FailedTGAllocs["g"].DimensionExhausted["devices: no devices match request"] != 1 {
		t.Errorf("blocked evaluation is %+v, %v", ev, err)
	}
	summary, _, err := c.Jobs().Summary("second", nil)
	if err != nil || summary.Summary["g"].Queued != 1 {
		t.Errorf("summary is %+v, %v", summary, err)
	}
	if _, _, err := c.Jobs().Deregister("first", true, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "second runs", func() bool { return len(running(t, c, "second")) == 1 })
	ev, _, err = c.Evaluations().Info(blocked, nil)
	if err != nil || ev.Status != "complete" {
		t.Errorf("blocked evaluation ended as %+v, %v", ev, err)
	}
}

func TestHTTP_StopAllocReplacesIt(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	register(t, c, job("a", 1, device("vgpu", 80)))
	eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
	old := running(t, c, "a")[0]
	if _, err := c.Allocations().Stop(old, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another runs", func() bool {
		now := running(t, c, "a")
		return len(now) == 1 && now[0].ID != old.ID && now[0].PreviousAllocation == old.ID
	})
}

func TestHTTP_NodesAndDevices(t *testing.T) {
	t.Parallel()
	card := embedded.SimNodes(1, 2, accel.AMD, "MI300X", 196608, accel.Whole)
	shared := embedded.SimNodes(1, 1, accel.Ascend, "910B3", 65536, accel.Shared)
	card[0].Cards = append(card[0].Cards, shared[0].Cards...)
	_, c := start(t, embedded.Config{SimNodes: card})
	stubs, _, err := c.Nodes().List(&api.QueryOptions{Params: map[string]string{"resources": "true"}})
	if err != nil || len(stubs) != 1 || stubs[0].NodeResources == nil {
		t.Fatalf("nodes are %+v, %v", stubs, err)
	}
	n, _, err := c.Nodes().Info(stubs[0].ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, d := range n.NodeResources.Devices {
		got[d.Vendor+"/"+d.Type+"/"+d.Name] = len(d.Instances)
	}
	want := map[string]int{"amd/gpu/MI300X": 2}
	for _, k := range card[0].Cards {
		if k.Form == accel.Shared {
			want[k.DeviceID()] = 64
		} else {
			want[string(k.Vendor)+"/card/"+k.DescriptorName()] = 0
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device groups and their instances (-want +got):\n%s", diff)
	}
	if n.Resources == nil || n.Reserved == nil {
		t.Error("the fields that a 1.6 command line reads are missing")
	}
}

func TestHTTP_DrainAndEligibility(t *testing.T) {
	t.Parallel()
	_, c := start(t, embedded.Config{SimNodes: embedded.SimNodes(2, 1, accel.NVIDIA, "A100", 81920, accel.Shared)})
	register(t, c, job("a", 4, nil))
	eventually(t, "four run", func() bool { return len(running(t, c, "a")) == 4 })
	node := running(t, c, "a")[0].NodeID
	if _, err := c.Nodes().UpdateDrain(node, &api.DrainSpec{Deadline: time.Hour}, false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run elsewhere", func() bool {
		now := running(t, c, "a")
		return len(now) == 4 && !slices.ContainsFunc(now, func(a *api.Allocation) bool { return a.NodeID == node })
	})
	eventually(t, "the drain ends", func() bool {
		n, _, err := c.Nodes().Info(node, nil)
		return err == nil && n.DrainStrategy == nil && n.LastDrain.Status == "complete" && n.SchedulingEligibility == "ineligible"
	})
	if _, err := c.Nodes().ToggleEligibility(node, true, nil); err != nil {
		t.Fatal(err)
	}
}

func TestHTTP_DispatchAndPeriodic(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	batch := func(id string, change func(*api.Job)) *api.Job {
		j := job(id, 1, nil)
		j.Type = new("batch")
		j.TaskGroups[0].Tasks[0].Config = map[string]any{"run_for": "1ms"}
		change(j)
		return j
	}
	register(t, c, batch("par", func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"x"}} }))
	if _, _, err := c.Jobs().Dispatch("par", nil, nil, "", nil); err == nil {
		t.Error("a dispatch without its key was taken")
	}
	out, _, err := c.Jobs().Dispatch("par", map[string]string{"x": "1"}, []byte("payload"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dispatched job is done", func() bool {
		j, _, err := c.Jobs().Info(out.DispatchedJobID, nil)
		return err == nil && *j.Status == "dead" && j.Meta["x"] == "1" && string(j.Payload) == "payload"
	})
	if r := register(t, c, batch("per", func(j *api.Job) {
		j.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: new("0 0 1 1 *"), SpecType: new("cron")}
	})); r.EvalID != "" {
		t.Error("a periodic job was evaluated")
	}
	eval, _, err := c.Jobs().PeriodicForce("per", nil)
	if err != nil || eval == "" {
		t.Errorf("forcing a launch gave %q, %v", eval, err)
	}
}

func TestHTTP_FailedTaskIsRescheduledAndDeploymentFails(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	j := job("a", 1, nil)
	j.TaskGroups[0].Tasks[0].Config = map[string]any{"start_error": "no such image"}
	j.Update = &api.UpdateStrategy{ProgressDeadline: new(50 * time.Millisecond), HealthyDeadline: new(20 * time.Millisecond), MinHealthyTime: new(time.Millisecond)}
	j.Reschedule = &api.ReschedulePolicy{Delay: new(5 * time.Second), DelayFunction: new("constant"), Unlimited: new(true)}
	register(t, c, j)
	eventually(t, "the deployment fails", func() bool {
		d, _, err := c.Jobs().LatestDeployment("a", nil)
		return err == nil && d != nil && d.Status == "failed"
	})
	allocs, _, err := c.Jobs().Allocations("a", true, nil)
	if err != nil || allocs[0].ClientStatus != "failed" || allocs[0].FollowupEvalID == "" {
		t.Fatalf("allocation is %+v, %v", allocs[0], err)
	}
	events := allocs[0].TaskStates["t"].Events
	if last := events[len(events)-1]; last.DisplayMessage != "no such image" {
		t.Errorf("last task event is %+v", last)
	}
}

func TestHTTP_Services(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	j := job("a", 2, nil)
	j.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	j.TaskGroups[0].Services = []*api.Service{{Name: "web", Provider: "nomad", PortLabel: "http", Tags: []string{"heteroflow.model=m"}}}
	register(t, c, j)
	eventually(t, "two are registered", func() bool {
		found, _, err := c.Services().Get("web", nil)
		return err == nil && len(found) == 2 && found[0].Port >= 20000
	})
	found, _, err := c.Services().Get("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Services().Delete("web", found[0].ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Jobs().Deregister("a", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "none is registered", func() bool {
		list, _, err := c.Services().List(nil)
		return err == nil && len(list) == 0
	})
}

func TestHTTP_ParseAndSubmission(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	const source = `job "web" {
  group "g" {
    task "t" {
      driver = "mock_driver"
      config { run_for = "1h" }
    }
  }
}`
	j, err := c.Jobs().ParseHCL(source, true)
	if err != nil || *j.ID != "web" || *j.TaskGroups[0].Count != 1 {
		t.Fatalf("parsed %+v, %v", j, err)
	}
	if _, _, err := c.Jobs().RegisterOpts(j, &api.RegisterOptions{Submission: &api.JobSubmission{Source: source, Format: "hcl2"}}, nil); err != nil {
		t.Fatal(err)
	}
	s, _, err := c.Jobs().Submission("web", 0, nil)
	if err != nil || s.Source != source {
		t.Errorf("submission is %+v, %v", s, err)
	}
	v, _, err := c.Jobs().Validate(&api.Job{ID: new("x")}, nil)
	if err != nil || len(v.ValidationErrors) == 0 || v.Error == "" {
		t.Errorf("validation is %+v, %v", v, err)
	}
}

func TestHTTP_LogsOfASimulatedTask(t *testing.T) {
	t.Parallel()
	e, c := start(t, oneNode())
	register(t, c, job("a", 1, nil))
	eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
	id := running(t, c, "a")[0].ID
	status, text, _ := call(t, "GET", e.Addr()+"/v1/client/fs/logs/"+id+"?task=t&type=stdout&plain=true", "")
	if status != 200 || !strings.Contains(text, "nothing runs here") {
		t.Errorf("plain log is %d %q", status, text)
	}
	_, text, _ = call(t, "GET", e.Addr()+"/v1/client/fs/logs/"+id+"?task=t&type=stdout", "")
	var frame api.StreamFrame
	if err := json.Unmarshal([]byte(text), &frame); err != nil || !bytes.Contains(frame.Data, []byte("nothing runs here")) {
		t.Errorf("framed log is %q, %v", text, err)
	}
}

func TestEngine_GoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := oneNode()
	cfg.DataDir = dir
	run := func(f func(*api.Client)) {
		e, err := embedded.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		<-e.Ready()
		c, err := api.NewClient(&api.Config{Address: e.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		f(c)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	var before []*api.Allocation
	var index uint64
	run(func(c *api.Client) {
		register(t, c, job("a", 2, device("vgpu", 30)))
		register(t, c, job("waits", 1, device("vgpu", 80)))
		eventually(t, "two run", func() bool { return len(running(t, c, "a")) == 2 })
		before = running(t, c, "a")
		_, meta, err := c.Jobs().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		index = meta.LastIndex
	})
	// A kill in the middle of a write leaves half a line.
	f, err := os.OpenFile(filepath.Join(dir, "server", "state.log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`00000000 {"Index":99`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	run(func(c *api.Client) {
		after := running(t, c, "a")
		if len(after) != 2 || after[0].ID != before[0].ID {
			t.Fatalf("after the restart %d run", len(after))
		}
		if diff := cmp.Diff(before[0].AllocatedResources, after[0].AllocatedResources); diff != "" {
			t.Errorf("devices changed:\n%s", diff)
		}
		if _, meta, err := c.Jobs().List(nil); err != nil || meta.LastIndex < index {
			t.Errorf("index went from %d to %v, %v", index, meta, err)
		}
		if _, _, err := c.Jobs().Deregister("a", false, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the waiting job runs", func() bool { return len(running(t, c, "waits")) == 1 })
	})
}

func TestEngine_LostNode(t *testing.T) {
	t.Parallel()
	e, c := start(t, embedded.Config{SimNodes: embedded.SimNodes(2, 1, accel.NVIDIA, "A100", 81920, accel.Shared)})
	register(t, c, job("a", 2, nil))
	eventually(t, "both run", func() bool { return len(running(t, c, "a")) == 2 })
	node := running(t, c, "a")[0].NodeID
	e.SetFault(node, embedded.Fault{Silent: true})
	if err := e.SetNodeDown(node, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both run on the other", func() bool {
		now := running(t, c, "a")
		return len(now) == 2 && now[0].NodeID != node && now[1].NodeID != node
	})
	allocs, _, err := c.Jobs().Allocations("a", true, nil)
	if err != nil || !slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool { return a.ClientStatus == "lost" }) {
		t.Errorf("no allocation is lost: %v", err)
	}
}
