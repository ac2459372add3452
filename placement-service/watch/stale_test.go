package watch

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

func TestWorld_SaysWhenItIsStale(t *testing.T) {
	t.Parallel()
	w, now := NewWorld(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	is := func(want string) {
		t.Helper()
		if got := w.Stale(now); got != want {
			t.Errorf("stale is %q, want %q", got, want)
		}
	}
	is(whyUnread)
	w.loaded(nodesPart, now)
	is(whyUnread)
	w.loaded(allocsPart, now)
	is("")
	w.lose(nodesPart)
	is(whyAway)
	if w.loaded(allocsPart, now) {
		t.Error("what was not lost counts as found")
	}
	is(whyAway)
	if !w.loaded(nodesPart, now) {
		t.Error("who waits for the lost part is not woken")
	}
	is("")
	if w.heard(now) {
		t.Error("a sign of life in time counts as found")
	}
	now = now.Add(silence + time.Second)
	is(whySilent)
	if !w.heard(now) {
		t.Error("who waits for a Nomad that was silent is not woken")
	}
	is("")
}

// A stream that ends is opened again and loses nothing; one that cannot be opened does.
func TestRepeat_TellsAnEndFromALoss(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"end": {io.EOF, ""}, "refused": {errors.New("connection refused"), whyAway}, "the ledger": {&ledgerError{errors.New("database is locked")}, ""},
	} {
		w := NewWorld()
		w.loaded(nodesPart, time.Now())
		w.loaded(allocsPart, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		watcher := New(Config{World: w, Clock: clock.System(), Log: hclog.NewNullLogger()})
		err := watcher.repeat(ctx, "nodes", nodesPart, func(context.Context) error {
			if runs++; runs > 1 {
				cancel()
			}
			return c.err
		})
		if got := w.Stale(time.Now()); err != nil || got != c.want {
			t.Errorf("%s: stale is %q, %v", name, got, err)
		}
		cancel()
	}
}
