package discover

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

const (
	// askAgain is how long an answer about an allocation holds.
	askAgain = 10 * time.Second
	// askLimit is how long one question may take: an instance that nothing can be learned of is believed the registry.
	askLimit = 2 * time.Second
)

// Checked is a registry whose instances are looked up among the allocations: an entry that outlived its allocation, or came
// back after it was removed, gets no traffic. It is safe for concurrent use.
type Checked struct {
	registry Registry
	allocs   Allocations
	clock    clock.Clock
	log      hclog.Logger
	silent   sync.Once

	mu       sync.Mutex
	verdicts map[string]verdict  // by allocation
	last     map[string]answer   // of the registry, by service
	stale    map[string][]string // ids of instances, by service
}

type verdict struct {
	runs  bool
	known bool
	at    time.Time
}

type answer struct {
	instances []Instance
	next      uint64
}

var _ Registry = (*Checked)(nil)

// NewChecked makes a registry that leaves out what does not run.
func NewChecked(r Registry, a Allocations, c clock.Clock, log hclog.Logger) *Checked {
	return &Checked{registry: r, allocs: a, clock: c, log: log, verdicts: map[string]verdict{}, last: map[string]answer{}, stale: map[string][]string{}}
}

// Names lists the services as the registry does.
func (c *Checked) Names(ctx context.Context, index uint64) (map[string]Offer, uint64, error) {
	return c.registry.Names(ctx, index)
}

// Live lists the instances that the registry calls live and whose allocations run. It answers at least once in ten
// seconds, as allocations end without the registry's noticing.
func (c *Checked) Live(ctx context.Context, name string, index uint64) ([]Instance, uint64, error) {
	c.mu.Lock()
	before, had := c.last[name]
	c.mu.Unlock()
	asked, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		answer
		err error
	}
	got := make(chan result, 1)
	go func() {
		instances, next, err := c.registry.Live(asked, name, index)
		got <- result{answer{instances, next}, err}
	}()
	var again <-chan time.Time
	if had && index != 0 {
		again = c.clock.After(askAgain)
	}
	select {
	case r := <-got:
		if r.err != nil {
			return nil, r.next, r.err
		}
		before = r.answer
	case <-again:
		cancel()
		<-got
	}
	c.mu.Lock()
	c.last[name] = before
	c.mu.Unlock()
	return c.running(ctx, name, before.instances), before.next, nil
}

// running leaves out what does not run.
func (c *Checked) running(ctx context.Context, name string, listed []Instance) []Instance {
	verdicts := make([]verdict, len(listed))
	var asking sync.WaitGroup
	for i, one := range listed {
		asking.Go(func() { verdicts[i] = c.verdict(ctx, nomadapi.AllocOfService(one.ID)) })
	}
	asking.Wait()
	live := make([]Instance, 0, len(listed))
	var stale []string
	for i, one := range listed {
		if v := verdicts[i]; v.known && !v.runs {
			stale = append(stale, one.ID)
			continue
		}
		live = append(live, one)
	}
	c.report(name, stale)
	return live
}

// verdict is what is known of an allocation. While Nomad does not answer, what it said last holds.
func (c *Checked) verdict(ctx context.Context, alloc string) verdict {
	if alloc == "" {
		return verdict{}
	}
	now := c.clock.Now()
	c.mu.Lock()
	v, had := c.verdicts[alloc]
	c.mu.Unlock()
	if had && now.Sub(v.at) < askAgain {
		return v
	}
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	runs, err := c.allocs.Runs(limited, alloc)
	if err != nil {
		if ctx.Err() == nil {
			c.silent.Do(func() { c.log.Warn("allocations cannot be asked for, the registry is believed", "error", err) })
		}
		v.at = now
	} else {
		v = verdict{runs: runs, known: true, at: now}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(now)
	c.verdicts[alloc] = v
	return v
}

// forget drops what nobody asked about for long. The lock is held.
func (c *Checked) forget(now time.Time) {
	if len(c.verdicts) < 4096 {
		return
	}
	for alloc, v := range c.verdicts {
		if now.Sub(v.at) > time.Hour {
			delete(c.verdicts, alloc)
		}
	}
}

// report logs each stale instance once, when it is found.
func (c *Checked) report(name string, stale []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range stale {
		known := false
		for _, before := range c.stale[name] {
			known = known || before == id
		}
		if !known {
			c.log.Warn("the registry lists an instance whose allocation does not run, it gets no traffic", "service", name, "instance", id)
		}
	}
	if len(stale) == 0 {
		delete(c.stale, name)
		return
	}
	c.stale[name] = stale
}

// Stale counts the instances by service that are listed and do not run.
func (c *Checked) Stale() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]int, len(c.stale))
	for name, ids := range c.stale {
		out[name] = len(ids)
	}
	return out
}
