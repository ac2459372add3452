package rest

import (
	"context"
	"fmt"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/store"
)

// addMoves says which allocations would have to move for a waiting job, where some may. Nothing is done.
func (s *server) addMoves(ctx context.Context, job store.Job, now *api.Decision) error {
	plan, asked, err := s.Submit.Moves(ctx, job)
	if err != nil || !asked || len(plan.Moves) == 0 {
		return err
	}
	text := plan.Sentence(job.Tenant, s.World.NodeName)
	now.Suggestions = append(now.Suggestions, api.Suggestion{Field: "moves", From: "0", To: fmt.Sprint(len(plan.Moves)), Text: text})
	return nil
}

// addPreemption says what would be evicted for a waiting job, or why nothing is, where that is asked for. Nothing is
// done.
func (s *server) addPreemption(ctx context.Context, job store.Job, now *api.Decision) error {
	plan, asked, err := s.Submit.Preempts(ctx, job)
	if err != nil || !asked {
		return err
	}
	switch {
	case len(plan.Victims) > 0:
		text := plan.Sentence()
		if s.Submit.Preemption.Off() {
			text += "; preemption is off: set mode in the service's preemption block"
		}
		now.Suggestions = append(now.Suggestions, api.Suggestion{Field: "preemption", From: "none", To: "evicting " + plan.Whom(), Text: text})
	case plan.Refusal != nil && !s.Submit.Preemption.Off():
		now.Reason = ref(val(now.Reason) + "; " + plan.Refusal.Sentence)
	}
	return nil
}
