package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// historyLimit is how many decisions an explanation shows.
const historyLimit = 20

// ExplainJob says what was decided and what would be decided now.
func (s *server) ExplainJob(ctx context.Context, r api.ExplainJobRequestObject) (api.ExplainJobResponseObject, error) {
	job, err := s.findJob(ctx, r.Params.Namespace, r.ID)
	if err != nil {
		return nil, err
	}
	full, err := s.fullJob(ctx, job)
	if err != nil {
		return nil, err
	}
	now, asks, err := s.Submit.Explain(ctx, job)
	if err != nil {
		return nil, err
	}
	out := api.ExplainJob200JSONResponse{Job: full, Now: s.decisionOf(now), History: []api.Decision{}}
	out.Now.At = s.Clock.Now()
	if !asks {
		out.Now.Outcome, out.Now.Reason = "passed", ref("the job has no accelerator block: Nomad places it alone")
	}
	if asks && out.Now.Outcome == "waiting" {
		if err := errors.Join(s.addMoves(ctx, job, &out.Now), s.addPreemption(ctx, job, &out.Now)); err != nil {
			return nil, err
		}
	}
	past, err := s.Store.Decisions(ctx, job.Namespace, job.ID, historyLimit)
	if err != nil {
		return nil, err
	}
	for _, d := range past {
		item, err := s.pastDecision(d)
		if err != nil {
			return nil, err
		}
		out.History = append(out.History, item)
	}
	if len(out.History) > 0 {
		out.Decided = &out.History[0]
	}
	return out, nil
}

func (s *server) pastDecision(d store.Decision) (api.Decision, error) {
	var was engine.Decision
	if len(d.Output) > 0 {
		if err := json.Unmarshal(d.Output, &was); err != nil {
			return api.Decision{}, fmt.Errorf("read decision %s: %w", d.ID, err)
		}
	}
	out := s.decisionOf(was)
	out.ID, out.At, out.Outcome, out.ReasonCode, out.Reason = ref(d.ID), d.At, d.Outcome, ref(d.ReasonCode), ref(d.Reason)
	return out, nil
}

func (s *server) decisionOf(d engine.Decision) api.Decision {
	out := api.Decision{Counts: []api.ReasonCount{}, Placements: []api.Placement{}, Switches: []api.FormSwitch{}, Suggestions: []api.Suggestion{}}
	switch {
	case d.Placed:
		out.Outcome, out.Reason = "placed", ref(d.Rounded())
	case len(d.Switches) > 0:
		out.Outcome = "switching"
	case d.Refusal != nil && d.Refusal.Never:
		out.Outcome = "refused"
	default:
		out.Outcome = "waiting"
	}
	if d.Refusal != nil {
		out.ReasonCode, out.Reason = ref(string(d.Refusal.Code)), ref(d.Refusal.Sentence)
		for _, c := range d.Refusal.Counts {
			out.Counts = append(out.Counts, api.ReasonCount{Code: string(c.Code), Nodes: c.Nodes, Example: ref(c.Example)})
		}
	}
	for _, sg := range d.Suggestions {
		out.Suggestions = append(out.Suggestions, api.Suggestion{Field: sg.Field, Group: ref(sg.Group), Task: ref(sg.Task), From: sg.From, To: sg.To, Text: sg.Sentence})
	}
	for _, sw := range d.Switches {
		out.Switches = append(out.Switches, api.FormSwitch{NodeID: sw.NodeID, CardUUID: sw.CardUUID, Form: string(sw.To)})
	}
	for _, g := range d.Groups {
		for _, place := range g.Placements {
			for _, t := range place.Tasks {
				for _, c := range t.Claims {
					out.Placements = append(out.Placements, s.placement(place.NodeID, g.Name, t.Task, c.Group, c.Units))
				}
			}
		}
	}
	return out
}
