package queue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// fake is a submitter that notes what it is asked to do; jobs named in room fit.
type fake struct {
	waiting, unsent []store.Job
	room            map[string]bool
	tried, adopted  []string
	down            bool
	broken          string      // a job that cannot be read
	done            chan string // told which job was adopted, unless nil
}

func (f *fake) Retry(_ context.Context, key watch.JobKey) (bool, error) {
	if f.down {
		return false, errors.New("nomad is away")
	}
	f.tried = append(f.tried, key.ID)
	if key.ID == f.broken {
		return true, errors.New("read the stored job")
	}
	return f.room[key.ID], nil
}

func (f *fake) Replace(_ context.Context, key watch.JobKey) (bool, error) {
	f.tried = append(f.tried, "replace "+key.ID)
	return true, nil
}

func (f *fake) Adopt(_ context.Context, key watch.JobKey) error {
	if f.down {
		return errors.New("nomad is away")
	}
	f.adopted = append(f.adopted, key.ID)
	if f.done != nil {
		f.done <- key.ID
	}
	return nil
}

func (f *fake) Evict(context.Context) error  { return nil }
func (f *fake) Resize(context.Context) error { return nil }

func (f *fake) Removed(context.Context, watch.JobKey) error { return nil }

func (f *fake) Signature(j store.Job) (string, error) { return string(j.Spec), nil }

func (f *fake) WaitingJobs(context.Context, int) ([]store.Job, error) { return f.waiting, nil }

func (f *fake) UnsentJobs(context.Context, int) ([]store.Job, error) { return f.unsent, nil }

func job(id, asks string) store.Job {
	return store.Job{Namespace: "default", ID: id, Spec: []byte(asks), ReasonCode: "memory", Version: 1}
}

func TestWork_TriesInOrderAndWhatAsksTheSameOnce(t *testing.T) {
	t.Parallel()
	f := &fake{
		unsent:  []store.Job{job("unsent", "")},
		waiting: []store.Job{job("big-1", "80"), job("big-2", "80"), job("small-1", "10"), job("small-2", "10"), job("small-3", "10")},
		room:    map[string]bool{"small-1": true},
	}
	q := New(f, f, nil, hclog.NewNullLogger())
	if err := q.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"unsent", "big-1", "small-1", "small-2"}; !slices.Equal(f.tried, want) {
		t.Errorf("tried %v, want %v", f.tried, want)
	}
}

func TestWork_OneJobThatCannotBeTriedDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]*fake{
		"on their way": {unsent: []store.Job{job("broken", ""), job("next", "")}},
		"waiting":      {waiting: []store.Job{job("broken", "1"), job("next", "2")}},
	} {
		f.broken = "broken"
		if err := New(f, f, nil, hclog.NewNullLogger()).Work(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Contains(f.tried, "next") {
			t.Errorf("%s: tried %v, want the one behind it too", name, f.tried)
		}
	}
}

func TestWork_AdoptsOnceAndAgainAfterTrouble(t *testing.T) {
	t.Parallel()
	f := &fake{down: true}
	q := New(f, f, nil, hclog.NewNullLogger())
	key := watch.JobKey{Namespace: "default", ID: "x"}
	q.Adopt(key)
	if err := q.Work(t.Context()); err == nil {
		t.Error("trouble was swallowed")
	}
	f.down = false
	for range 2 {
		q.Adopt(key)
		if err := q.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.adopted) != 1 {
		t.Errorf("adopted %v, want once", f.adopted)
	}
}

func TestRun_WakesAtAMomentThatWasNamed(t *testing.T) {
	t.Parallel()
	f := &fake{waiting: []store.Job{job("switching", "1")}}
	now := clock.NewFake(time.Now())
	q := New(f, f, now, hclog.NewNullLogger())
	q.WakeAt(now.Now().Add(30 * time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	if err := now.AwaitWaiters(ctx, 1); err != nil {
		t.Fatal(err)
	}
	now.Advance(30 * time.Second)
	if err := now.AwaitWaiters(ctx, 1); err != nil { // it waits for the next thing to do
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.tried, []string{"switching"}) {
		t.Errorf("tried %v, want the job once", f.tried)
	}
	if wait := q.untilDue(); wait != Tick {
		t.Errorf("the moment is not forgotten: next look in %v", wait)
	}
}

func TestRun_AdoptsWithoutGoingThroughAll(t *testing.T) {
	t.Parallel()
	f := &fake{done: make(chan string, 10), unsent: []store.Job{job("unsent", "")}}
	q := New(f, f, nil, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	q.Adopt(watch.JobKey{Namespace: "default", ID: "x"})
	if got := <-f.done; got != "x" {
		t.Errorf("adopted %q", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(f.tried) != 0 {
		t.Errorf("tried %v, want nothing", f.tried)
	}
}

func TestRun_WakesAtOnceAndBlockedAfterGrace(t *testing.T) {
	t.Parallel()
	f := &fake{}
	q := New(f, f, nil, hclog.NewNullLogger())
	q.mu.Lock()
	q.blocked[watch.JobKey{ID: "lost"}] = time.Now().Add(-time.Second)
	q.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	q.Wake()
	deadline := time.Now().Add(10 * time.Second)
	for {
		q.mu.Lock()
		left := len(q.blocked)
		q.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the blocked job was not tried")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.tried, "replace lost") {
		t.Errorf("tried %v", f.tried)
	}
}
