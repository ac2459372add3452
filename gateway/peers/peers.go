// Package peers makes several gateways one: each tells the others, through the database and off the requests' path, which
// sessions it has set on which backends and how much it has there. What is made of that belongs to gateway/balance.
package peers

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Ledger is where gateways leave what they tell one another. internal/store says what each call means.
type Ledger interface {
	TellGateway(ctx context.Context, head store.GatewayHead, pins []store.GatewayPins, upToNumber, upToTotal int64) error
	Gateways(ctx context.Context) ([]store.GatewayHead, error)
	GatewayPins(ctx context.Context, gateway string, after int64, most int) ([]store.GatewayPins, error)
	ForgetGateway(ctx context.Context, id string, beat int64) error
}

const (
	// every is how often a gateway tells and hears: what one knows the others know within a second.
	every = 500 * time.Millisecond
	// patience is how long the database may take. What is told again half a second later need not be waited for.
	patience = 2 * time.Second

	// A gateway's rows are kept for as long as sessions are, an hour, and as many as a table holds: one that comes later
	// reads them all.
	keptRows = int64(time.Hour / every)
	keptPins = 1 << 17
	trimEach = 64 // beats

	atOnce = 32 // rows that are read in one go
	// gone is how long a gateway may say nothing before what it told is dropped.
	gone = 5 * time.Minute
)

// Exchange tells and hears for one gateway. Only one goroutine may use it.
type Exchange struct {
	name   string
	ledger Ledger
	pools  func() map[string]*balance.Pool
	clock  clock.Clock
	log    hclog.Logger

	beat   int64
	number int64 // of the row that was written last
	total  int64 // pins in all rows
	marks  map[*balance.Pool]uint64
	peers  map[string]*peer
	away   bool
}

// peer is another gateway as this one has it.
type peer struct {
	beat    int64
	heardAt time.Time // when its beat was seen to change, or it was first seen
	number  int64     // of its rows, the last one that was read
}

// New makes an exchange for the gateway of that name, which no other gateway has or had. pools lists its pools by service.
func New(name string, l Ledger, pools func() map[string]*balance.Pool, c clock.Clock, log hclog.Logger) *Exchange {
	return &Exchange{name: name, ledger: l, pools: pools, clock: c, log: log, marks: map[*balance.Pool]uint64{}, peers: map[string]*peer{}}
}

// Run exchanges until the context ends, then takes back its loads. While the database is away each gateway goes on with
// what it knows, and catches up after.
func (e *Exchange) Run(ctx context.Context) error {
	tick := e.clock.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
			e.say(ctx, e.Beat(ctx))
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			e.beat++
			e.say(last, e.ledger.TellGateway(last, store.GatewayHead{ID: e.name, Beat: e.beat, ToldAt: e.clock.Now(), PinsTo: e.number}, nil, 0, 0))
			return ctx.Err()
		}
	}
}

// say logs once when the exchange begins to fail, and once when it works again.
func (e *Exchange) say(ctx context.Context, err error) {
	switch {
	case err != nil && ctx.Err() == nil && !e.away:
		e.log.Warn("gateways do not hear of one another, each goes on alone", "error", err)
		e.away = true
	case err == nil && e.away:
		e.log.Info("gateways hear of one another again")
		e.away = false
	}
}

// Beat tells what is new here, then hears what is new elsewhere.
func (e *Exchange) Beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pools := e.pools()
	if err := e.tell(ctx, pools); err != nil {
		return err
	}
	return e.hear(ctx, pools)
}

func (e *Exchange) tell(ctx context.Context, pools map[string]*balance.Pool) error {
	now := e.clock.Now()
	loads, pins := map[string]map[string]balance.Load{}, newWriter()
	marks := make(map[*balance.Pool]uint64, len(pools))
	for _, service := range slices.Sorted(maps.Keys(pools)) {
		changes, mark := pools[service].Changes(e.marks[pools[service]])
		marks[pools[service]] = mark
		if len(changes.Loads) > 0 {
			loads[service] = changes.Loads
		}
		pins.add(service, changes.Pins)
	}
	rows := pins.rows()
	e.beat++
	for i := range rows {
		// A number is never used twice: a write that was reported as failed may be there all the same.
		e.number++
		e.total += int64(rows[i].count)
		rows[i].Number, rows[i].Total = e.number, e.total
	}
	head := store.GatewayHead{ID: e.name, Beat: e.beat, ToldAt: now, PinsTo: e.number, Loads: encodeLoads(loads)}
	var upToNumber, upToTotal int64
	if e.beat%trimEach == 0 {
		upToNumber, upToTotal = e.number-keptRows, e.total-keptPins
	}
	if err := e.ledger.TellGateway(ctx, head, stored(rows), max(0, upToNumber), max(0, upToTotal)); err != nil {
		return err
	}
	e.marks = marks
	return nil
}

func (e *Exchange) hear(ctx context.Context, pools map[string]*balance.Pool) error {
	heads, err := e.ledger.Gateways(ctx)
	if err != nil {
		return err
	}
	now := e.clock.Now()
	seen := map[string]bool{}
	for _, head := range heads {
		if head.ID == e.name {
			continue
		}
		seen[head.ID] = true
		p := e.peers[head.ID]
		if p == nil {
			p = &peer{beat: head.Beat, heardAt: now}
			e.peers[head.ID] = p
		}
		if head.Beat != p.beat { // loads of one that has said nothing since it was first seen may be those of a dead one
			p.beat, p.heardAt = head.Beat, now
			e.mergeLoads(head, pools)
		}
		if err := e.read(ctx, head, p, pools, now); err != nil {
			return err
		}
		if now.Sub(p.heardAt) >= gone {
			if err := e.ledger.ForgetGateway(ctx, head.ID, head.Beat); err != nil {
				return err
			}
			e.log.Info("a gateway that is gone was forgotten", "gateway", head.ID)
		}
	}
	maps.DeleteFunc(e.peers, func(id string, _ *peer) bool { return !seen[id] })
	return nil
}

// mergeLoads takes in what another gateway has at each backend now. Where it tells of no load it has none.
func (e *Exchange) mergeLoads(head store.GatewayHead, pools map[string]*balance.Pool) {
	loads, err := decodeLoads(head.Loads)
	if err != nil {
		e.log.Warn("what a gateway told of its loads is not understood", "gateway", head.ID, "error", err)
	}
	for service, pool := range pools {
		pool.MergeLoads(head.ID, loads[service])
	}
}

// read takes in the sessions that another gateway has set since the last time.
func (e *Exchange) read(ctx context.Context, head store.GatewayHead, p *peer, pools map[string]*balance.Pool, now time.Time) error {
	for p.number < head.PinsTo {
		rows, err := e.ledger.GatewayPins(ctx, head.ID, p.number, atOnce)
		if err != nil {
			return err
		}
		for _, row := range rows {
			p.number = row.Number
			pins, err := decodePins(row.Pins)
			if err != nil {
				e.log.Warn("what a gateway told of its sessions is not understood", "gateway", head.ID, "row", row.Number, "error", err)
				continue
			}
			for service, list := range pins {
				if pool := pools[service]; pool != nil {
					pool.MergePins(list, head.ToldAt.Sub(now))
				}
			}
		}
		if len(rows) < atOnce {
			p.number = max(p.number, head.PinsTo)
		}
	}
	return nil
}
