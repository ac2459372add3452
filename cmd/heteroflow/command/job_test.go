package command

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

const jobHCL = `
variable "n" { type = number }
variable "name" { default = "world" }
job "hello" {
  meta { name = var.name }
  group "g" { count = var.n }
}
`

const (
	evalID   = "11111111-aaaa-bbbb-cccc-000000000001"
	allocID  = "22222222-aaaa-bbbb-cccc-000000000002"
	alloc2ID = "33333333-aaaa-bbbb-cccc-000000000003"
)

func parsedJob() map[string]any { return map[string]any{"ID": "hello", "Name": "hello"} }

func placedAnswers() map[string]any {
	return map[string]any{
		"POST /v1/jobs/parse":          parsedJob(),
		"PUT /v1/jobs/parse":           parsedJob(),
		"PUT /v1/jobs":                 map[string]any{"EvalID": evalID, "JobModifyIndex": 7, "Warnings": "1 warning:\n\n* look out"},
		"GET /v1/evaluation/" + evalID: map[string]any{"ID": evalID, "JobID": "hello", "Status": "complete", "CreateIndex": 5},
		"GET /v1/evaluation/" + evalID + "/allocations": []map[string]any{{
			"ID": allocID, "NodeName": "gpu-1", "TaskGroup": "g", "DesiredStatus": "run", "CreateIndex": 6,
		}},
	}
}

func TestJobRun_Placed(t *testing.T) {
	t.Parallel()
	f := newFake(t, placedAnswers())
	golden(t, "job_run_placed", f.call(t, nil, "job", "run", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL)))
	var sent struct {
		Job        *api.Job
		Submission *api.JobSubmission
	}
	if err := json.Unmarshal(f.last(t, "PUT /v1/jobs").body, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Submission.Source != jobHCL || sent.Submission.Format != "hcl2" || sent.Submission.VariableFlags["n"] != "2" {
		t.Errorf("submission = %+v", sent.Submission)
	}
}

func TestJobRun_ValuesGoAsTheirType(t *testing.T) {
	t.Parallel()
	f := newFake(t, placedAnswers())
	file := write(t, "a.nomad.hcl", jobHCL)
	values := write(t, "values.hcl", "n = 1\nother = 5\n")
	env := map[string]string{"NOMAD_VAR_name": "007", "NOMAD_VAR_unused": "x"}
	if r := f.call(t, env, "job", "run", "-detach", "-var-file", values, "-var", "n=3", file); r.code != 0 {
		t.Fatal(r)
	}
	var asked api.JobsParseRequest
	call := "PUT /v1/jobs/parse"
	if !slices.Contains(f.calls(), call) {
		call = "POST /v1/jobs/parse"
	}
	if err := json.Unmarshal(f.last(t, call).body, &asked); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(strings.Fields(asked.Variables), " "), `n = 3 name = "007"`; got != want {
		t.Errorf("variables = %q, want %q", got, want)
	}
}

func TestJobRun_Queued(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	answers["GET /v1/evaluation/"+evalID] = map[string]any{
		"ID": evalID, "JobID": "hello", "Status": "complete", "BlockedEval": allocID,
		"FailedTGAllocs": map[string]any{"g": map[string]any{
			"CoalescedFailures": 1, "NodesEvaluated": 1, "NodesExhausted": 1,
			"DimensionExhausted": map[string]int{"needs 50 GiB on one card: the best card has 40 GiB": 1, "memory": 2},
			"ConstraintFiltered": map[string]int{"${attr.kernel.name} = linux": 3},
		}},
	}
	answers["GET /v1/evaluation/"+evalID+"/allocations"] = []any{}
	golden(t, "job_run_queued", newFake(t, answers).call(t, nil, "job", "run", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL)))
}

func TestJobRun_WaitsForRoom(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	answers["GET /v1/evaluation/"+evalID] = map[string]any{
		"ID": evalID, "JobID": "hello", "Status": "complete", "FailedTGAllocs": map[string]any{"g": map[string]any{}},
	}
	answers["GET /v1/job/hello/summary"] = map[string]any{"Summary": map[string]any{"g": map[string]any{"Running": 2}}}
	r := newFake(t, answers).call(t, nil, "job", "run", "-wait", "10s", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL))
	if r.code != 0 || !strings.HasSuffix(r.out, "==> Everything is placed\n") {
		t.Errorf("%+v", r)
	}
}

