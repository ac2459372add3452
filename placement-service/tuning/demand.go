package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// demandSetting is the prefix of the names under which what was learnt is kept, in versions like those of the plugins.
// An instance adds to the newest version what it was asked itself; that of two which write the same one the later reads
// the other's first has one value of all, in which nobody's requests are missing.
const demandSetting = "engine.demand/"

// DemandVersion is the demand as it was learnt at one time.
type DemandVersion struct {
	At     time.Time     `json:"at"`
	Level  int           `json:"level"` // of engine.Config, where an instance that starts begins
	Demand engine.Demand `json:"demand"`
}

// learnt is a version of the demand that is in force.
type learnt struct {
	number int // 0 before any
	demand engine.Demand
	level  int
	learnt *engine.Learnt
}

// The demand is learnt when so many allocations were asked for, and then after every learnEvery. Learning makes all that
// is remembered of it new, so that it is not done for each.
var learnAt = []int{30, 100, 300, 1000}

const learnEvery = 4000

// due is how many allocations are to be known before the demand is learnt again.
func due(observed int) int {
	for _, n := range learnAt {
		if observed < n {
			return n
		}
	}
	return observed + learnEvery
}

// Observe notes what a job asks for that was admitted. Of each job it is called once, wherever it goes.
func (t *Tuning) Observe(r engine.Request) {
	if t.Cluster == nil {
		return
	}
	more := engine.AsksOf(r)
	t.asking.Lock()
	t.asked = append(t.asked, more...)
	enough := t.enough(t.asked)
	t.asking.Unlock()
	if enough {
		select {
		case t.learnIt <- struct{}{}:
		default:
		}
	}
}

func (t *Tuning) enough(asked []engine.Asked) bool {
	known := t.current.Load().demand.demand.Observed
	came := 0.0
	for i := range asked {
		came += asked[i].Weight
	}
	return float64(known)+came >= float64(due(known))
}

// learn writes the next version of the demand when there is enough for it, or whatever there is.
func (t *Tuning) learn(ctx context.Context, whatever bool) error {
	for {
		if err := t.Refresh(ctx); err != nil {
			return err
		}
		t.asking.Lock()
		asked := t.asked[:len(t.asked):len(t.asked)]
		t.asking.Unlock()
		if len(asked) == 0 || !whatever && !t.enough(asked) {
			return nil
		}
		cluster := t.Cluster()
		if len(cluster.Nodes) == 0 {
			return nil
		}
		now := t.current.Load()
		next := DemandVersion{At: t.clock.Now(), Level: now.level, Demand: now.demand.demand.Add(asked).On(cluster)}
		text, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("encode the demand: %w", err)
		}
		_, won, err := t.store.SetSettingOnce(ctx, demandName(now.demand.number+1), string(text))
		if err != nil {
			return err
		}
		if won {
			t.asking.Lock()
			t.asked = append([]engine.Asked(nil), t.asked[len(asked):]...)
			t.asking.Unlock()
			return t.Refresh(ctx)
		}
	}
}

// keep writes what was asked for and is not learnt yet, before the service ends.
func (t *Tuning) keep(ctx context.Context) error {
	if t.Cluster == nil {
		return nil
	}
	const most = 2 * time.Second // what is lost is a few requests of thousands
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := t.learn(ctx, true); err != nil {
		t.log.Warn("the last requests are not learnt from", "error", err)
	}
	return nil
}

func demandName(number int) string { return demandSetting + strconv.Itoa(number) }

// readDemand reads one version.
func (t *Tuning) readDemand(ctx context.Context, number int) (learnt, error) {
	text, err := t.store.Setting(ctx, demandName(number))
	if errors.Is(err, store.ErrNotFound) {
		return learnt{}, fmt.Errorf("demand %d: %w", number, ErrNoVersion)
	}
	if err != nil {
		return learnt{}, err
	}
	var v DemandVersion
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return learnt{}, fmt.Errorf("read setting %s: %w", demandName(number), err)
	}
	if err := v.Demand.Check(); err != nil {
		return learnt{}, fmt.Errorf("read setting %s: %w", demandName(number), err)
	}
	return learnt{number: number, demand: v.Demand, level: v.Level}, nil
}

// refreshDemand puts the newest version of the demand in force. It must be called with reading locked.
func (t *Tuning) refreshDemand(ctx context.Context) error {
	now := *t.current.Load()
	newest, err := newestAfter(now.demand, now.demand.number, func(number int) (learnt, error) { return t.readDemand(ctx, number) })
	if err != nil || newest.number == now.demand.number {
		return err
	}
	if now.demand.number == 0 { // this instance begins where the others are
		now.level = newest.level
	}
	newest.learnt = engine.Learn(newest.demand)
	now.demand = newest
	t.apply(now)
	t.log.Info("demand learnt", "version", newest.number, "allocations", newest.demand.Observed, "asks", len(newest.demand.Asked))
	return nil
}

// regime is what Run has seen of the traffic.
type regime struct {
	potential.Regime
	began        bool
	placed, left int64 // so far
}

// watchTraffic looks at what began and ended since it was called last, and changes the level when that has changed.
func (t *Tuning) watchTraffic() {
	if t.Traffic == nil {
		return
	}
	t.reading.Lock()
	defer t.reading.Unlock()
	now := *t.current.Load()
	r := &t.regime
	if !r.began {
		r.began, r.Regime = true, potential.NewRegime(now.level)
	}
	placed, left := t.Traffic()
	const most = 10_000 // older ones do not count any more
	for came, went := min(placed-r.placed, most), min(left-r.left, most); came > 0 || went > 0; came, went = came-1, went-1 {
		if came > 0 {
			r.Placed()
		}
		if went > 0 {
			r.Left()
		}
	}
	r.placed, r.left = placed, left
	if level := r.Level(); level != now.level {
		now.level = level
		t.apply(now)
		t.log.Info("placement weighs departures anew", "level", level, "of", potential.Levels)
	}
}
