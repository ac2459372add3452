package mps

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// superviseEvery is how often the daemons of held shares are looked at.
const superviseEvery = 2 * time.Second

// restartTime bounds one try to start a daemon anew.
const restartTime = 10 * time.Second

// Keep starts daemons anew that died, and watches what all processes of a task hold together.
func (b *Backend) Keep(ctx context.Context, live func() map[share.ID]share.Ask, tasks share.Tasks) error {
	watched := make(chan error, 1)
	go func() { watched <- b.watch.Keep(ctx, live, tasks) }()
	ticker := b.clock.NewTicker(superviseEvery)
	defer ticker.Stop()
	s := supervisor{b: b, tasks: tasks, pids: map[string]process{}, down: map[string]bool{}}
	for {
		select {
		case err := <-watched:
			return err
		case <-ctx.Done():
			return <-watched
		case <-ticker.C():
			s.look(ctx, live())
		}
	}
}

// supervisor is one Keep's memory.
type supervisor struct {
	b     *Backend
	tasks share.Tasks
	pids  map[string]process // the daemon of a card, so that not every process is read each time
	down  map[string]bool    // cards whose daemon could not be started, which their tasks know
}

// look starts what died of the cards that have shares.
func (s *supervisor) look(ctx context.Context, live map[share.ID]share.Ask) {
	byCard := map[string][]share.Ask{}
	for _, a := range live {
		byCard[a.Card.UUID] = append(byCard[a.Card.UUID], a)
	}
	for card := range s.pids {
		if len(byCard[card]) == 0 {
			delete(s.pids, card)
			delete(s.down, card)
		}
	}
	for _, card := range slices.Sorted(maps.Keys(byCard)) {
		if p, known := s.pids[card]; known && s.b.alive(p) {
			continue
		}
		started, err := s.revive(ctx, card)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !s.down[card]:
			s.down[card] = true
			s.b.host.Logger().Error("MPS daemon not started anew", "card", card, "error", err)
			s.tell(byCard[card], fmt.Sprintf("the MPS daemon of %s died and cannot be started anew, it is tried again every %s: %v", card, superviseEvery, err))
		case err == nil && started:
			s.b.host.Logger().Warn("MPS daemon started anew", "card", card)
			s.tell(byCard[card], fmt.Sprintf("the MPS daemon of %s died and was started anew: processes that used it fail and must be started again", card))
		}
		if err == nil {
			s.down[card] = false
		}
	}
}

// revive makes sure that a card's daemon runs, unless its shares have been given back meanwhile.
func (s *supervisor) revive(ctx context.Context, card string) (started bool, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	notes, err := s.b.notes.All()
	if err != nil {
		return false, err
	}
	if !slices.Contains(slices.Collect(maps.Values(notes)), note{Card: card}) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, restartTime)
	defer cancel()
	if started, err = s.b.ensure(ctx, card, func(string) {}); err != nil {
		return started, err
	}
	all, err := s.b.processes()
	pipe := s.b.dirs(card).pipe
	for _, p := range all {
		if p.control && p.pipe() == pipe {
			s.pids[card] = p
		}
	}
	return started, err
}

func (s *supervisor) tell(asks []share.Ask, text string) {
	for _, a := range asks {
		s.tasks.Tell(a.TaskID, text)
	}
}
