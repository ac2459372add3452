package rest

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/placement-service/gangs"
)

// MeetGang has a member of a gang wait for the others.
func (s *server) MeetGang(ctx context.Context, r api.MeetGangRequestObject) (api.MeetGangResponseObject, error) {
	patience, err := time.ParseDuration(val(r.Body.Wait))
	if err != nil && r.Body.Wait != nil {
		return nil, httpx.NewProblem(http.StatusBadRequest, "bad_field", "wait: write a time such as 20s")
	}
	a := gangs.Arrival{Grant: r.Body.Grant, AllocID: r.Body.AllocID, Visit: r.Body.Visit, Said: gangs.Said{
		Index: r.Body.Index, NodeID: val(r.Body.NodeID), Address: val(r.Body.Address), Port: val(r.Body.Port), Vendor: accel.Vendor(val(r.Body.Vendor)),
	}}
	for _, c := range r.Body.Cards {
		a.Said.Cards = append(a.Said.Cards, gangs.Card{UUID: c.UUID, Index: c.Index, Address: val(c.Address)})
	}
	answer, err := s.Gangs.Meet(ctx, a, min(patience, longestWait))
	var refused *gangs.Refused
	switch {
	case errors.As(err, &refused):
		return nil, httpx.NewProblem(http.StatusForbidden, "no_member", refused.Text)
	case errors.Is(context.Cause(ctx), httpx.ErrStopping):
		return nil, httpx.NewProblem(http.StatusServiceUnavailable, "stopping", "this instance of the service stops: ask again")
	case err != nil:
		return nil, err
	}
	out := api.MeetGang200JSONResponse{
		State: api.GangMeetingState(answer.State), Members: answer.Members, Present: answer.Present, Attempt: answer.Attempt, Rank: answer.Rank,
		Env: answer.Setting.Env, Files: answer.Setting.Files,
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if out.Files == nil {
		out.Files = map[string]string{}
	}
	if answer.Reason != "" {
		out.Reason = &answer.Reason
	}
	return out, nil
}
