package bronze

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Times of the watch. Over-use is seen at the first reading and acted on at the second, so that a task which is starting its
// processes anew is not stopped for a moment of both: within two readings and two time limits, below ten seconds.
const (
	readEvery   = 3 * time.Second
	readTimeout = 1500 * time.Millisecond
	warnAgain   = time.Minute
)

// toleranceMiB is what a reading may be off.
const toleranceMiB = 64

// seen is what the watch remembers of one share.
type seen struct {
	over   int // readings in a row above the limit
	warned time.Time
	told   bool
	ended  bool // a stop was asked for
}

// Keep watches the shares that are held until ctx ends.
func (b *Backend) Keep(ctx context.Context, live func() map[share.ID]share.Ask, tasks share.Tasks) error {
	ticker := b.clock.NewTicker(readEvery)
	defer ticker.Stop()
	w := watch{b: b, tasks: tasks, seen: map[share.ID]*seen{}, deaf: map[accel.Vendor]bool{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			w.look(ctx, live())
		}
	}
}

// watch is one Keep's memory.
type watch struct {
	b     *Backend
	tasks share.Tasks
	seen  map[share.ID]*seen
	deaf  map[accel.Vendor]bool // brands that could not be read the last time
}

// look reads every brand that has shares once.
func (w *watch) look(ctx context.Context, live map[share.ID]share.Ask) {
	for id := range w.seen {
		if _, is := live[id]; !is {
			delete(w.seen, id)
		}
	}
	byBrand := map[accel.Vendor][]share.Ask{}
	for _, a := range live {
		if w.b.readers[a.Vendor] != nil && a.MemoryMiB > 0 && !accel.IsSimulated(a.Card.UUID) {
			byBrand[a.Vendor] = append(byBrand[a.Vendor], a)
		}
	}
	for v, asks := range byBrand {
		var cards []grant.Card
		for _, a := range asks {
			cards = append(cards, a.Card)
		}
		uses, err := w.read(ctx, v, cards)
		if failed := err != nil; failed != w.deaf[v] && ctx.Err() == nil {
			w.deaf[v] = failed
			if failed {
				w.b.host.Logger().Warn("memory of processes not read: bronze shares are not watched", "vendor", v, "error", err)
			} else {
				w.b.host.Logger().Info("memory of processes is read again", "vendor", v)
			}
		}
		if err != nil {
			continue
		}
		for _, a := range asks {
			if held, whole := wholeCard(uses, a.Card.UUID); whole {
				w.judgeCard(a, asks, held)
				continue
			}
			w.judge(ctx, a, uses)
		}
	}
}

func (w *watch) read(ctx context.Context, v accel.Vendor, cards []grant.Card) ([]Use, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return w.b.readers[v].Uses(ctx, cards)
}

// judge holds one share against what its processes hold.
func (w *watch) judge(ctx context.Context, a share.Ask, uses []Use) {
	if !slices.ContainsFunc(uses, func(u Use) bool { return u.Card == a.Card.UUID }) {
		w.verdict(a, 0, a.MemoryMiB, "", w.b.overuse)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pids, err := w.tasks.PIDs(ctx, a.TaskID)
	if err != nil {
		w.b.host.Logger().Debug("processes of a task not found", "task_id", a.TaskID, "error", err)
		return
	}
	var held uint64
	for _, u := range uses {
		if u.Card == a.Card.UUID && u.MemoryMiB != nil && slices.Contains(pids, u.PID) {
			held += *u.MemoryMiB
		}
	}
	w.verdict(a, held, a.MemoryMiB, fmt.Sprintf("card %s: the task holds %s (%d MiB) and was given %s (%d MiB)",
		a.Card.UUID, accel.FormatMiB(held), held, accel.FormatMiB(a.MemoryMiB), a.MemoryMiB), w.b.overuse)
}

// wholeCard is what a card holds where it is not told who does.
func wholeCard(uses []Use, card string) (*uint64, bool) {
	for _, u := range uses {
		if u.Card == card && u.PID == 0 {
			return u.MemoryMiB, true
		}
	}
	return nil, false
}

// judgeCard holds a card against all shares by agreement on it. Nobody is stopped: which task takes more is not known.
func (w *watch) judgeCard(a share.Ask, asks []share.Ask, held *uint64) {
	var given uint64
	for _, other := range asks {
		if other.Card.UUID == a.Card.UUID {
			given += other.MemoryMiB
		}
	}
	if held == nil {
		return
	}
	w.verdict(a, *held, given, fmt.Sprintf("card %s holds %s (%d MiB), and all shares by agreement on it together were given %s (%d MiB): which task takes more is not told by this brand",
		a.Card.UUID, accel.FormatMiB(*held), *held, accel.FormatMiB(given), given), Warn)
}

// verdict warns or stops when more is held than given; text says so.
func (w *watch) verdict(a share.Ask, held, given uint64, text string, policy Policy) {
	s := w.seen[a.ID]
	if s == nil {
		s = &seen{}
		w.seen[a.ID] = s
	}
	if held <= given+toleranceMiB {
		if s.told {
			w.tasks.Tell(a.TaskID, fmt.Sprintf("card %s: back within its %s", a.Card.UUID, accel.FormatMiB(given)))
		}
		*s = seen{ended: s.ended}
		return
	}
	s.over++
	now := w.b.clock.Now()
	switch {
	case s.over < 2 || s.ended:
	case policy == Stop:
		s.ended = true
		w.tasks.Stop(a.TaskID, text+": it is stopped, as this node's config says; ask for more memory, or lower what the task takes")
	case !s.told || now.Sub(s.warned) >= warnAgain:
		s.told, s.warned = true, now
		w.tasks.Tell(a.TaskID, text+": its neighbours may fail; ask for more memory, or lower what the task takes")
	}
}
