package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// ErrPass says that Nomad may do it alone: the job asks for no accelerators.
var ErrPass = errors.New("the job asks for no accelerators")

// Scale sets the count of one group of a job with asks, as Nomad's scale request says, by registering it anew.
// ErrPass is returned for everything that Nomad can do itself.
func (s *Submitter) Scale(ctx context.Context, caller Caller, key watch.JobKey, request Tree) (Result, error) {
	count, ok := request["Count"].(json.Number)
	if !ok {
		return Result{}, ErrPass // only notes a message
	}
	env, err := s.current(ctx, key)
	if err != nil {
		return Result{}, err
	}
	target, _ := request["Target"].(Tree)
	group, _ := target["Group"].(string)
	job := env["Job"].(Tree)
	if err := checkScale(job, group, count); err != nil {
		return Result{}, err
	}
	env["Job"] = withCounts(job, map[string]any{group: count})
	for _, name := range []string{"PolicyOverride", "EvalPriority"} {
		delete(env, name)
	}
	if index, ok := request["JobModifyIndex"].(json.Number); ok && index != "0" {
		env["EnforceIndex"], env["JobModifyIndex"] = true, index
	}
	return s.Register(ctx, caller, env)
}

// checkScale applies the limits that Nomad applies to a scale request.
func checkScale(job Tree, group string, count json.Number) error {
	n, err := count.Int64()
	if err != nil || n < 0 {
		return &Answer{Status: http.StatusBadRequest, Text: "scaling action count must be a whole number, 0 or more"}
	}
	groups := groupsOf(job)
	at := slices.IndexFunc(groups, func(g Tree) bool { return g["Name"] == group })
	if at < 0 {
		return &Answer{Status: http.StatusBadRequest, Text: fmt.Sprintf("task group %q specified for scaling does not exist in job", group)}
	}
	scaling, _ := groups[at]["Scaling"].(Tree)
	if least, ok := scaling["Min"].(json.Number); ok {
		if m, err := least.Int64(); err == nil && n < m {
			return &Answer{Status: http.StatusBadRequest, Text: fmt.Sprintf("group count was less than scaling policy minimum: %d < %d", n, m)}
		}
	}
	if most, ok := scaling["Max"].(json.Number); ok {
		if m, err := most.Int64(); err == nil && n > m {
			return &Answer{Status: http.StatusBadRequest, Text: fmt.Sprintf("group count was greater than scaling policy maximum: %d > %d", n, m)}
		}
	}
	return nil
}

// Revert registers an earlier version of a job with asks anew, since its old placement may be taken. ErrPass is
// returned for jobs without asks.
func (s *Submitter) Revert(ctx context.Context, caller Caller, key watch.JobKey, request Tree) (Result, error) {
	version, _ := request["JobVersion"].(json.Number)
	n, err := version.Int64()
	if err != nil || n < 0 {
		return Result{}, &Answer{Status: http.StatusBadRequest, Text: "JobVersion: write the number of the version to go back to"}
	}
	old, err := s.Nomad.JobVersion(ctx, key.Namespace, key.ID, uint64(n))
	if err != nil {
		if nomadapi.StatusOf(err) == 0 && !errors.Is(err, context.Canceled) {
			return Result{}, ErrPass // Nomad says itself what it lacks
		}
		return Result{}, answerOf(err)
	}
	job := admission.Strip(old)
	reading, problems := admission.Read(job)
	if len(problems) == 0 && !reading.Asks() {
		return Result{}, ErrPass
	}
	if want, ok := request["EnforcePriorVersion"].(json.Number); ok {
		now, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
		if err != nil {
			return Result{}, answerOf(err)
		}
		if have, _ := now["Version"].(json.Number); have != want {
			return Result{}, &Answer{Status: http.StatusInternalServerError, Text: fmt.Sprintf("Current job has version %s; enforcing version %s", have, want)}
		}
	}
	return s.Register(ctx, caller, Tree{"Job": withoutCounters(job)})
}

// current is the job as its user last sent it, in a request that registers it again. ErrPass for jobs without asks.
func (s *Submitter) current(ctx context.Context, key watch.JobKey) (Tree, error) {
	row, err := s.find(ctx, key)
	if err != nil {
		return nil, err
	}
	var env Tree
	if row.Version != 0 && row.State != store.JobStopped && len(row.Spec) > 0 {
		if err := nomadapi.DecodeTree(row.Spec, &env); err != nil {
			return nil, fmt.Errorf("read the stored job %s: %w", key.ID, err)
		}
	} else {
		stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
		if nomadapi.IsNotFound(err) {
			return nil, ErrPass // Nomad says so itself
		}
		if err != nil {
			return nil, answerOf(err)
		}
		env = Tree{"Job": withoutCounters(admission.Strip(stored))}
	}
	job, ok := env["Job"].(Tree)
	if !ok {
		return nil, fmt.Errorf("read the stored job %s: it has no Job", key.ID)
	}
	reading, problems := admission.Read(job)
	if len(problems) == 0 && !reading.Asks() {
		return nil, ErrPass
	}
	return env, nil
}

// withoutCounters is a job as it can be sent again: without what Nomad counts itself.
func withoutCounters(job Tree) Tree {
	out := cloneTree(job)
	for _, name := range []string{"Version", "CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime", "Status", "StatusDescription", "Stable", "Stop", "VersionTag"} {
		delete(out, name)
	}
	return out
}
