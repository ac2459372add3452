package watch

import (
	"testing"
	"time"
)

func TestWorld_Fate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	job := JobKey{"default", "train"}
	for name, tc := range map[string]struct {
		client, desired string
		want            Fate
	}{
		"runs":                {"running", "run", FateRuns},
		"is to start":         {"pending", "run", FateRuns},
		"its node is silent":  {"unknown", "run", FateRuns},
		"ended with success":  {"complete", "run", FateDone},
		"failed":              {"failed", "run", FateLost},
		"its node was lost":   {"lost", "stop", FateLost},
		"is being stopped":    {"running", "stop", FateLost},
		"was stopped, ended":  {"complete", "stop", FateLost},
		"was evicted by that": {"complete", "evict", FateLost},
	} {
		w := NewWorld()
		w.setAlloc(&Alloc{ID: "a", Job: job, Group: "g", Client: tc.client, Desired: tc.desired}, now)
		crew := 0
		if tc.want == FateRuns {
			crew = 1
		}
		if got := w.Fate("a"); got != tc.want || w.Crew(job)["g"] != crew {
			t.Errorf("%s: fate %d, %d run; want %d", name, got, w.Crew(job)["g"], tc.want)
		}
		if w.Fate("b") != FateUnknown {
			t.Error("an allocation that nobody told of is known")
		}
	}
}

// The place of a failed allocation is kept while Nomad decides, and then as long as it is going to replace it.
func TestWorld_Awaited(t *testing.T) {
	t.Parallel()
	job, now := JobKey{"default", "train"}, time.Now()
	w := NewWorld()
	version := uint64(0)
	set := func(client, followup, next string, after time.Duration) bool {
		version++
		return w.setAlloc(&Alloc{
			ID: "a", Job: job, NodeID: "n1", Client: client, Desired: "run", Followup: followup, Next: next, modify: version,
			Devices: []Device{{Task: "t", Group: "nvidia/gpu/H100", IDs: []string{"GPU-1"}}},
		}, now.Add(after))
	}
	is := func(what string, after time.Duration, awaited, undecided bool) {
		t.Helper()
		all, open := w.awaited(job, now.Add(after))
		if len(all) == 1 != awaited || open != undecided {
			t.Errorf("%s: %d awaited, undecided %v", what, len(all), open)
		}
	}
	set("running", "", "", 0)
	is("while it runs", 0, false, false)
	if !set("failed", "", "", 0) {
		t.Error("the job of one that failed is not settled")
	}
	is("just failed", decides-1, true, true)
	is("nobody replaces it", decides, false, false)
	set("failed", "e1", "", time.Second)
	is("is to be replaced", time.Hour, true, false)
	if !set("failed", "e1", "b", 2*time.Second) {
		t.Error("the job of one that was replaced is not settled")
	}
	is("was replaced", time.Hour, false, false)
	set("failed", "e2", "", 3*time.Second)
	w.forget("a", now)
	is("is forgotten by Nomad", 0, false, false)
}
