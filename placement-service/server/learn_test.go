package server_test

import (
	"path/filepath"
	"testing"

	"github.com/heteroflow/heteroflow/placement-service/flight"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

// TestLearn_FromOneServiceToTheNext: what jobs ask for is kept when the service stops, the next one scores by it, and what
// that decides is decided again to the last bit.
func TestLearn_FromOneServiceToTheNext(t *testing.T) {
	t.Parallel()
	state, dir := "sqlite://"+filepath.Join(t.TempDir(), "state.db"), t.TempDir()
	s, e := start(t, one(), database(state))
	s.register(share("many", 40, "1GiB"))
	s.runs("many", 40)
	s.stop()
	s = startService(t, e.Addr(), database(state), func(c *server.Config) { c.RecordDir = dir }).ready(1)
	s.register(share("late", 1, "2GiB"))
	s.runs("late", 1)
	s.stop()
	decisions := 0
	for entry, err := range flight.Files(dir) {
		if err != nil {
			t.Fatal(err)
		}
		decisions++
		if demand := entry.Learnt.Demand(); demand == nil || demand.Observed != 40 || len(demand.Asked) != 1 || demand.Asked[0].CardMiB != 1024 {
			t.Errorf("job %s was scored by %+v", entry.Request.JobID, demand)
		}
		if o := flight.Replay(entry, nil).Outcome(); o != flight.Same {
			t.Errorf("decided again: %s", o)
		}
	}
	if decisions == 0 {
		t.Error("no decision was kept")
	}
}
