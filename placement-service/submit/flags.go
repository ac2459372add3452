package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

func isSet(env Tree, name string) bool {
	v, ok := env[name].(bool)
	return ok && v
}

func isEnforced(env Tree) bool { return isSet(env, "EnforceIndex") }

// checkFlags deals with the request's flags by which Nomad changes the job after it passed here.
func (s *Submitter) checkFlags(ctx context.Context, sub *submission) error {
	if isSet(sub.env, "PreserveResources") {
		return &Refused{Code: "preserve_resources", Text: "PreserveResources keeps the accelerators of the running job " +
			"whatever this one asks: send the job without it (nomad job run without -preserve-resources)"}
	}
	if !isSet(sub.env, "PreserveCounts") {
		return nil
	}
	stored, err := s.Nomad.Job(ctx, sub.key.Namespace, sub.key.ID)
	if nomadapi.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return answerOf(err)
	}
	counts := map[string]any{}
	for _, g := range groupsOf(stored) {
		name, _ := g["Name"].(string)
		counts[name] = g["Count"]
	}
	sub.clean = withCounts(sub.clean, counts)
	var problems admission.Problems
	if sub.reading, problems = admission.Read(sub.clean); len(problems) > 0 {
		return &Refused{Code: "invalid_ask", Text: problems.Error(), Fields: problems}
	}
	sub.hash, err = admission.SpecHash(sub.clean)
	return err
}

// checkIndex is Nomad's check-and-set for a job that does not reach Nomad now.
func (s *Submitter) checkIndex(ctx context.Context, sub submission) error {
	if !isEnforced(sub.env) {
		return nil
	}
	want, _ := sub.env["JobModifyIndex"].(json.Number)
	if want == "" {
		want = "0"
	}
	have := json.Number("0")
	stored, err := s.Nomad.Job(ctx, sub.key.Namespace, sub.key.ID)
	switch {
	case nomadapi.IsNotFound(err):
	case err != nil:
		return answerOf(err)
	default:
		have, _ = stored["JobModifyIndex"].(json.Number)
	}
	if have == want {
		return nil
	}
	text := fmt.Sprintf("Enforcing job modify index %s: job exists with conflicting job modify index: %s", want, have)
	switch {
	case want == "0":
		text = "Enforcing job modify index 0: job already exists"
	case have == "0":
		text = fmt.Sprintf("Enforcing job modify index %s: job does not exist", want)
	}
	return &Answer{Status: http.StatusInternalServerError, Text: text}
}

func groupsOf(job Tree) []Tree { return treesOf(job, "TaskGroups") }

// withCounts is the job with the counts of some groups set.
func withCounts(job Tree, counts map[string]any) Tree {
	out := cloneTree(job)
	list := make([]any, 0, len(groupsOf(job)))
	for _, g := range groupsOf(job) {
		name, _ := g["Name"].(string)
		if count, ok := counts[name]; ok {
			g = cloneTree(g)
			g["Count"] = count
		}
		list = append(list, g)
	}
	out["TaskGroups"] = list
	return out
}

// jobLocks keeps two calls from working on one job at the same time.
type jobLocks struct {
	mu   sync.Mutex
	held map[watch.JobKey]*jobLock
}

type jobLock struct {
	sync.Mutex
	users int
}

// lock takes the job's lock and returns how to give it back.
func (s *Submitter) lock(key watch.JobKey) func() {
	l := &s.locks
	l.mu.Lock()
	if l.held == nil {
		l.held = map[watch.JobKey]*jobLock{}
	}
	one := l.held[key]
	if one == nil {
		one = &jobLock{}
		l.held[key] = one
	}
	one.users++
	l.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, key)
		}
	}
}
