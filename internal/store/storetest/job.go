//go:build unix

package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

func testJobs(t *testing.T, open Open) {
	s, c := openAt(t, open)
	ctx := t.Context()
	spec := json.RawMessage(`{"ID":"llm","名":"大模型","n":1.50}`)

	j := ok2(s.PutJob(ctx, store.Job{
		Tenant: "research", Namespace: "default", ID: "llm", User: "ann", Spec: spec, SpecHash: "h1",
		State: store.JobWaiting, ReasonCode: "no_room", Reason: "50 GiB wanted, 40 GiB free", Priority: 50, EvalID: "ev1",
	}))(t)
	same(t, [2]time.Time{epoch, epoch}, [2]time.Time{j.CreatedAt, j.QueuedAt})
	same(t, j, ok2(s.Job(ctx, "default", "llm"))(t))
	same(t, j, ok2(s.JobByEval(ctx, "ev1"))(t))
	same(t, string(spec), string(j.Spec))

	// Compare and swap.
	_, err := s.PutJob(ctx, store.Job{Namespace: "default", ID: "llm"})
	wantErr(t, err, store.ErrConflict)
	c.Advance(time.Minute)
	next := j
	next.State, next.EvalID, next.Injection = store.JobSubmitting, "", json.RawMessage(`{"a":1}`)
	next = ok2(s.PutJob(ctx, next))(t)
	same(t, epoch.Add(time.Minute), next.UpdatedAt)
	same(t, next, ok2(s.Job(ctx, "default", "llm"))(t))
	_, err = s.PutJob(ctx, j)
	wantErr(t, err, store.ErrConflict)
	_, err = s.PutJob(ctx, store.Job{Namespace: "default", ID: "none", Version: 3})
	wantErr(t, err, store.ErrConflict)
	for _, eval := range []string{"ev1", ""} {
		_, err = s.JobByEval(ctx, eval)
		wantErr(t, err, store.ErrNotFound)
	}
	_, err = s.Job(ctx, "team", "llm")
	wantErr(t, err, store.ErrNotFound)

	ok(t, s.DeleteJob(ctx, "default", "llm"))
	wantErr(t, s.DeleteJob(ctx, "default", "llm"), store.ErrNotFound)
	ok(t, s.Flush(ctx))
	t.Run("one winner", func(t *testing.T) { jobsOneWinner(t, s) })
	t.Run("lists", func(t *testing.T) { jobsLists(t, open(t)) })
	t.Run("queue", func(t *testing.T) { jobsQueue(t, open(t)) })
	t.Run("reserving", func(t *testing.T) { jobsReserving(t, open(t)) })
}

func jobsOneWinner(t *testing.T, s *store.Store) {
	j := ok2(s.PutJob(t.Context(), store.Job{Namespace: "default", ID: "contested", State: store.JobWaiting}))(t)
	won := make([]int, 16)
	together(len(won), func(i int) {
		mine := j
		mine.Reason = fmt.Sprint(i)
		if _, err := s.PutJob(t.Context(), mine); err == nil {
			won[i] = 1
		}
	})
	sum := 0
	for _, w := range won {
		sum += w
	}
	same(t, 1, sum)
	same(t, int64(2), ok2(s.Job(t.Context(), "default", "contested"))(t).Version)
}

func jobsLists(t *testing.T, s *store.Store) {
	ctx := t.Context()
	// Created at one moment: namespace and id decide, and the same id in two namespaces is two jobs.
	for n := range 10 {
		ok2(s.PutJob(ctx, store.Job{
			Tenant: []string{"ops", "research"}[n%2], Namespace: []string{"default", "team"}[n/5],
			ID: fmt.Sprintf("%s-%d", []string{"llm", "train_x", "train%x"}[n%3], n%5), State: []string{store.JobWaiting, store.JobStopped}[n%2], CreatedAt: epoch,
		}))(t)
	}
	list := func(f store.JobFilter) (ids []string) {
		js := allPages(t, func(p store.Page) ([]store.Job, string, error) { return s.ListJobs(ctx, f, p) })
		for _, j := range js {
			ids = append(ids, j.Namespace+"/"+j.ID)
		}
		return ids
	}
	same(t, 10, len(list(store.JobFilter{})))
	same(t, []string{"default/llm-0", "default/llm-3"}, list(store.JobFilter{Namespace: "default", Prefix: "llm"}))
	same(t, []string{"default/train_x-1", "default/train_x-4", "team/train_x-2"}, list(store.JobFilter{Prefix: "train_"}))
	same(t, []string{"default/train%x-2", "team/train%x-0", "team/train%x-3"}, list(store.JobFilter{Prefix: "train%"}))
	same(t, 5, len(list(store.JobFilter{Tenant: "ops", State: store.JobWaiting})))
	same(t, 0, len(list(store.JobFilter{Tenant: "ops", State: store.JobStopped})))
	_, _, err := s.ListJobs(ctx, store.JobFilter{}, store.Page{Cursor: "bm8"})
	wantErr(t, err, store.ErrBadCursor)
}

