package gangs

import (
	"context"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

var train = watch.JobKey{Namespace: "default", ID: "train"}

// watched has an instance of the service watch over its gangs until the test ends.
func (b *bench) watched(room *Room) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- room.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
}

// await lets time pass until something arrives.
func await[T any](b *bench, c <-chan T) T {
	b.t.Helper()
	for {
		select {
		case v := <-c:
			return v
		default:
			b.clock.Advance(calm)
		}
	}
}

// With restart_gang the others are called back as soon as one is lost, whoever comes back when.
func TestGuard_OthersAreCalledBack(t *testing.T) {
	t.Parallel()
	b := startTwo(t, grant.RestartGang)
	b.watched(b.room)
	b.fake.lost("a2")
	b.room.Ended(train)
	if id := await(b, b.fake.restarted); id != "a1" {
		t.Errorf("restarted: %s", id)
	}
}

// A member that ended with success is not lost, with no policy.
func TestGuard_SuccessIsNoLoss(t *testing.T) {
	t.Parallel()
	for _, policy := range grant.OnLostPolicies {
		b := startTwo(t, policy)
		b.fake.ends("a2", watch.FateDone)
		b.fake.coming = false
		for range 2 {
			if short, err := b.room.guard(t.Context(), train); short || err != nil {
				t.Errorf("%s: short of members: %v, %v", policy, short, err)
			}
			b.clock.Advance(2 * settles)
		}
		if len(b.fake.restarted)+len(b.fake.ended) > 0 {
			t.Errorf("%s: %d restarted, ended %d times", policy, len(b.fake.restarted), len(b.fake.ended))
		}
	}
}

func TestGuard_JobEndsWithOnLostFail(t *testing.T) {
	t.Parallel()
	b := startTwo(t, grant.FailGang)
	b.watched(b.room)
	b.fake.lost("a2")
	b.room.Ended(train)
	await(b, b.fake.ended)
}

// A member that Nomad does not bring back ends the job, once Nomad had its time.
func TestGuard_MemberThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	b := startTwo(t, grant.RestartGang)
	b.fake.lost("a2")
	guard := func() bool {
		t.Helper()
		short, err := b.room.guard(t.Context(), train)
		if err != nil {
			t.Fatal(err)
		}
		return short
	}
	if guard() { // Nomad has an evaluation to come
		t.Error("it is missed although Nomad says that it comes")
	}
	<-b.fake.restarted
	b.fake.coming = false
	if !guard() || len(b.fake.ended) > 0 {
		t.Errorf("it is not looked at again, or ended %d times", len(b.fake.ended))
	}
	b.clock.Advance(settles)
	guard()
	if len(b.fake.ended) != 1 || !strings.Contains(b.fake.why, "do not bring it back") {
		t.Errorf("ended %d times: %s", len(b.fake.ended), b.fake.why)
	}
	if guard() {
		t.Error("the members of a stopped job are missed")
	}
}

// The policy acts on what happened while no instance of the service ran, and finishes what one before it began.
func TestGuard_AfterARestartOfTheService(t *testing.T) {
	t.Parallel()
	t.Run("lost meanwhile", func(t *testing.T) {
		t.Parallel()
		b := startTwo(t, grant.RestartGang)
		b.fake.lost("a2")
		b.watched(b.instance())
		if id := await(b, b.fake.restarted); id != "a1" {
			t.Errorf("restarted: %s", id)
		}
	})
	t.Run("called back, and not told so", func(t *testing.T) {
		t.Parallel()
		b := startTwo(t, grant.RestartGang)
		b.fake.lost("a2")
		if _, err := b.fake.RecallGang(t.Context(), "default", "train"); err != nil {
			t.Fatal(err)
		}
		b.watched(b.instance())
		if id := await(b, b.fake.restarted); id != "a1" {
			t.Errorf("restarted: %s", id)
		}
	})
}

// What is known of a gang is forgotten once all of its members have ended with success, or Nomad has forgotten them.
func TestGuard_ForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	b := startTwo(t, grant.RestartGang)
	b.fake.ends("a1", watch.FateDone)
	b.fake.ends("a2", watch.FateUnknown)
	if _, err := b.room.guard(t.Context(), train); err != nil || len(b.fake.rows) > 0 {
		t.Errorf("%d members are left, %v", len(b.fake.rows), err)
	}
}
