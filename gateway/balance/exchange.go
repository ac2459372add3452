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

// Merge takes in what another gateway told. Its loads hold until it tells new ones, or for five seconds.
func (p *Pool) Merge(from string, c Changes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.pins.Merge(c.Pins, now)
	p.others[from] = instance{loads: c.Loads, at: now}
	p.setElsewhere(now)
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
