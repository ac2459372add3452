package rest

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
)

const (
	// longestWait is how long a device plugin may wait for an intent.
	longestWait = 60 * time.Second
	// intentPoll is how often intents stated by other instances are looked for.
	intentPoll = time.Second
)

// ListIntents waits for intents about the caller's cards.
func (s *server) ListIntents(ctx context.Context, r api.ListIntentsRequestObject) (api.ListIntentsResponseObject, error) {
	wait, err := time.ParseDuration(val(r.Params.Wait))
	if err != nil && r.Params.Wait != nil {
		return nil, httpx.NewProblem(http.StatusBadRequest, "bad_parameter", "wait: write a time such as 30s")
	}
	s.Submit.IntentsFetched(r.Params.Card)
	defer s.Submit.IntentsFetched(r.Params.Card) // it was there all the time
	end := s.Clock.After(min(wait, longestWait))
	for {
		stated := s.Submit.IntentStated()
		open, err := s.Store.OpenIntents(ctx, r.Params.Card)
		if errors.Is(context.Cause(ctx), httpx.ErrStopping) {
			return intentList(nil), nil
		}
		if err != nil {
			return nil, err
		}
		if len(open) > 0 || wait <= 0 {
			return intentList(open), nil
		}
		select {
		case <-ctx.Done(): // the next look finds out why
		case <-end:
			return intentList(nil), nil
		case <-stated:
		case <-s.Clock.After(intentPoll):
		}
	}
}

// turnedAway notes of a device plugin why it is not told what is wanted of its cards: its own log is on the node.
func (s *server) turnedAway(operation string, r *http.Request, err error) {
	var problem *httpx.Problem
	if operation == "listIntents" && errors.As(err, &problem) && problem.Status < http.StatusInternalServerError {
		s.Submit.IntentsRefused(r.URL.Query()["card"], problem.Detail)
	}
}

func intentList(open []store.Intent) api.ListIntents200JSONResponse {
	out := api.ListIntents200JSONResponse{Items: []api.Intent{}}
	for _, in := range open {
		out.Items = append(out.Items, api.Intent{
			ID: in.ID, NodeID: ref(in.NodeID), CardUUID: in.CardUUID, Form: in.Form, State: api.IntentState(in.State), Version: in.Version,
		})
	}
	return out
}

// ClaimIntent lets one claimant win.
func (s *server) ClaimIntent(ctx context.Context, r api.ClaimIntentRequestObject) (api.ClaimIntentResponseObject, error) {
	who := whoOf(ctx)
	won, err := s.Store.ClaimIntent(ctx, r.ID, r.Body.Version, who.KeyID)
	if err != nil {
		return nil, err
	}
	if !won {
		return nil, lost("the intent is not to be claimed in this version any more: list the intents again")
	}
	return api.ClaimIntent200JSONResponse{OK: true}, nil
}

// ReportIntent notes how an intent ended.
func (s *server) ReportIntent(ctx context.Context, r api.ReportIntentRequestObject) (api.ReportIntentResponseObject, error) {
	won, err := s.Store.ReportIntent(ctx, r.ID, string(r.Body.State), val(r.Body.Reason))
	if err != nil {
		return nil, err
	}
	if !won {
		return nil, lost("the intent is not claimed any more: list the intents again")
	}
	s.log.Info("intent reported", "intent", r.ID, "state", r.Body.State, "reason", val(r.Body.Reason))
	if string(r.Body.State) == store.IntentFailed {
		in, err := s.Store.Intent(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		s.Submit.IntentFailed(ctx, in.CardUUID)
	}
	return api.ReportIntent200JSONResponse{OK: true}, nil
}

func lost(detail string) error { return httpx.NewProblem(http.StatusConflict, "lost", detail) }