func TestJobRun_AnswerForPrograms(t *testing.T) {
	t.Parallel()
	f := newFake(t, placedAnswers())
	file := write(t, "a.nomad.hcl", jobHCL)
	golden(t, "job_run_json", f.call(t, nil, "job", "run", "-json", "-var", "n=2", file))
	if r := f.call(t, nil, "job", "run", "-t", "{{.EvalID}}", "-var", "n=2", file); r.out != evalID+"\n" {
		t.Errorf("-t printed %q", r.out)
	}
}

func TestJobRun_ParsesItselfWhereTheServerCannot(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	delete(answers, "PUT /v1/jobs/parse")
	delete(answers, "POST /v1/jobs/parse")
	f := newFake(t, answers)
	r := f.call(t, nil, "job", "run", "-output", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL))
	var shown struct{ Job *api.Job }
	if err := json.Unmarshal([]byte(r.out), &shown); err != nil || r.code != 0 {
		t.Fatalf("%v %+v", err, r)
	}
	if *shown.Job.ID != "hello" || *shown.Job.TaskGroups[0].Count != 2 {
		t.Errorf("job = %+v", shown.Job)
	}
	if slices.Contains(f.calls(), "PUT /v1/jobs") {
		t.Error("-output submitted the job")
	}
}

func TestJobRun_JSONFile(t *testing.T) {
	t.Parallel()
	f := newFake(t, placedAnswers())
	if r := f.call(t, nil, "job", "run", "-detach", write(t, "a.json", `{"Job":{"ID":"hello"}}`)); r.code != 0 {
		t.Error(r)
	}
	if slices.ContainsFunc(f.calls(), func(c string) bool { return strings.HasSuffix(c, "/parse") }) {
		t.Error("JSON was sent to the parser")
	}
	if r := f.call(t, nil, "job", "run", write(t, "b.json", `{"Name":"x"}`)); r.code != 1 || !strings.Contains(r.errors, `no "ID"`) {
		t.Error(r)
	}
}

func TestJobRun_Refused(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	answers["PUT /v1/jobs"] = answer{http.StatusInternalServerError, "memory \"20\" has no unit: write \"20GiB\" or \"20MiB\"\n"}
	golden(t, "job_run_refused", newFake(t, answers).call(t, nil, "job", "run", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL)))

	wrong := newFake(t, map[string]any{
		"PUT /v1/jobs/parse": answer{http.StatusBadRequest, "a.hcl:3,1-4: Unsupported argument"}, "POST /v1/jobs/parse": answer{http.StatusBadRequest, "a.hcl:3,1-4: Unsupported argument"},
	})
	r := wrong.call(t, nil, "job", "run", "-var", "n=2", write(t, "a.nomad.hcl", jobHCL))
	if r.code != 1 || !strings.Contains(r.errors, "a.hcl:3,1-4: Unsupported argument") {
		t.Errorf("%+v", r)
	}
}

func TestJobPlan(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	answers["PUT /v1/job/hello/plan"] = map[string]any{
		"JobModifyIndex": 7,
		"Annotations":    map[string]any{"DesiredTGUpdates": map[string]any{"g": map[string]any{"Place": 1, "Ignore": 2}}},
		"Diff": map[string]any{"Type": "Edited", "ID": "hello", "TaskGroups": []any{map[string]any{
			"Type": "Edited", "Name": "g", "Updates": map[string]int{"create": 1, "ignore": 2},
			"Fields": []any{map[string]any{"Type": "Edited", "Name": "Count", "Old": "2", "New": "3", "Annotations": []string{"forces create"}}},
			"Tasks": []any{map[string]any{
				"Type": "Edited", "Name": "t", "Annotations": []string{"forces create/destroy update"},
				"Objects": []any{map[string]any{"Type": "Edited", "Name": "Config", "Fields": []any{
					map[string]any{"Type": "Added", "Name": "image", "New": "x"},
					map[string]any{"Type": "Deleted", "Name": "args[0]", "Old": "y"},
					map[string]any{"Type": "None", "Name": "command", "Old": "z", "New": "z"},
				}}},
			}},
		}}},
	}
	file := write(t, "a.nomad.hcl", jobHCL)
	r := newFake(t, answers).call(t, nil, "job", "plan", "-var", "n=2", file)
	r.out = strings.ReplaceAll(r.out, file, "FILE")
	golden(t, "job_plan", r)

	answers["PUT /v1/job/hello/plan"] = map[string]any{
		"Annotations": map[string]any{"DesiredTGUpdates": map[string]any{"g": map[string]any{"Ignore": 2}}}, "Diff": map[string]any{"Type": "None", "ID": "hello"},
	}
	if r := newFake(t, answers).call(t, nil, "job", "plan", "-var", "n=2", file); r.code != 0 {
		t.Errorf("plan without change exits %d", r.code)
	}
}

