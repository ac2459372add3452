package store

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

func TestAwait_WaitsForAServerThatIsAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "postgres://nobody@" + l.Addr().String() + "/x?connect_timeout=2"
	l.Close()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := Await(ctx, url, now, hclog.NewNullLogger())
		done <- err
	}()
	if err := now.AwaitWaiters(ctx, 1); err != nil { // the first try failed and a second is due
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("want it to wait until told to stop, got %v", err)
	}
}

func TestAwait_DoesNotWaitForWhatIsWrong(t *testing.T) {
	t.Parallel()
	if _, err := Await(context.Background(), "mysql://x", clock.System(), hclog.NewNullLogger()); err == nil {
		t.Error("a url of another kind must be refused at once")
	}
}

func TestIsAway_ARefusalIsNot(t *testing.T) {
	t.Parallel()
	for _, err := range []error{ErrNotFound, ErrConflict, &NoRoomError{}, context.Canceled} {
		if IsAway(err) {
			t.Errorf("%v is an answer, repeating the call changes nothing", err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "postgres://nobody:secret@" + l.Addr().String() + "/x?connect_timeout=2"
	l.Close()
	if _, err := Open(context.Background(), url, hclog.NewNullLogger()); !IsAway(err) {
		t.Errorf("nobody listens there: %v", err)
	}
}
