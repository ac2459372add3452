package server_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/server"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// preempting lets higher priority evict what has only just begun.
func preempting(change ...func(*submit.Preemption)) option {
	return func(c *server.Config) {
		c.Preemption = submit.DefaultPreemption()
		c.Preemption.Mode, c.Preemption.MinRuntime = preempt.Running, 0
		for _, do := range change {
			do(&c.Preemption)
		}
	}
}

func ofPriority(n int) func(*api.Job) { return func(j *api.Job) { j.Priority = &n } }

// reasonOf is the state and the reason of a job.
func (s *service) reasonOf(id string) (state, code, reason string) {
	s.t.Helper()
	job := s.tree("/api/v1/jobs/" + id)
	state, _ = job["state"].(string)
	code, _ = job["reason_code"].(string)
	reason, _ = job["reason"].(string)
	return state, code, reason
}

func TestPreemption_TheVictimWaitsAndComesBack(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), preempting())
	s.register(share("low", 1, "50GiB", ofPriority(20)))
	s.register(share("mid", 1, "30GiB", ofPriority(40)))
	s.runs("low", 1)
	s.runs("mid", 1)
	s.register(share("high", 1, "45GiB", ofPriority(80)))
	s.runs("high", 1)
	s.runs("mid", 1) // one was enough
	eventually(t, "low waits, evicted by high", func() bool {
		state, code, reason := s.reasonOf("low")
		return state == "waiting" && code == "preempted" && strings.Contains(reason, "for job default/high at ") && strings.Contains(reason, "; waits: needs 50 GiB")
	})
	if n := len(s.running("low")); n != 0 {
		t.Errorf("%d allocations of low run", n)
	}
	eventually(t, "the ledger holds 75 units", func() bool { return s.usedUnits() == 75 })
	s.register(share("later", 1, "50GiB", ofPriority(20))) // is behind low, which was there before it
	if _, _, err := s.nomad.Jobs().Deregister("high", false, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("low", 1)
	eventually(t, "low is like any other", func() bool {
		state, code, _ := s.reasonOf("low")
		return state == "submitted" && code == ""
	})
}

// An evicted job is in Nomad with no allocations wanted, and users see what they wrote, and that it waits.
func TestPreemption_NomadsAPIShowsTheVictimAsPending(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), preempting())
	s.register(share("low", 2, "20GiB", ofPriority(20)))
	s.runs("low", 2)
	s.register(share("high", 1, "60GiB", ofPriority(80)))
	s.runs("high", 1)
	eventually(t, "low is shown as pending, with its count", func() bool {
		job, _, err := s.nomad.Jobs().Info("low", nil)
		return err == nil && *job.Status == "pending" && strings.Contains(*job.StatusDescription, "evicted for job default/high") && *job.TaskGroups[0].Count == 2
	})
	list, _, err := s.nomad.Jobs().List(nil)
	if err != nil || len(list) != 2 {
		t.Fatalf("jobs are %v, %v", list, err)
	}
	for _, j := range list {
		if j.ID == "low" && j.Status != "pending" {
			t.Errorf("low is %s in the list", j.Status)
		}
	}
	if _, _, err := s.nomad.Jobs().Deregister("low", false, nil); err != nil { // its user has enough
		t.Fatal(err)
	}
	if _, _, err := s.nomad.Jobs().Deregister("high", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is left over", func() bool { return s.usedUnits() == 0 })
	if state, _, _ := s.reasonOf("low"); state != "stopped" || len(s.running("low")) != 0 {
		t.Errorf("low is %s, want stopped", state)
	}
}

// What does not stop in time has the eviction rolled back: the room is given up, and the victim comes back.
func TestPreemption_RolledBackWhenTheRoomIsNotFreeInTime(t *testing.T) {
	t.Parallel()
	s, e := start(t, one(), preempting(func(p *submit.Preemption) { p.Watchdog = 500 * time.Millisecond }))
	quick := func(j *api.Job) { j.TaskGroups[0].Tasks[0].KillTimeout = new(time.Millisecond) }
	s.register(share("low", 1, "50GiB", ofPriority(20), quick))
	s.runs("low", 1)
	first := s.running("low")[0]
	e.SetFault(first.NodeID, embedded.Fault{StopDelay: 3 * time.Second})
	s.register(share("high", 1, "60GiB", ofPriority(80)))
	eventually(t, "the eviction is rolled back", func() bool {
		for _, h := range s.tree("/api/v1/jobs/high/explain")["history"].([]any) {
			d := h.(map[string]any)
			if reason, _ := d["reason"].(string); d["outcome"] == "eviction rolled back" && strings.Contains(reason, "job default/low was told to stop and has 1 allocations") {
				return true
			}
		}
		return false
	})
	eventually(t, "low runs again", func() bool {
		now := s.running("low")
		return len(now) == 1 && now[0].ID != first.ID
	})
	if state, code, _ := s.reasonOf("high"); state != "waiting" || code != "memory" {
		t.Errorf("high is %s, %s: want waiting for memory, and nobody evicted again", state, code)
	}
	eventually(t, "the ledger holds 50 units", func() bool { return s.usedUnits() == 50 })
}

