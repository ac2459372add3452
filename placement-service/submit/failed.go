package submit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

const (
	// failedPause is how long a card is left as it is after its form could not be changed. It doubles with each failure
	// in a row.
	failedPause = time.Minute
	// failedPauseMost is the longest such pause.
	failedPauseMost = 10 * time.Minute
	// failedKept is how far back failures are counted.
	failedKept = time.Hour
	// failedNamed is how many such cards a reason names.
	failedNamed = 2
)

// FailedSwitch is a card whose form could not be changed when that was asked for last.
type FailedSwitch struct {
	NodeID, CardUUID string
	Form             accel.Form // that was wanted
	Reason           string     // as the device plugin gave it
	At, RetryAt      time.Time
}

// FailedSwitches are the cards whose last intent failed within the last hour, the latest first. They are read from the
// store, so that every instance of the service knows them, and one that was restarted.
func (s *Submitter) FailedSwitches(ctx context.Context) ([]FailedSwitch, error) {
	ended, err := s.Store.ReportedIntents(ctx, s.Clock.Now().Add(-failedKept))
	if err != nil {
		return nil, databaseError(err)
	}
	return failedOf(ended), nil
}

// failedOf finds the failures among intents that ended, the latest first: those since the card was switched last.
func failedOf(ended []store.Intent) []FailedSwitch {
	var out []FailedSwitch
	at := map[string]int{} // card → place in out, -1 once it was switched
	for _, in := range ended {
		i, known := at[in.CardUUID]
		switch {
		case known && i < 0:
		case in.State == store.IntentDone:
			at[in.CardUUID] = -1
		case known:
			pause := min(2*out[i].RetryAt.Sub(out[i].At), failedPauseMost)
			out[i].RetryAt = out[i].At.Add(pause)
		default:
			at[in.CardUUID] = len(out)
			out = append(out, FailedSwitch{
				NodeID: in.NodeID, CardUUID: in.CardUUID, Form: accel.Form(in.Form), Reason: in.Reason,
				At: in.UpdatedAt, RetryAt: in.UpdatedAt.Add(failedPause),
			})
		}
	}
	return out
}

// pausing are the cards that are not to be asked yet, the latest first.
func (s *Submitter) pausing(ctx context.Context) ([]FailedSwitch, error) {
	failed, err := s.FailedSwitches(ctx)
	now := s.Clock.Now()
	return slices.DeleteFunc(failed, func(f FailedSwitch) bool { return !now.Before(f.RetryAt) }), err
}

// among are those that the switches need.
func among(failed []FailedSwitch, switches []engine.Switch) []FailedSwitch {
	var out []FailedSwitch
	for _, f := range failed {
		if slices.ContainsFunc(switches, func(sw engine.Switch) bool { return sw.CardUUID == f.CardUUID }) {
			out = append(out, f)
		}
	}
	return out
}

// fixCards takes the cards for ones whose form stays.
func fixCards(s engine.Snapshot, failed []FailedSwitch) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for j := range n.Pools {
			for k := range n.Pools[j].Cards {
				uuid := n.Pools[j].Cards[k].UUID
				if !slices.ContainsFunc(failed, func(f FailedSwitch) bool { return f.NodeID == n.ID && f.CardUUID == uuid }) {
					continue
				}
				n.Pools = slices.Clone(n.Pools) // snapshots share what nobody uses
				n.Pools[j].Cards = slices.Clone(n.Pools[j].Cards)
				n.Pools[j].Cards[k].Fixed = true
			}
		}
	}
}

// failedSentence says of the cards why they are not asked, the latest first.
func (s *Submitter) failedSentence(failed []FailedSwitch) string {
	var parts []string
	for _, f := range failed[:min(len(failed), failedNamed)] {
		what := "opened for shares"
		if f.Form != accel.Shared {
			what = "closed for shares"
		}
		parts = append(parts, fmt.Sprintf("card %s on node %s could not be %s: %s (asked again at %s)",
			f.CardUUID, s.World.NodeName(f.NodeID), what, f.Reason, f.RetryAt.UTC().Format(time.TimeOnly+" MST")))
	}
	if more := len(failed) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("nor could %d more", more))
	}
	return strings.Join(parts, "; ")
}

// IntentFailed notes that a card keeps its form: it belongs to whoever can use it so, and the jobs that wait for it are
// told why.
func (s *Submitter) IntentFailed(ctx context.Context, card string) {
	s.switches.forget(card)
	s.wake()
	failed, err := s.FailedSwitches(ctx)
	if err != nil {
		s.log.Debug("failed intents cannot be read: the queue looks at them in its own time", "error", err)
		return
	}
	for _, f := range failed {
		if f.CardUUID == card && s.WakeAt != nil {
			s.WakeAt(f.RetryAt)
		}
	}
}
