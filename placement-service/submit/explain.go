package submit

import (
	"context"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Explain is what would be decided for a job now, as if it were sent now: what it holds is its own to use again.
// asks is false for a job that asks for no accelerators.
func (s *Submitter) Explain(ctx context.Context, row store.Job) (d engine.Decision, asks bool, err error) {
	sub, err := s.stored(row)
	if err != nil || !sub.reading.Asks() {
		return engine.Decision{}, false, err
	}
	if out, is := s.unsure(); is {
		return *out.decision, true, nil
	}
	older, err := runningInjection(row)
	if err != nil {
		return engine.Decision{}, true, err
	}
	found, err := s.placeGroups(ctx, sub.placing(row, older), allGroups(sub.reading))
	if err != nil || found.decision == nil {
		return engine.Decision{}, true, err
	}
	return *found.decision, true, nil
}

// unsure is what comes of a job while it is not known what the cluster is like: it waits. A decision by cards that were
// there once would name some that are gone.
func (s *Submitter) unsure() (placed, bool) {
	why := s.World.Stale(s.Clock.Now())
	if why == "" {
		return placed{}, false
	}
	refusal := engine.Refusal{
		Code: codeNotReady, Sentence: "the state of the cluster is not known yet: the job is tried as soon as Nomad has told it",
	}
	if s.World.IsReady() {
		refusal = engine.Refusal{Code: codeUnreachable, Sentence: fmt.Sprintf(
			"%s: what is known of the cards is from %s, and they may be others by now; the job is kept and tried as soon as Nomad answers",
			why, s.World.AsOf().UTC().Format(time.DateTime+" MST"))}
	}
	return placed{decision: &engine.Decision{Refusal: &refusal}}, true
}
