package server_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

func movable(j *api.Job) {
	if j.Meta == nil {
		j.Meta = map[string]string{}
	}
	j.Meta["heteroflow_movable"] = "true"
}

// twoCards are two nodes with a shared card each.
func twoCards() []embedded.SimNode {
	return embedded.SimNodes(2, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)
}

// halfFull has a and b, of 40 GiB, each on a card of its own, and big wait for 60 GiB.
func (s *service) halfFull(change ...func(*api.Job)) {
	s.t.Helper()
	for _, id := range []string{"a", "filler", "b"} {
		s.register(share(id, 1, "40GiB", append(change, movable)...))
		s.runs(id, 1)
	}
	if s.running("a")[0].NodeID == s.running("b")[0].NodeID {
		s.t.Fatal("a and b are on one card")
	}
	if _, _, err := s.nomad.Jobs().Deregister("filler", true, nil); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "half of each card is free", func() bool { return s.usedUnits() == 80 })
	s.register(share("big", 1, "60GiB"))
	s.waitsWith("big", "memory")
}

func (s *service) move(id string, want int) string {
	s.t.Helper()
	status, _, text := s.do(http.MethodPost, "/api/v1/jobs/"+id+"/moves", s.key, nil)
	if status != want {
		s.t.Fatalf("moves for %s: %d %s, want %d", id, status, text, want)
	}
	return string(text)
}

// Two cards are half full: one job moves, the one that waits has a card, and all three run.
func TestMoves_FreeRoom(t *testing.T) {
	t.Parallel()
	s, _ := start(t, twoCards())
	s.halfFull()
	if list, _ := s.tree("/api/v1/jobs/big/moves")["moves"].([]any); len(list) != 1 {
		t.Fatalf("moves are %v, want one", list)
	}
	before := map[string]string{}
	for _, id := range []string{"a", "b"} {
		before[id] = s.running(id)[0].ID
	}
	if text := s.move("a", http.StatusBadRequest); !strings.Contains(text, "does not wait for room") {
		t.Errorf("moves for a job that runs: %s", text)
	}
	s.move("big", http.StatusCreated)
	for _, id := range []string{"big", "a", "b"} {
		s.runs(id, 1)
	}
	eventually(t, "the ledger holds them all, and nothing else", func() bool { return s.usedUnits() == 140 })
	moved := 0
	for id, alloc := range before {
		if s.running(id)[0].ID != alloc {
			moved++
		}
	}
	if moved != 1 {
		t.Errorf("%d jobs were started again, want 1", moved)
	}

	// What moved stays for an hour.
	if _, _, err := s.nomad.Jobs().Deregister("big", true, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "big is gone", func() bool { return s.usedUnits() == 80 })
	for id := range before {
		if s.running(id)[0].ID == before[id] { // so that only the one that moved is left
			if _, _, err := s.nomad.Jobs().Deregister(id, true, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "one job is left", func() bool { return s.usedUnits() == 40 })
	s.register(share("pair", 2, "60GiB"))
	s.waitsWith("pair", "memory")
	if text := s.move("pair", http.StatusBadRequest); !strings.Contains(text, "0 of 1 allocations may be moved") {
		t.Errorf("moves of what has moved: %s", text)
	}
	if status, body := s.get("/api/v1/fragmentation"); status != http.StatusOK || !strings.Contains(string(body), `"free_cards":1.5`) || strings.Contains(string(body), "unusable") {
		t.Errorf("fragmentation is %d %s, want 1.5 cards free, and nothing said of a demand that is not known", status, body)
	}
}

// A service that dies while jobs have time to save their work goes on when it is back. Until then nobody takes the room
// that is held for them, nor that which they leave.
func TestMoves_GoOnAfterARestart(t *testing.T) {
	t.Parallel()
	e, _ := startEngine(t, nil, "", twoCards())
	db := database("sqlite://" + filepath.Join(t.TempDir(), "state.db"))
	rules := preempting(func(p *submit.Preemption) { p.Mode, p.Grace = "", 2*time.Second })
	s := startService(t, e.Addr(), db, rules).ready(2)
	s.halfFull(func(j *api.Job) { j.Meta = map[string]string{"heteroflow_checkpoint_signal": "SIGUSR1"} })
	s.move("big", http.StatusCreated)
	eventually(t, "one of them is told to save its work", func() bool {
		for _, id := range []string{"a", "b"} {
			if _, code, reason := s.reasonOf(id); code == "preempting" && strings.Contains(reason, "is being moved to make room for job default/big") {
				return true
			}
		}
		return false
	})
	if text := s.move("big", http.StatusBadRequest); !strings.Contains(text, "room is being made by moving default/") {
		t.Errorf("asked for again: %s", text)
	}
	s.register(share("late", 1, "40GiB"))
	s.waitsWith("late", "memory")
	s.stop()
	s = startService(t, e.Addr(), db, rules).ready(2)
	for _, id := range []string{"big", "a", "b"} {
		s.runs(id, 1)
	}
	s.waitsWith("late", "memory")
	eventually(t, "the ledger holds 140 units", func() bool { return s.usedUnits() == 140 })
}

// What does not stop in time has the moves rolled back: nothing is held for the one that asked, and the others start again.
func TestMoves_RolledBackWhenTheRoomIsNotFreeInTime(t *testing.T) {
	t.Parallel()
	s, e := start(t, twoCards(), preempting(func(p *submit.Preemption) { p.Mode, p.Watchdog = "", 500*time.Millisecond }))
	s.halfFull(func(j *api.Job) { j.TaskGroups[0].Tasks[0].KillTimeout = new(time.Millisecond) })
	for _, id := range []string{"a", "b"} {
		e.SetFault(s.running(id)[0].NodeID, embedded.Fault{StopDelay: 3 * time.Second})
	}
	s.move("big", http.StatusCreated)
	eventually(t, "the moves are rolled back", func() bool {
		return strings.Contains(fmt.Sprint(s.tree("/api/v1/jobs/big/explain")["history"]), "eviction rolled back")
	})
	s.runs("a", 1) // in the room that was held for it, so that the one that asked fits once the other has ended at last
	s.runs("b", 1)
	s.runs("big", 1)
	eventually(t, "the ledger holds 140 units", func() bool { return s.usedUnits() == 140 })
}
