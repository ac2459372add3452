package share

import (
	"context"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// keeper tells what it sees and waits for its end, or panics.
type keeper struct {
	*stub
	saw    chan int
	panics bool
}

func (k keeper) Keep(ctx context.Context, live func() map[ID]Ask, _ Tasks) error {
	if k.panics {
		panic("out of order")
	}
	k.saw <- len(live())
	<-ctx.Done()
	return ctx.Err()
}

func TestKeep_UntilItsEndWhateverOneDoes(t *testing.T) {
	t.Parallel()
	good := keeper{stub: newStub("good", accel.Silver), saw: make(chan int)}
	f := newFixture(t, nil, good, keeper{stub: newStub("bad", accel.Silver), panics: true}, newStub("plain", accel.Silver))
	for task, state := range map[string]State{"a": Confirmed, "b": Issued, "c": TimedOut} {
		if err := f.ledger.put(Entry{Ask: sliceOf(task, "GPU-1", 1, accel.Silver), Backend: "good", State: state}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.ledger.put(Entry{Ask: sliceOf("d", "GPU-1", 1, accel.Silver), Backend: "plain", State: Confirmed}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Keep(ctx, nil) }()
	if n := <-good.saw; n != 1 {
		t.Errorf("it keeps %d shares, want the one that is held", n)
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "keep nvidia-bad: panic: out of order") {
		t.Errorf("got %v", err)
	}
}

// tester is a backend with a self-test.
type tester struct {
	*stub
	test func() error
}

func (s tester) SelfTest(context.Context) error { return s.test() }

func TestSelfTest(t *testing.T) {
	t.Parallel()
	good := &tester{newStub("good", accel.Silver), func() error { return nil }}
	bad := &tester{newStub("bad", accel.Silver), func() error { panic("no such card") }}
	plain := newStub("plain", accel.Silver)
	f := newFixture(t, nil, good, bad, plain)
	for _, b := range []Backend{good, plain} {
		if err := f.SelfTest(t.Context(), b); err != nil {
			t.Errorf("%s: %v", b.Name(), err)
		}
	}
	if err := f.SelfTest(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "no such card") {
		t.Errorf("got %v", err)
	}
}
