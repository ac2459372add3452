package rest

import (
	"context"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/store"
)

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