func TestJobValidate(t *testing.T) {
	t.Parallel()
	answers := placedAnswers()
	answers["PUT /v1/validate/job"] = map[string]any{"DriverConfigValidated": true, "Warnings": "careful"}
	file := write(t, "a.nomad.hcl", jobHCL)
	golden(t, "job_validate", newFake(t, answers).call(t, nil, "job", "validate", "-var", "n=2", file))
	answers["PUT /v1/validate/job"] = map[string]any{"ValidationErrors": []string{"group g: no tasks"}, "Error": "1 error occurred"}
	golden(t, "job_validate_bad", newFake(t, answers).call(t, nil, "job", "validate", "-var", "n=2", file))
}

func statusAnswers() map[string]any {
	job := map[string]any{
		"ID": "hello", "Name": "hello", "Type": "service", "Priority": 50, "Status": "running", "Namespace": "default",
		"Datacenters": []string{"dc1"}, "NodePool": "default", "SubmitTime": 1767225600000000000,
		"TaskGroups": []any{map[string]any{"Name": "g", "Tasks": []any{map[string]any{"Name": "t"}}}},
	}
	return map[string]any{
		"GET /v1/jobs":      []any{map[string]any{"ID": "hello", "Type": "service", "Priority": 50, "Status": "running", "SubmitTime": 1767225600000000000}},
		"GET /v1/job/hello": job,
		"GET /v1/job/hello/allocations": []any{
			map[string]any{"ID": allocID, "NodeName": "gpu-1", "TaskGroup": "g", "DesiredStatus": "run", "ClientStatus": "running", "CreateIndex": 6, "CreateTime": 1767225601000000000, "TaskStates": map[string]any{"t": map[string]any{}}},
			map[string]any{"ID": alloc2ID, "NodeName": "gpu-1", "TaskGroup": "g", "DesiredStatus": "stop", "ClientStatus": "failed", "CreateIndex": 9, "CreateTime": 1767225602000000000, "TaskStates": map[string]any{"t": map[string]any{}, "u": map[string]any{}}},
		},
		"GET /v1/job/hello/summary": map[string]any{"JobID": "hello", "Summary": map[string]any{"g": map[string]any{"Running": 1, "Failed": 1}}},
		"GET /api/v1/jobs/hello": map[string]any{
			"id": "hello", "namespace": "default", "tenant": "research", "user": "u", "state": "submitted", "priority": 50,
			"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
			"placements": []any{map[string]any{"node_id": "n1", "node_name": "gpu-1", "task_group": "g", "task": "t", "group": "nvidia/vgpu/A100-1", "units": 20, "memory_mib": 20480, "alloc_id": allocID}},
		},
	}
}

func TestJobStatus(t *testing.T) {
	t.Parallel()
	f := newFake(t, statusAnswers())
	golden(t, "job_status_list", f.call(t, nil, "job", "status"))
	golden(t, "job_status_one", f.call(t, nil, "job", "status", "hel"))
	golden(t, "job_status_unknown", newFake(t, map[string]any{"GET /v1/jobs": []any{}}).call(t, nil, "job", "status", "nope"))
	if r := f.call(t, nil, "job", "status", "-t", "{{.ID}} {{.Status}}", "hello"); r.out != "hello running\n" {
		t.Errorf("-t printed %q", r.out)
	}
	two := newFake(t, map[string]any{"GET /v1/jobs": []any{map[string]any{"ID": "ab"}, map[string]any{"ID": "ac"}}})
	if r := two.call(t, nil, "job", "status", "a"); r.code != 1 || !strings.Contains(r.errors, "ab, ac") {
		t.Errorf("%+v", r)
	}
}