func jobsQueue(t *testing.T, s *store.Store) {
	ctx := t.Context()
	put := func(id string, priority int, queued time.Duration, state string) {
		ok2(s.PutJob(ctx, store.Job{Namespace: "default", ID: id, Priority: priority, QueuedAt: epoch.Add(queued), State: state}))(t)
	}
	put("late", 50, time.Minute, store.JobWaiting)
	put("b", 50, 0, store.JobWaiting)
	put("a", 50, 0, store.JobWaiting)
	put("urgent", 90, time.Hour, store.JobWaiting)
	put("runs", 99, 0, store.JobSubmitted)
	put("sent-1", 50, 0, store.JobSubmitting)
	put("sent-2", 90, 0, store.JobSubmitting)
	same(t, []string{"urgent", "a", "b", "late"}, jobIDs(ok2(s.WaitingJobs(ctx, 10))(t)))
	same(t, 2, len(ok2(s.WaitingJobs(ctx, 2))(t)))
	same(t, []string{"sent-1", "sent-2"}, jobIDs(ok2(s.UnsentJobs(ctx, 10))(t)))
	same(t, 1, len(ok2(s.UnsentJobs(ctx, 1))(t)))
}

func jobIDs(jobs []store.Job) (ids []string) {
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

func jobsReserving(t *testing.T, s *store.Store) {
	ctx := t.Context()
	ok(t, s.PutPools(ctx, "n1", []store.Pool{{NodeID: "n1", Group: "a", Capacity: 4, UnitMiB: 1024}}))
	unchanged := func(want store.Job) {
		t.Helper()
		same(t, want, ok2(s.Job(ctx, "default", "llm"))(t))
	}
	j := store.Job{Namespace: "default", ID: "llm", State: store.JobSubmitting}

	var full *store.NoRoomError
	_, err := s.PutJobReserving(ctx, j, reservation("r1", "llm", claim("n1", "a", 5)))
	asNoRoom(t, err, &full)
	_, err = s.Job(ctx, "default", "llm")
	wantErr(t, err, store.ErrNotFound)

	j = ok2(s.PutJobReserving(ctx, j, reservation("r1", "llm", claim("n1", "a", 3))))(t)
	same(t, int64(1), j.Version)
	unchanged(j)

	stale := j
	stale.Version = 0
	again := reservation("r2", "llm", claim("n1", "a", 1))
	again.Replaces = "r1"
	_, err = s.PutJobReserving(ctx, stale, again)
	wantErr(t, err, store.ErrJobChanged)
	wantErr(t, err, store.ErrConflict)
	_, err = s.PutJobReserving(ctx, j, reservation("r2", "llm", claim("n1", "a", 1)))
	if !errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrJobChanged) {
		t.Errorf("got %v, want a conflict of the reservation", err)
	}
	unchanged(j)
	same(t, "r1", ok2(s.ReservationOf(ctx, "default", "llm"))(t).ID)

	j.State = store.JobSubmitted
	_, err = s.PutJobSubmitted(ctx, stale, "r1")
	wantErr(t, err, store.ErrJobChanged)
	same(t, store.Reserved, ok2(s.ReservationOf(ctx, "default", "llm"))(t).State)
	j = ok2(s.PutJobSubmitted(ctx, j, "r1"))(t)
	unchanged(j)
	same(t, store.Submitted, ok2(s.ReservationOf(ctx, "default", "llm"))(t).State)
	for _, none := range []string{"", "r1", "r9"} {
		j = ok2(s.PutJobSubmitted(ctx, j, none))(t)
		unchanged(j)
	}
}

func testDecisions(t *testing.T, open Open) {
	s, _ := openAt(t, open)
	ctx := t.Context()
	for n := range store.DecisionsKept + 5 {
		d := store.Decision{
			ID: fmt.Sprintf("d%02d", n), Namespace: "default", JobID: "llm", Outcome: "refused", ReasonCode: "no_room",
			At: epoch.Add(time.Duration(n/2) * time.Second), Input: json.RawMessage(`{"a":1}`),
		}
		ok(t, s.AddDecision(ctx, d))
		ok(t, s.AddDecision(ctx, d))
	}
	ok(t, s.AddDecision(ctx, store.Decision{Namespace: "default", JobID: "other", Outcome: "placed"}))
	all := ok2(s.Decisions(ctx, "default", "llm", 100))(t)
	same(t, store.DecisionsKept, len(all))
	same(t, store.Decision{
		ID: "d24", Namespace: "default", JobID: "llm", Outcome: "refused", ReasonCode: "no_room",
		At: epoch.Add(12 * time.Second), Input: json.RawMessage(`{"a":1}`),
	}, all[0])
	same(t, "d05", all[len(all)-1].ID)
	same(t, 3, len(ok2(s.Decisions(ctx, "default", "llm", 3))(t)))
	other := ok2(s.Decisions(ctx, "default", "other", 3))(t)
	if len(other) != 1 || other[0].ID == "" || !other[0].At.Equal(epoch) {
		t.Errorf("got %+v", other)
	}
	same(t, 0, len(ok2(s.Decisions(ctx, "team", "llm", 3))(t)))
}