// An eviction goes on where it was when the service died, also in the time that a victim has to save its work.
func TestPreemption_GoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	e, _ := startEngine(t, nil, "", one())
	db := database("sqlite://" + filepath.Join(t.TempDir(), "state.db"))
	rules := preempting(func(p *submit.Preemption) { p.Grace = 2 * time.Second })
	s := startService(t, e.Addr(), db, rules).ready(1)
	s.register(share("low", 1, "50GiB", ofPriority(20), func(j *api.Job) { j.Meta = map[string]string{"heteroflow_checkpoint_signal": "SIGUSR1"} }))
	s.runs("low", 1)
	s.register(share("high", 1, "60GiB", ofPriority(80)))
	eventually(t, "low saves its work", func() bool {
		_, code, _ := s.reasonOf("low")
		return code == "preempting"
	})
	s.stop()
	s = startService(t, e.Addr(), db, rules).ready(1)
	s.runs("high", 1)
	eventually(t, "low waits", func() bool {
		state, code, _ := s.reasonOf("low")
		return state == "waiting" && code == "preempted"
	})
}

func TestPreemption_EqualPriorityWaitsAndOffEvictsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		option   option
		priority int
	}{
		"equal priority":         {preempting(), 20},
		"off":                    {func(*server.Config) {}, 80},
		"it has only just begun": {preempting(func(p *submit.Preemption) { p.MinRuntime = time.Hour }), 80},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := start(t, one(), tc.option)
			s.register(share("low", 1, "50GiB", ofPriority(20)))
			s.runs("low", 1)
			s.register(share("high", 1, "45GiB", ofPriority(tc.priority)))
			eventually(t, "high waits for memory", func() bool {
				state, code, _ := s.reasonOf("high")
				return state == "waiting" && code == "memory"
			})
			s.register(share("last", 1, "10GiB", ofPriority(10))) // after which the queue has been worked
			s.runs("last", 1)
			s.runs("low", 1)
		})
	}
}

func TestPreemption_ExplainTellsWhatWouldGo(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), preempting(func(p *submit.Preemption) { p.Guard = time.Hour }))
	s.register(share("low", 1, "50GiB", ofPriority(20)))
	s.runs("low", 1)
	s.register(share("high", 1, "45GiB", ofPriority(80)))
	s.runs("high", 1)
	history := s.tree("/api/v1/jobs/low/explain")["history"].([]any)
	found := false
	for _, h := range history {
		d := h.(map[string]any)
		reason, _ := d["reason"].(string)
		found = found || d["outcome"] == "preempting" && strings.Contains(reason, "evicted for job default/high, of priority 80")
	}
	if !found {
		t.Errorf("history of low does not tell of its eviction: %v", history)
	}
}

// With preemption off explain says what it would do.
func TestPreemption_ExplainIsADryRun(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Now())
	s, _ := start(t, one(), func(c *server.Config) { c.Clock = now })
	s.register(share("low", 1, "50GiB", ofPriority(20)))
	s.runs("low", 1)
	now.Advance(11 * time.Minute)
	s.register(share("high", 1, "45GiB", ofPriority(80)))
	explain := s.tree("/api/v1/jobs/high/explain")["now"].(map[string]any)
	found := false
	for _, sg := range explain["suggestions"].([]any) {
		found = found || sg.(map[string]any)["text"] == "would start by evicting 1 allocation of default/low, 0.62 cards for the 0.56 cards asked for; "+
			"preemption is off: set mode in the service's preemption block"
	}
	if !found {
		t.Errorf("suggestions are %v", explain["suggestions"])
	}
	s.runs("low", 1)
}

// Where jobs say that they may be moved, explain says which moves would start one that waits.
func TestMoves_ExplainTellsThem(t *testing.T) {
	t.Parallel()
	s, _ := start(t, embedded.SimNodes(2, 2, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Whole))
	movable := func(j *api.Job) { j.Meta = map[string]string{"heteroflow_movable": "true"} }
	for _, id := range []string{"a", "b", "c"} {
		s.register(share(id, 1, "", movable))
		s.runs(id, 1)
	}
	if s.running("a")[0].NodeID != s.running("b")[0].NodeID {
		t.Fatal("a and b are not on one node")
	}
	if _, _, err := s.nomad.Jobs().Deregister("b", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b is gone", func() bool { return s.usedUnits() == 2 })
	if _, body := s.get("/metrics"); !strings.Contains(string(body), "\nheteroflow_free_cards 2\n") {
		t.Error("metrics do not tell of 2 free cards")
	}
	s.register(share("pair", 1, "", func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Config["accelerator"] = []any{map[string]any{"count": 2}}
	}))
	explain := s.tree("/api/v1/jobs/pair/explain")["now"].(map[string]any)
	for _, sg := range explain["suggestions"].([]any) {
		if text := sg.(map[string]any)["text"].(string); strings.HasPrefix(text, "would start after moving default/") {
			return
		}
	}
	t.Errorf("suggestions are %v", explain["suggestions"])
}
