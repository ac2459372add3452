package server_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded"
)

// elastic makes a gang run with fewer members, down to least.
func elastic(least int) func(*api.Job) {
	return func(j *api.Job) { j.TaskGroups[0].Tasks[0].Config["gang"] = []any{map[string]any{"min": least}} }
}

// whole asks for so many whole cards in each of n allocations.
func whole(id string, n, cards int, change ...func(*api.Job)) *api.Job {
	return share(id, n, "", append([]func(*api.Job){func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Config["accelerator"] = []any{map[string]any{"count": cards}}
	}}, change...)...)
}

func idsOf(list []*api.AllocationListStub) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.ID)
	}
	slices.Sort(out)
	return out
}

func (s *service) stopJob(id string) {
	s.t.Helper()
	if _, _, err := s.nomad.Jobs().Deregister(id, false, nil); err != nil {
		s.t.Fatal(err)
	}
}

// startElastic runs a gang of four members with two cards each on four nodes of two, or what there is room for.
func startElastic(t *testing.T, least int, opts ...option) (*service, *embedded.Engine) {
	t.Helper()
	s, e := start(t, wholes(4, 2), opts...)
	s.register(gangJob("train", 4, 2, elastic(least)))
	s.runs("train", 4)
	return s, e
}

// A gang starts with what there is room for, and grows as soon as there is more; those that run are left alone.
func TestElastic_StartsAndGrows(t *testing.T) {
	t.Parallel()
	s, _ := start(t, wholes(4, 2))
	s.register(whole("other", 2, 2))
	s.runs("other", 2)
	s.register(gangJob("train", 4, 2, elastic(1)))
	s.runs("train", 2)
	before := idsOf(s.running("train"))
	s.stopJob("other")
	s.runs("train", 4)
	for _, id := range before {
		if !slices.Contains(idsOf(s.running("train")), id) {
			t.Errorf("member %s was ended when the gang grew", id)
		}
	}
	eventually(t, "the ledger holds four members", func() bool { return s.usedUnits() == 8 })
	// The job that its user wrote is the same, and sending it again changes nothing.
	s.register(gangJob("train", 4, 2, elastic(1)))
	s.runs("train", 4)
}

// A gang gives members to a job that waits, as few as let it start, and takes them back.
func TestElastic_ShrinksForOthers(t *testing.T) {
	t.Parallel()
	s, _ := startElastic(t, 1, preempting())
	before := idsOf(s.running("train"))
	s.register(whole("other", 2, 2, ofPriority(60)))
	s.runs("other", 2)
	s.runs("train", 2)
	for _, id := range idsOf(s.running("train")) {
		if !slices.Contains(before, id) {
			t.Errorf("member %s began when the gang shrank", id)
		}
	}
	if state, code, _ := s.reasonOf("train"); state != "submitted" || code != "" {
		t.Errorf("it was %s: %s", state, code)
	}
	s.stopJob("other")
	s.runs("train", 4)
}

// Never below its fewest, and not for nothing: where all that it can give is not enough it gives none. Nor does it give for a
// job of lower priority.
func TestElastic_KeepsItsFewest(t *testing.T) {
	t.Parallel()
	s, _ := startElastic(t, 3)
	s.register(whole("large", 2, 2))
	s.register(whole("low", 1, 2, ofPriority(10)))
	eventually(t, "both wait for room", func() bool {
		_, large, _ := s.reasonOf("large")
		_, low, _ := s.reasonOf("low")
		return large == "count" && low == "count"
	})
	if n := len(s.running("train")); n != 4 {
		t.Errorf("%d members run", n)
	}
	s.register(whole("small", 1, 2))
	s.runs("small", 1)
	s.runs("train", 3)
}

// A node is lost and there is no other: an elastic gang goes on with those it has.
func TestElastic_LosesANode(t *testing.T) {
	t.Parallel()
	s, e := startElastic(t, 2)
	lost := s.running("train")[0].NodeID
	if err := e.SetNodeDown(lost, true); err != nil {
		t.Fatal(err)
	}
	s.runs("train", 3)
	eventually(t, "its job says so", func() bool {
		job, _, err := s.nomad.Jobs().Info("train", nil)
		return err == nil && *job.TaskGroups[0].Count == 3
	})
	if err := e.SetNodeDown(lost, false); err != nil {
		t.Fatal(err)
	}
	s.runs("train", 4)
}

func TestElastic_WhoWaitsIsTold(t *testing.T) {
	t.Parallel()
	s, e := startElastic(t, 1)
	for _, a := range s.running("train") {
		e.SetFault(a.NodeID, embedded.Fault{StopDelay: patience})
	}
	s.register(whole("other", 1, 2))
	eventually(t, "it is told who makes room", func() bool {
		_, code, reason := s.reasonOf("other")
		return code == "preemption_pending" && strings.Contains(reason, "job default/train shrinks from 4 to 3 members")
	})
}
