package rest

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// A device plugin that waits is told that there is nothing when the service stops; one that left is told nothing.
func TestListIntents_WhenTheWaitEnds(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	served := func(now clock.Clock) *server {
		return &server{Config: Config{Store: db, Submit: submit.New(submit.Config{Store: db, Clock: now, Log: hclog.NewNullLogger()}), Clock: now}}
	}
	wait := "30s"
	request := api.ListIntentsRequestObject{Params: api.ListIntentsParams{Card: []string{"GPU-1"}, Wait: &wait}}
	for name, cause := range map[string]error{"the service stops": httpx.ErrStopping, "the plugin leaves": context.Canceled} {
		now := clock.NewFake(clock.System().Now())
		ctx, end := context.WithCancelCause(t.Context())
		type result struct {
			answer api.ListIntentsResponseObject
			err    error
		}
		done := make(chan result, 1)
		go func() {
			answer, err := served(now).ListIntents(ctx, request)
			done <- result{answer, err}
		}()
		if err := now.AwaitWaiters(t.Context(), 2); err != nil { // the end of the wait, and the next look
			t.Fatal(err)
		}
		end(cause)
		got := <-done
		list, ok := got.answer.(api.ListIntents200JSONResponse)
		if cause == httpx.ErrStopping && (got.err != nil || !ok || len(list.Items) != 0) || cause != httpx.ErrStopping && !errors.Is(got.err, context.Canceled) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
