package tuning

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// cluster is one node with two shared cards.
func cluster() engine.Snapshot {
	n := engine.Node{ID: "n1", Name: "n1", Datacenter: "dc1", Ready: true, CPUMHz: 64000, MemoryMiB: 512 << 10, Drivers: map[string]bool{"heteroflow": true}}
	for _, name := range []string{"A100-1", "A100-2"} {
		n.Pools = append(n.Pools, engine.Pool{
			Group: "nvidia/vgpu/" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: name, Model: "A100", Form: accel.Shared, UnitMiB: 1024, Total: 80,
		})
	}
	return engine.Snapshot{Nodes: []engine.Node{n}}
}

// job asks for as many allocations of a share.
func job(allocations int, gib uint64) engine.Request {
	return engine.Request{JobID: "j", Groups: []engine.GroupAsk{{
		Name: "g", Count: allocations, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &accel.Ask{Count: 1, MemoryMiB: gib << 10}}},
	}}}
}

func learning(k Settings) *Tuning {
	t := tuned(k)
	t.Cluster = cluster
	return t
}

func observed(t *Tuning) int { return t.current.Load().demand.demand.Observed }

// told is whether the tuning would learn now.
func told(t *Tuning) bool {
	select {
	case <-t.learnIt:
		return true
	default:
		return false
	}
}

func TestTuning_LearnsWhenEnoughWasAskedForAndTellsTheOthers(t *testing.T) {
	t.Parallel()
	k := newKept()
	a, b := learning(k), learning(k)
	ctx := t.Context()
	a.Observe(job(29, 20))
	if told(a) || a.learn(ctx, false) != nil || observed(a) != 0 {
		t.Error("29 allocations are learnt from")
	}
	a.Observe(job(1, 20))
	if !told(a) || a.learn(ctx, false) != nil || observed(a) != 30 {
		t.Errorf("of 30 allocations %d are learnt from", observed(a))
	}
	if err := b.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	mine, _ := a.Engine().Learnt()
	theirs, _ := b.Engine().Learnt()
	if mine == nil || theirs == nil || !cmp.Equal(mine.Demand(), theirs.Demand()) {
		t.Errorf("the engines score by %+v and %+v", mine.Demand(), theirs.Demand())
	}
	must(b.Update(ctx, "ann", "spread", new(true), nil, nil))(t)
	if kept, _ := b.Engine().Learnt(); kept != theirs {
		t.Error("a change of the plugins made what is remembered of the demand anew")
	}
}

// TestTuning_NobodysRequestsAreMissing: instances that learn at the same time add to each other's.
func TestTuning_NobodysRequestsAreMissing(t *testing.T) {
	t.Parallel()
	k := newKept()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			own := learning(k)
			for range 50 {
				own.Observe(job(2, uint64(10+i)))
				if err := own.learn(t.Context(), true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	late := learning(k)
	if err := late.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if demand := late.current.Load().demand.demand; demand.Observed != 400 || len(demand.Asked) != 4 {
		t.Errorf("learnt from %d allocations with %d asks, want 400 with 4", demand.Observed, len(demand.Asked))
	}
}

func TestTuning_LearnsSeldomLater(t *testing.T) {
	t.Parallel()
	for observed, want := range map[int]int{0: 30, 29: 30, 30: 100, 99: 100, 300: 1000, 1000: 1000 + learnEvery, 7000: 7000 + learnEvery} {
		if got := due(observed); got != want {
			t.Errorf("after %d the next is %d, want %d", observed, got, want)
		}
	}
}

func TestTuning_KeepsTheLastRequestsWhenItEnds(t *testing.T) {
	t.Parallel()
	k := newKept()
	a := learning(k)
	a.Observe(job(7, 20))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	b := learning(k)
	if err := b.Refresh(t.Context()); err != nil || observed(b) != 7 {
		t.Errorf("%d allocations were kept, want 7; %v", observed(b), err)
	}
	if learnt, _ := b.Engine().Learnt(); learnt != nil {
		t.Error("seven allocations are scored by")
	}
}

func TestTuning_LearnsNothingWithoutACluster(t *testing.T) {
	t.Parallel()
	k := newKept()
	a := learning(k)
	a.Cluster = func() engine.Snapshot { return engine.Snapshot{} }
	a.Observe(job(50, 20))
	if err := a.learn(t.Context(), false); err != nil || len(k.text) != 0 {
		t.Errorf("kept %v, %v", k.text, err)
	}
	a.Cluster = cluster
	if err := a.learn(t.Context(), false); err != nil || observed(a) != 50 {
		t.Errorf("once there are nodes %d are learnt from, %v", observed(a), err)
	}
}

func TestTuning_AnOddDemandIsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"no JSON": "{", "no demand": `{"demand":{"observed":-1}}`} {
		k := newKept()
		a := learning(k)
		a.Observe(job(30, 20))
		if err := a.learn(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		k.text[demandName(2)] = text
		if err := a.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), demandName(2)) || observed(a) != 30 {
			t.Errorf("%s: %v, %d observed", name, err, observed(a))
		}
	}
}

// TestTuning_WeighsDeparturesByTheTraffic: as many leave as come, and an instance that starts later begins there.
func TestTuning_WeighsDeparturesByTheTraffic(t *testing.T) {
	t.Parallel()
	k := newKept()
	a := learning(k)
	var placed, left int64
	a.Traffic = func() (int64, int64) { return placed, left }
	levelOf := func(t *Tuning) int { _, level := t.Engine().Learnt(); return level }
	placed = 900
	if a.watchTraffic(); levelOf(a) != 0 {
		t.Errorf("nothing left, and the level is %d", levelOf(a))
	}
	for range 20 {
		placed, left = placed+100, left+100
		a.watchTraffic()
	}
	if levelOf(a) != potential.Levels {
		t.Errorf("as many leave as come, and the level is %d", levelOf(a))
	}
	a.Observe(job(30, 20))
	if err := a.learn(t.Context(), false); err != nil || levelOf(a) != potential.Levels {
		t.Errorf("after learning the level is %d, %v", levelOf(a), err)
	}
	b := learning(k)
	b.Traffic = func() (int64, int64) { return 0, 0 }
	if err := b.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.watchTraffic(); levelOf(b) != potential.Levels {
		t.Errorf("an instance that starts is at level %d", levelOf(b))
	}
}

func FuzzDemandVersion(f *testing.F) {
	f.Add(`{"level":1,"demand":{"observed":40,"asked":[{"cards":1,"card_mib":1024,"cpu_mhz":1,"memory_mib":1,"weight":40}],` +
		`"models":[{"vendor":"nvidia","name":"A100","memory_mib":81920}],"kinds":[{"nodes":1,"cpu_mhz":64000,"memory_mib":1024,"cards":[2]}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v DemandVersion
		if json.Unmarshal([]byte(text), &v) != nil || v.Demand.Check() != nil {
			return
		}
		if d := engine.New(engine.Config{Learnt: engine.Learn(v.Demand), Level: v.Level}).Decide(cluster(), job(1, 4)); !d.Placed {
			t.Errorf("a demand keeps a job from its place: %+v", d.Refusal)
		}
	})
}
