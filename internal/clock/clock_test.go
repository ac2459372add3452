package clock_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/clock"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestFake_AfterFiresWhenItsTimeHasCome(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(noon)
	c := f.After(time.Minute)
	f.Advance(59 * time.Second)
	select {
	case at := <-c:
		t.Fatalf("fired early, at %v", at)
	default:
	}
	f.Advance(time.Hour)
	if at := <-c; !at.Equal(noon.Add(time.Minute)) {
		t.Errorf("fired with %v", at)
	}
	if !f.Now().Equal(noon.Add(time.Hour + 59*time.Second)) {
		t.Errorf("now is %v", f.Now())
	}
	if at := <-f.After(0); !at.Equal(f.Now()) {
		t.Errorf("a wait of nothing ended at %v", at)
	}
}

func TestFake_TickerTicksUntilStopped(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(noon)
	ticker := f.NewTicker(time.Second)
	var got []time.Duration
	for range 3 {
		f.Advance(time.Second)
		got = append(got, (<-ticker.C()).Sub(noon))
	}
	if diff := cmp.Diff([]time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	f.Advance(5 * time.Second) // four of five are lost on a receiver that does not look
	<-ticker.C()
	ticker.Stop()
	f.Advance(time.Minute)
	select {
	case at := <-ticker.C():
		t.Errorf("ticked after stop, at %v", at)
	default:
	}
}

func TestFake_AwaitWaiters(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(noon)
	woken := make(chan time.Time)
	go func() { woken <- <-f.After(time.Second) }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := f.AwaitWaiters(ctx, 1); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Second)
	<-woken
	ended, end := context.WithCancel(t.Context())
	end()
	if err := f.AwaitWaiters(ended, 1); err == nil {
		t.Error("nobody waits, and it said so not")
	}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	c := clock.System()
	if c.Now().Location() != time.UTC {
		t.Error("the system clock does not tell UTC")
	}
	<-c.After(time.Nanosecond)
	ticker := c.NewTicker(time.Millisecond)
	<-ticker.C()
	ticker.Stop()
}

func TestSleep(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(noon)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool, 1)
	sleep := func() { done <- clock.Sleep(ctx, f, time.Minute) }
	go sleep()
	if err := f.AwaitWaiters(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Minute)
	if !<-done {
		t.Error("the wait came to its end and says it did not")
	}
	go sleep()
	if err := f.AwaitWaiters(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if <-done {
		t.Error("the context ended the wait, and it says it came to its end")
	}
	if clock.Sleep(ctx, f, 0) {
		t.Error("a wait of nothing does not notice that the context ended")
	}
	if !clock.Sleep(t.Context(), f, 0) {
		t.Error("a wait of nothing must come to its end")
	}
}
