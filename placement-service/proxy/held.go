package proxy

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// viewNames are the parts of a job that a held job has an answer for.
var viewNames = map[string]bool{
	"": true, "/summary": true, "/allocations": true, "/evaluations": true, "/deployment": true, "/deployments": true,
	"/versions": true, "/submission": true, "/scale": true, "/services": true,
}

// viewOf is a held job, or a part of it, in Nomad's words.
func viewOf(r *http.Request, job store.Job) any {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/v1/evaluation/"); ok {
		id, part, _ := strings.Cut(rest, "/")
		if part == "allocations" {
			return []any{}
		}
		if id != job.EvalID {
			return blockedView(job)
		}
		return evalView(job)
	}
	_, suffix, _ := splitJob(r.URL)
	switch suffix {
	case "/summary":
		return summaryView(job)
	case "/allocations", "/deployments", "/services":
		return []any{}
	case "/deployment":
		return nil
	case "/evaluations":
		if job.EvalID == "" {
			return []any{}
		}
		return []any{blockedView(job), evalView(job)}
	case "/versions":
		return submit.Tree{"Versions": []any{jobView(job)}, "Diffs": nil}
	case "/submission":
		if submission, ok := envelope(job)["Submission"]; ok {
			return submission
		}
		return submit.Tree{}
	case "/scale":
		return scaleView(job)
	}
	return jobView(job)
}

// envelope is the request that the job came with; empty when it cannot be read, which only the database's owner
// could bring about.
func envelope(job store.Job) submit.Tree {
	var env submit.Tree
	if err := nomadapi.DecodeTree(job.Spec, &env); err != nil {
		return submit.Tree{}
	}
	return env
}

func specOf(job store.Job) submit.Tree {
	spec, _ := envelope(job)["Job"].(submit.Tree)
	return spec
}

func statusOf(job store.Job) string {
	if job.State == store.JobRefused {
		return "dead"
	}
	return "pending"
}

func jobView(job store.Job) submit.Tree {
	out := maps.Clone(specOf(job))
	if out == nil {
		out = submit.Tree{}
	}
	maps.Copy(out, submit.Tree{
		"ID": job.ID, "Namespace": job.Namespace, "Status": statusOf(job), "StatusDescription": job.Reason, "Stop": false, "Version": 0,
		"Stable": false, "CreateIndex": 1, "ModifyIndex": 1, "JobModifyIndex": 1, "SubmitTime": job.CreatedAt.UnixNano(),
	})
	defaults(out, submit.Tree{"Name": job.ID, "Type": "service", "Priority": job.Priority, "Region": "global", "ParentID": ""})
	return out
}

// defaults sets what is absent or null.
func defaults(tree, values submit.Tree) {
	for name, v := range values {
		if tree[name] == nil {
			tree[name] = v
		}
	}
}

func stubView(job store.Job) submit.Tree {
	full := jobView(job)
	out := submit.Tree{"JobSummary": summaryView(job), "Periodic": full["Periodic"] != nil, "ParameterizedJob": full["ParameterizedJob"] != nil}
	for _, name := range []string{
		"ID", "ParentID", "Name", "Namespace", "Datacenters", "NodePool", "Type", "Priority", "Stop", "Status", "StatusDescription",
		"CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime", "Meta", "Version",
	} {
		out[name] = full[name]
	}
	return out
}

func groups(job store.Job) map[string]int64 {
	out := map[string]int64{}
	list, _ := specOf(job)["TaskGroups"].([]any)
	for _, g := range list {
		group, _ := g.(submit.Tree)
		name, _ := group["Name"].(string)
		out[name] = 1
		if n, ok := group["Count"].(json.Number); ok {
			if count, err := n.Int64(); err == nil {
				out[name] = count
			}
		}
	}
	return out
}

func summaryView(job store.Job) submit.Tree {
	summary := submit.Tree{}
	for name, count := range groups(job) {
		summary[name] = submit.Tree{"Queued": count, "Complete": 0, "Failed": 0, "Running": 0, "Starting": 0, "Lost": 0, "Unknown": 0}
	}
	return submit.Tree{
		"JobID": job.ID, "Namespace": job.Namespace, "Summary": summary,
		"Children": submit.Tree{"Pending": 0, "Running": 0, "Dead": 0}, "CreateIndex": 1, "ModifyIndex": 1,
	}
}

func scaleView(job store.Job) submit.Tree {
	out := submit.Tree{}
	for name, count := range groups(job) {
		out[name] = submit.Tree{"Desired": count, "Placed": 0, "Running": 0, "Healthy": 0, "Unhealthy": 0, "Events": nil}
	}
	return submit.Tree{
		"JobID": job.ID, "Namespace": job.Namespace, "JobCreateIndex": 1, "JobModifyIndex": 1, "JobStopped": false, "TaskGroups": out,
	}
}

// evalView is the evaluation of a held job as one that placed nothing and left a blocked one behind: Nomad's clients
// print the reason and that it waits, and go.
func evalView(job store.Job) submit.Tree {
	out := evalBase(job)
	failed, queued := submit.Tree{}, submit.Tree{}
	for name, count := range groups(job) {
		failed[name] = submit.Metric(job.Reason, []engine.ReasonCount{}, int(count))
		queued[name] = count
	}
	maps.Copy(out, submit.Tree{
		"ID": job.EvalID, "Status": "complete", "TriggeredBy": "job-register", "FailedTGAllocs": failed,
		"QueuedAllocations": queued, "BlockedEval": submit.BlockedEvalID(job.EvalID),
	})
	return out
}

func blockedView(job store.Job) submit.Tree {
	out := evalBase(job)
	maps.Copy(out, submit.Tree{
		"ID": submit.BlockedEvalID(job.EvalID), "Status": "blocked", "TriggeredBy": "queued-allocs",
		"StatusDescription": job.Reason, "PreviousEval": job.EvalID,
	})
	return out
}

func evalBase(job store.Job) submit.Tree {
	kind, _ := specOf(job)["Type"].(string)
	return submit.Tree{
		"Namespace": job.Namespace, "Priority": job.Priority, "Type": kind, "JobID": job.ID, "JobModifyIndex": 1,
		"NodeID": "", "NodeModifyIndex": 0, "DeploymentID": "", "StatusDescription": "", "Wait": 0, "NextEval": "",
		"PreviousEval": "", "BlockedEval": "", "FailedTGAllocs": nil, "QuotaLimitReached": "", "QueuedAllocations": nil,
		"SnapshotIndex": 1, "CreateIndex": 1, "ModifyIndex": 1, "CreateTime": job.QueuedAt.UnixNano(), "ModifyTime": job.UpdatedAt.UnixNano(),
	}
}
