package submit

import (
	"context"

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
	if !s.World.IsReady() {
		return *notReady().decision, true, nil
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

func notReady() placed {
	return placed{decision: &engine.Decision{Refusal: &engine.Refusal{
		Code: codeNotReady, Sentence: "the state of the cluster is not known yet: the job is tried as soon as Nomad has told it",
	}}}
}
