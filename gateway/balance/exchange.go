package balance

import (
	"time"

	"github.com/heteroflow/heteroflow/gateway/session"
)

// Load is what one gateway has at a backend.
type Load struct {
	Requests int // in flight
	Tokens   int // of prompts to be worked off
}

// Changes is what one gateway tells the others of a pool.
type Changes struct {
	Pins  []session.Pin   // set since the mark
	Loads map[string]Load // by backend id; all there are
}

// instanceTime is how long another gateway's loads are believed.
const instanceTime = 5 * time.Second

type instance struct {
	loads map[string]Load
	at    time.Time
}

// Changes lists what others should know, and the mark for the next call; the first mark is 0.
func (p *Pool) Changes(since uint64) (c Changes, next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Pins, next = p.pins.Changes(since)
	c.Loads = map[string]Load{}
	now := p.clock.Now()
	for _, m := range p.members {
		m.settle(now)
		if m.inFlight > 0 {
			c.Loads[m.ID] = Load{Requests: m.inFlight, Tokens: m.tokens}
		}
	}
	return c, next
}

// MergeLoads takes in what another gateway has at the backends. It holds until that tells it anew, or for five seconds.
func (p *Pool) MergeLoads(from string, loads map[string]Load) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.others[from] = instance{loads: loads, at: now}
	p.setElsewhere(now)
}

// MergePins takes in the sessions that another gateway has set, whose clock is ahead of ours by so much. The order in
// which pins come, and whether they come twice, makes no difference.
func (p *Pool) MergePins(pins []session.Pin, ahead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pins.Merge(pins, ahead, p.clock.Now())
}

// Pins is the number of session keys that are known.
func (p *Pool) Pins() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pins.Len()
}

// setElsewhere adds up what other gateways have at each backend.
func (p *Pool) setElsewhere(now time.Time) {
	for _, m := range p.members {
		m.elsewhere = Load{}
	}
	for name, o := range p.others {
		if now.Sub(o.at) >= instanceTime {
			delete(p.others, name)
			continue
		}
		for _, m := range p.members {
			load := o.loads[m.ID]
			m.elsewhere.Requests += load.Requests
			m.elsewhere.Tokens += load.Tokens
		}
	}
}
