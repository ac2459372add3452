package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/placement-service/flight"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

// Every decision is kept with what it was made from, and comes out the same when it is taken again.
func TestRecord_DecisionsComeOutTheSameAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := start(t, one(), func(c *server.Config) { c.RecordDir = dir })
	s.register(share("first", 1, "20GiB"))
	s.runs("first", 1)
	s.register(share("second", 1, "70GiB")) // waits
	s.call(http.MethodPut, "/api/v1/plugins/spread", map[string]any{"enabled": true}, http.StatusOK)
	s.register(share("third", 2, "5GiB"))
	s.runs("third", 2)
	s.stop()
	seen := map[string]bool{}
	for e, err := range flight.Files(dir) {
		if err != nil {
			t.Fatal(err)
		}
		seen[e.Request.JobID] = true
		if r := flight.Replay(e, nil); r.Outcome() != flight.Same {
			t.Errorf("job %s: %s: was %s, now %s", e.Request.JobID, r.Outcome(), flight.Words(r.Decision), flight.Words(r.Now))
		}
	}
	if len(seen) != 3 {
		t.Errorf("decisions of %v are kept, want of all three jobs", seen)
	}
}

// TestShares is the first scenario: two shares of 20 GiB run together on one card of 80 GiB, a third of 50
// GiB waits with a reason that names need, card and gap, and starts within a second of the room appearing.
func TestShares_ThirdWaitsAndStartsWhenRoomAppears(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("first", 1, "20GiB"))
	s.register(share("second", 1, "20GiB"))
	s.runs("first", 1)
	s.runs("second", 1)

	out := s.register(share("third", 1, "50GiB"))
	if !strings.Contains(out.Warnings, "50 GiB") || !strings.Contains(out.Warnings, "40 GiB") {
		t.Errorf("warnings are %q, want the need of 50 GiB and the 40 GiB that are free", out.Warnings)
	}
	eval, _, err := s.nomad.Evaluations().Info(out.EvalID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if eval.Status != "complete" || eval.BlockedEval == "" || len(eval.FailedTGAllocs) != 1 {
		t.Errorf("evaluation is %+v, want complete with a failed group and a blocked evaluation", eval)
	}
	for sentence := range eval.FailedTGAllocs["g"].DimensionExhausted {
		for _, part := range []string{"50 GiB", "40 GiB", "10 GiB", "A100-SXM4-80GB"} {
			if !strings.Contains(sentence, part) {
				t.Errorf("reason %q does not name %s", sentence, part)
			}
		}
	}
	job, _, err := s.nomad.Jobs().Info("third", nil)
	if err != nil || *job.Status != "pending" || !strings.Contains(*job.StatusDescription, "50 GiB") {
		t.Fatalf("job is %+v, %v; want pending with the reason", job, err)
	}
	list, _, err := s.nomad.Jobs().List(nil)
	if err != nil || len(list) != 3 {
		t.Fatalf("job list has %d jobs, %v; want 3", len(list), err)
	}
	if queue := s.items("/api/v1/queue"); len(queue) != 1 || queue[0]["job_id"] != "third" || queue[0]["position"] != 1.0 {
		t.Errorf("queue is %v", queue)
	}
	explain := s.tree("/api/v1/jobs/third/explain")
	if now := explain["now"].(map[string]any); now["outcome"] != "waiting" || !strings.Contains(now["reason"].(string), "50 GiB") {
		t.Errorf("explanation is %v", now)
	} else if first := now["suggestions"].([]any); len(first) == 0 || first[0].(map[string]any)["to"] != "40 GiB" {
		t.Errorf("suggestions are %v, want 40 GiB of memory first", first)
	}

	if _, _, err := s.nomad.Jobs().Deregister("first", false, nil); err != nil {
		t.Fatal(err)
	}
	var freed time.Time
	eventually(t, "the first share ends", func() bool {
		freed = time.Now()
		return len(s.running("first")) == 0
	})
	s.runs("third", 1)
	t.Logf("third runs %v after the room appeared", time.Since(freed))
	if queue := s.items("/api/v1/queue"); len(queue) != 0 {
		t.Errorf("queue is %v, want nothing", queue)
	}
	eventually(t, "the ledger holds 70 units", func() bool { return s.usedUnits() == 70 })

	for _, id := range []string{"second", "third"} {
		if _, _, err := s.nomad.Jobs().Deregister(id, true, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is left over", func() bool { return s.usedUnits() == 0 })
}

func TestSameFileTwice_RestartsNothingAndPlanShowsNoChange(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("llm", 2, "20GiB"))
	s.runs("llm", 2)
	before := map[string]bool{}
	for _, a := range s.running("llm") {
		before[a.ID] = true
	}
	plan, _, err := s.nomad.Jobs().Plan(share("llm", 2, "20GiB"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Diff.Type != "None" || len(plan.FailedTGAllocs) != 0 {
		t.Errorf("plan after run is %+v, want no change", plan.Diff)
	}
	s.register(share("llm", 2, "20GiB"))
	used := s.usedUnits()
	s.runs("llm", 2)
	for _, a := range s.running("llm") {
		if !before[a.ID] {
			t.Errorf("allocation %s is new", a.ID)
		}
	}
	if used != 40 {
		t.Errorf("ledger holds %d units, want 40", used)
	}
	job, _, err := s.nomad.Jobs().Info("llm", nil)
	if err != nil || *job.Version != 0 {
		t.Errorf("job has version %d, %v; want 0", *job.Version, err)
	}
}

// TestPlan_HidesGrants: of a grant that changes people see that it does, not the grant.
func TestPlan_HidesGrants(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	for step, old := range []string{"", "(signed by HeteroFlow)"} {
		plan, _, err := s.nomad.Jobs().Plan(share("llm", 1, []string{"20GiB", "30GiB"}[step]), true, nil)
		if err != nil {
			t.Fatal(err)
		}
		found, grants := false, 0
		for _, object := range plan.Diff.TaskGroups[0].Tasks[0].Objects {
			for _, f := range object.Fields {
				if object.Name != "Config" || f.Name != "grant" {
					found = found || f.New == "30GiB" || step == 0
					continue
				}
				if grants++; f.Old != old || f.New != "(signed by HeteroFlow)" {
					t.Errorf("step %d: grant is %+v", step, f)
				}
			}
		}
		if !found || grants != 1 {
			t.Errorf("step %d: the grant or the rest of the difference is gone: %+v", step, plan.Diff.TaskGroups[0].Tasks[0])
		}
		if step == 0 {
			s.register(share("llm", 1, "20GiB"))
			s.runs("llm", 1)
		}
	}
}

func TestPlan_ReservesNothingAndSaysWhatWouldWait(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	plan, _, err := s.nomad.Jobs().Plan(share("a", 1, "60GiB"), true, nil)
	if err != nil || len(plan.FailedTGAllocs) != 0 {
		t.Fatalf("plan is %+v, %v; want room", plan, err)
	}
	if s.usedUnits() != 0 {
		t.Error("plan reserved something")
	}
	s.register(share("b", 1, "60GiB"))
	s.runs("b", 1)
	plan, _, err = s.nomad.Jobs().Plan(share("a", 1, "60GiB"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	metric := plan.FailedTGAllocs["g"]
	if metric == nil || len(metric.DimensionExhausted) != 1 {
		t.Fatalf("failed groups are %+v, want the reason for g", plan.FailedTGAllocs)
	}
}

func TestScale_GoesThroughAdmission(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("llm", 1, "20GiB"))
	s.runs("llm", 1)
	first := s.running("llm")[0].ID
	if _, _, err := s.nomad.Jobs().Scale("llm", "g", new(3), "more", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("llm", 3)
	kept := false
	for _, a := range s.running("llm") {
		kept = kept || a.ID == first
	}
	if !kept {
		t.Error("scaling up restarted the first allocation")
	}
	eventually(t, "the ledger holds 60 units", func() bool { return s.usedUnits() == 60 })
	out, _, err := s.nomad.Jobs().Scale("llm", "g", new(5), "too many", false, nil, nil)
	if err != nil || !strings.Contains(out.Warnings, "waits") {
		t.Errorf("scaling beyond the card answers %+v, %v; want a warning that it waits", out, err)
	}
	s.runs("llm", 3)
	if _, _, err := s.nomad.Jobs().Scale("llm", "g", new(1), "less", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("llm", 1)
	eventually(t, "the ledger holds 20 units", func() bool { return s.usedUnits() == 20 })
}

func TestScale_RoomGivenBackIsNotTakenForGranted(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("llm", 3, "20GiB"))
	s.runs("llm", 3)
	scale := func(n int) *api.JobRegisterResponse {
		t.Helper()
		out, _, err := s.nomad.Jobs().Scale("llm", "g", &n, "", false, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	scale(1)
	eventually(t, "the ledger holds 20 units", func() bool { return s.usedUnits() == 20 })
	s.register(share("other", 1, "60GiB"))
	s.runs("other", 1)
	if out := scale(3); !strings.Contains(out.Warnings, "waits") {
		t.Errorf("scaling back up answers %+v, want a warning that it waits: its room is another job's by now", out)
	}
	s.runs("llm", 1)
}

func TestRevert_DecidesAnew(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("llm", 1, "20GiB"))
	s.runs("llm", 1)
	s.register(share("llm", 1, "60GiB"))
	eventually(t, "the second version holds 60 units", func() bool { return s.usedUnits() == 60 })
	if _, _, err := s.nomad.Jobs().Revert("llm", 0, nil, nil, "", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first version holds 20 units", func() bool { return s.usedUnits() == 20 })
	s.runs("llm", 1)
}

func TestJobWithoutAsks_PassesUnchanged(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(plain("a/b"))
	s.runs("a/b", 1)
	if jobs := s.items("/api/v1/jobs"); len(jobs) != 1 || jobs[0]["id"] != "a/b" || jobs[0]["state"] != "submitted" {
		t.Errorf("jobs are %v", jobs)
	}
	if got := s.tree("/api/v1/jobs/a%2Fb"); got["nomad_status"] != "running" {
		t.Errorf("job is %v, want running", got)
	}
	if _, _, err := s.nomad.Jobs().Deregister("a/b", true, nil); err != nil {
		t.Fatal(err)
	}
}

func TestWaitingJob_CanBeStoppedChangedAndSeen(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("big", 1, "70GiB"))
	s.runs("big", 1)
	s.register(share("team/late", 1, "30GiB"))
	for what, check := range map[string]func() (int, error){
		"allocations": func() (int, error) {
			l, _, err := s.nomad.Jobs().Allocations("team/late", false, nil)
			return len(l), err
		},
		"deployments": func() (int, error) {
			l, _, err := s.nomad.Jobs().Deployments("team/late", false, nil)
			return len(l), err
		},
	} {
		if n, err := check(); n != 0 || err != nil {
			t.Errorf("%s of the waiting job are %d, %v; want none", what, n, err)
		}
	}
	evals, _, err := s.nomad.Jobs().Evaluations("team/late", nil)
	if err != nil || len(evals) != 2 {
		t.Errorf("evaluations are %v, %v; want the complete and the blocked one", evals, err)
	}
	summary, _, err := s.nomad.Jobs().Summary("team/late", nil)
	if err != nil || summary.Summary["g"].Queued != 1 {
		t.Errorf("summary is %+v, %v; want 1 queued", summary, err)
	}
	if d, _, err := s.nomad.Jobs().LatestDeployment("team/late", nil); d != nil || err != nil {
		t.Errorf("deployment is %v, %v; want none", d, err)
	}
	s.register(share("team/late", 1, "5GiB"))
	s.runs("team/late", 1)
	s.register(share("later", 1, "30GiB"))
	if _, _, err := s.nomad.Jobs().Deregister("later", true, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.items("/api/v1/queue")) != 0 {
		t.Error("a stopped job still waits")
	}
	if _, _, err := s.nomad.Jobs().Info("later", nil); err == nil {
		t.Error("a purged job is still shown")
	}
}

func TestQueue_PriorityThenArrivalWithBackfill(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one())
	s.register(share("holder", 1, "80GiB"))
	s.runs("holder", 1)
	s.register(share("old", 1, "60GiB"))
	s.register(share("urgent", 1, "60GiB", func(j *api.Job) { j.Priority = new(90) }))
	s.register(share("small", 1, "20GiB"))
	var order []string
	for _, item := range s.items("/api/v1/queue") {
		order = append(order, item["job_id"].(string))
	}
	if strings.Join(order, " ") != "urgent old small" {
		t.Errorf("queue is %v", order)
	}
	if _, _, err := s.nomad.Jobs().Deregister("holder", false, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("urgent", 1)
	s.runs("small", 1)
	if queue := s.items("/api/v1/queue"); len(queue) != 1 || queue[0]["job_id"] != "old" {
		t.Errorf("queue is %v, want old alone", queue)
	}
}
