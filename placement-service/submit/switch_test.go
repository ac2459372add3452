package submit

import (
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

func oneCard(form accel.Form) engine.Snapshot {
	units := 80
	if form == accel.Whole {
		units = 1
	}
	return engine.Snapshot{Nodes: []engine.Node{{ID: "n", Pools: []engine.Pool{{
		Form: form, Total: units, Cards: []engine.Card{{UUID: "GPU-a", Healthy: true, Units: units}},
	}}}}}
}

// A card that is being switched is kept for the job that wanted it. Once it has its new form it belongs to whoever
// is first in the queue: with two hundred alike waiting, only the first is tried.
func TestSwitchBook_HoldsUntilTheFormHasChanged(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := newSwitchBook(now)
	wanted, other := watch.JobKey{ID: "wanted"}, watch.JobKey{ID: "other"}
	if !b.take("GPU-a", accel.Shared, wanted, now, switchPause) {
		t.Fatal("the first to want a card must state the intent")
	}
	if b.take("GPU-a", accel.Shared, other, now, switchPause) {
		t.Error("a second must not state it again")
	}
	used := func(form accel.Form, key watch.JobKey) int {
		s := oneCard(form)
		b.hold(&s, key)
		return s.Nodes[0].Pools[0].Used
	}
	if used(accel.Whole, wanted) != 0 || used(accel.Whole, other) != 1 {
		t.Error("before the switch the card is free for the job that wanted it alone")
	}
	if used(accel.Shared, other) != 0 {
		t.Error("with its new form the card must be free for every job")
	}
	if used(accel.Whole, other) != 0 {
		t.Error("a hold that was fulfilled must be forgotten")
	}
}
