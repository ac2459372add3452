package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// A source is a detector and what is remembered of its cards.
type source struct {
	Detector
	tracker  *tracker              // guarded by Plugin.mu
	reported bool                  // guarded by Plugin.mu: it has answered, or failed to, once
	trouble  string                // guarded by Plugin.mu: why it cannot be read, as logged last
	memory   *partMemory           // guarded by Plugin.mu: nil before the first use
	near     map[string]neighbours // guarded by Plugin.mu: by UUID

	detecting, sampling, listing, linking, telling atomic.Bool
	last                                           sampled
}

func newSource(d Detector, set settings, now func() time.Time) *source {
	t := newTracker(set.BadSamples)
	t.hold, t.now = set.hold, now
	return &source{Detector: d, tracker: t}
}

var errStillBusy = errors.New("an earlier call has not returned yet")

// guarded calls a detector with a limit that holds even when the detector does not listen to its context: a call that
// outlives it is left to itself, and none of its kind is made until it is over. A panic becomes an error, and so does a call
// that ends its goroutine.
func guarded[T any](ctx context.Context, busy *atomic.Bool, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	var none T
	if !busy.CompareAndSwap(false, true) {
		return none, errStillBusy
	}
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	answers := make(chan answer, 1)
	go func() {
		defer cancel()
		a := answer{err: errors.New("it broke: it ended without an answer")}
		defer func() {
			if r := recover(); r != nil {
				a = answer{err: fmt.Errorf("it broke: %v", r)}
			}
			busy.Store(false) // before the answer: who has it may call again at once
			answers <- a
		}()
		a.value, a.err = call(ctx)
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		select { // an answer that came at the same moment is the better one
		case a := <-answers:
			return a.value, a.err
		default:
			return none, ctx.Err()
		}
	}
}

// observe makes one reading of a source and files it.
func (p *Plugin) observe(ctx context.Context, s *source) {
	before := p.look(s)
	cards, err := guarded(ctx, &s.detecting, p.limit, s.Detect)
	p.mu.Lock()
	set := p.set
	p.mu.Unlock()
	if err == nil && len(set.UnhealthyOn) > 0 {
		cards = set.judged(cards, p.sample(ctx, s))
	}
	events := p.events(ctx, s)
	if ctx.Err() != nil {
		return // the plugin is ending: this says nothing about the cards
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStillBusy):
		err = fmt.Errorf("%s did not answer within %s", s.Name(), p.limit)
	case err != nil:
		err = fmt.Errorf("%s: %w", s.Name(), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if s.trouble != err.Error() { // once, not at every reading
			p.log.Warn("cards cannot be read, the last good facts stay", "source", s.Name(), "error", err)
		}
		s.trouble = err.Error()
		s.tracker.fail(err)
	} else {
		if s.trouble != "" {
			p.log.Info("cards can be read again", "source", s.Name())
		}
		s.trouble = ""
		p.take(s, p.own(before, p.age(s), valid(cards)))
		p.memorize(s)
	}
	p.dropLeased()
	p.disputed(s.tracker.cards())
	p.hear(s, events)
	p.history.follow(s.tracker.cards(), p.now())
	s.reported = true
	p.notify()
}

// take files a reading. What was noted of a card that it replaced is forgotten with it. A card that two sources list is
// the first one's, in their order: given away by both it would be given away twice. The caller holds mu.
func (p *Plugin) take(s *source, cards []accel.Card) {
	before := maps.Clone(s.tracker.known)
	at := slices.Index(p.sources, s)
	s.tracker.observe(slices.DeleteFunc(cards, func(c accel.Card) bool {
		return slices.ContainsFunc(p.sources[:max(at, 0)], func(o *source) bool { return o.tracker.has(c.UUID) })
	}))
	for _, o := range p.sources[at+1:] {
		maps.DeleteFunc(o.tracker.known, func(uuid string, _ *tracked) bool { return s.tracker.has(uuid) })
	}
	for uuid := range before {
		if s.tracker.known[uuid] == nil {
			delete(p.faults, uuid)
			delete(p.flagged, uuid)
			delete(p.dispute, uuid)
			delete(s.near, uuid)
		}
	}
}

// pause is the time to the next reading of a source. Cards about to change their health are looked at twice as often,
// so that neither a dead card nor a repaired one has to wait.
func (p *Plugin) pause(s *source) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.tracker.unsettled() {
		return p.set.period / 2
	}
	return p.set.period
}

// valid leaves out cards without an identity or a model: Nomad would refuse the whole list for one of them.
func valid(cards []accel.Card) []accel.Card {
	out := make([]accel.Card, 0, len(cards))
	for _, c := range cards {
		if c.UUID != "" && c.Model != "" && c.Vendor != "" {
			out = append(out, c)
		}
	}
	return out
}

// watch makes sure that the sources are being read, and returns what ends that for this caller. However many callers
// there are, each source is read by one loop.
func (p *Plugin) watch() (end func()) {
	p.watchMu.Lock()
	defer p.watchMu.Unlock()
	p.watching++
	if p.watching == 1 {
		p.endWatch = p.startWatch()
	}
	return func() {
		p.watchMu.Lock()
		defer p.watchMu.Unlock()
		if p.watching--; p.watching == 0 {
			p.endWatch()
		}
	}
}

func (p *Plugin) startWatch() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	p.mu.Lock()
	sources, set := p.sources, p.set
	p.mu.Unlock()
	keep := func(what string, loop func()) {
		loops.Go(func() { p.keep(ctx, what, loop) })
	}
	for _, s := range sources {
		keep("readings of "+s.Name(), func() {
			for {
				p.observe(ctx, s)
				if !clock.Sleep(ctx, clock.System(), p.pause(s)) {
					return
				}
			}
		})
		if l, ok := s.Detector.(Linker); ok {
			keep("links of "+s.Name(), func() { p.followLinks(ctx, s, l) })
		}
	}
	if set.TextfileDir != "" {
		keep("metrics", func() { p.keepTextfile(ctx, set) })
	}
	if set.Server != "" {
		keep("intents", func() { p.followIntents(ctx, newIntentClient(set.Server, set.Token)) })
	}
	return func() {
		cancel()
		loops.Wait()
	}
}

// keep runs a loop until it returns. One that breaks is begun anew after a pause: it must not end the plugin, and with it
// what all others do.
func (p *Plugin) keep(ctx context.Context, what string, loop func()) {
	for p.broke(what, loop) && clock.Sleep(ctx, clock.System(), p.limit) {
		continue
	}
}

func (p *Plugin) broke(what string, loop func()) (broke bool) {
	defer func() {
		if r := recover(); r != nil {
			broke = true
			p.log.Error("a part of the plugin broke and is begun anew", "part", what, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	loop()
	return false
}

// awaitFirst waits until every source was read once, but not for one that hangs.
func (p *Plugin) awaitFirst(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstLimit)
	defer cancel()
	for {
		p.mu.Lock()
		waiting, changed := false, p.changed
		for _, s := range p.sources {
			waiting = waiting || !s.reported
		}
		p.mu.Unlock()
		if !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