// A job may be placed and still not run: the driver's own words are shown where one looks first.
func TestJob_ThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	refused := map[string]any{"t": map[string]any{"State": "dead", "Failed": true, "Events": []any{
		map[string]any{"Type": "Received", "DisplayMessage": "Task received by client"},
		map[string]any{"Type": "Driver Failure", "DisplayMessage": "rpc error: code = Unknown desc = runtime \"docker\" is switched off"},
		map[string]any{"Type": "Not Restarting", "DisplayMessage": "Error was unrecoverable"},
	}}}
	good := map[string]any{"t": map[string]any{"State": "dead", "Events": []any{map[string]any{"Type": "Terminated", "DisplayMessage": "Exit Code: 0"}}}}
	answers := statusAnswers()
	answers["GET /v1/job/hello/allocations"] = []any{
		map[string]any{"ID": allocID, "TaskGroup": "g", "ClientStatus": "failed", "JobVersion": 1, "CreateIndex": 8, "TaskStates": refused},
		map[string]any{"ID": alloc2ID, "TaskGroup": "g", "ClientStatus": "failed", "JobVersion": 1, "CreateIndex": 7, "TaskStates": refused},
		map[string]any{"ID": "44444444-4", "TaskGroup": "g", "ClientStatus": "failed", "JobVersion": 0, "CreateIndex": 6, "TaskStates": refused},
		map[string]any{"ID": "55555555-5", "TaskGroup": "g", "ClientStatus": "complete", "JobVersion": 1, "CreateIndex": 5, "TaskStates": good},
	}
	f := newFake(t, answers)
	r := f.call(t, nil, "job", "status", "hello")
	_, tail, found := strings.Cut(r.out, "What Went Wrong\n")
	want := "Alloc     Task  Event           Why\n22222222  t     Driver Failure  runtime \"docker\" is switched off\n"
	if !found || tail != want {
		t.Errorf("status says %q", r.out)
	}
	if r := f.call(t, nil, "job", "logs", "hello"); r.code != 1 || !strings.Contains(r.errors, `was not started, and wrote nothing: runtime "docker" is switched off`) {
		t.Errorf("logs: %+v", r)
	}
}

func TestJobLogs(t *testing.T) {
	t.Parallel()
	answers := statusAnswers()
	answers["GET /v1/client/fs/logs/"+allocID] = "one\ntwo\n"
	f := newFake(t, answers)
	if r := f.call(t, nil, "job", "logs", "-stderr", "-c", "10", "hello"); r.out != "one\ntwo\n" || r.code != 0 {
		t.Errorf("%+v", r)
	}
	q := f.last(t, "GET /v1/client/fs/logs/"+allocID).query
	for name, want := range map[string]string{"task": "t", "type": "stderr", "origin": "end", "offset": "10", "plain": "true", "follow": "false"} {
		if got := q[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s = %v, want %s", name, got, want)
		}
	}
	if r := f.call(t, nil, "job", "logs", "-alloc", alloc2ID[:4], "hello"); r.code != 1 || !strings.Contains(r.errors, "the tasks t, u: choose with -task") {
		t.Errorf("%+v", r)
	}
	if r := f.call(t, nil, "job", "logs", "-alloc", "99", "hello"); r.code != 1 || !strings.Contains(r.errors, `no allocation "99"`) {
		t.Errorf("%+v", r)
	}
}

func TestJobStop(t *testing.T) {
	t.Parallel()
	answers := statusAnswers()
	answers["DELETE /v1/job/hello"] = map[string]any{"EvalID": evalID}
	answers["GET /v1/evaluation/"+evalID] = map[string]any{"ID": evalID, "JobID": "hello", "Status": "complete"}
	answers["GET /v1/evaluation/"+evalID+"/allocations"] = []any{}
	f := newFake(t, answers)
	golden(t, "job_stop", f.call(t, nil, "job", "stop", "-purge", "hello"))
	if q := f.last(t, "DELETE /v1/job/hello").query; q["purge"][0] != "true" {
		t.Errorf("query = %v", q)
	}
}
