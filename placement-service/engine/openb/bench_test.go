//go:build linux

package openb

import (
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// mean runs once for each seed, two at a time, and gives the mean of each number.
func mean(seeds []int64, run func(seed int64) []float64) []float64 {
	var all sync.WaitGroup
	running := make(chan struct{}, 2)
	results := make([][]float64, len(seeds))
	for i, seed := range seeds {
		all.Go(func() {
			running <- struct{}{}
			defer func() { <-running }()
			results[i] = run(seed)
		})
	}
	all.Wait()
	out := make([]float64, len(results[0]))
	for _, r := range results {
		for i := range r {
			out[i] += r[i] / float64(len(seeds))
		}
	}
	return out
}

// BenchmarkPlacementFill is the published experiment: cards allocated, in percent, when 100 and 130 % were asked for.
func BenchmarkPlacementFill(b *testing.B) {
	for _, r := range ranges(b) {
		if r.Load != "fill" {
			continue
		}
		b.Run(r.List, func(b *testing.B) {
			c := load(b, r.List)
			for b.Loop() {
				got := mean(publishedSeeds(), func(seed int64) []float64 {
					us, fgd := c.Fill(seed, ours(c)), c.Fill(seed, potential.NewFGD(c.Mix().Shares()))
					return []float64{us[100], us[130], fgd[100], fgd[130]}
				})
				b.ReportMetric(got[0], "%/at_100")
				b.ReportMetric(r.Goal[0], "%/at_100_goal")
				b.ReportMetric(got[2], "%/at_100_FGD")
				b.ReportMetric(got[1], "%/at_130")
				b.ReportMetric(r.Goal[1], "%/at_130_goal")
				b.ReportMetric(got[3], "%/at_130_FGD")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkPlacementChurn lets pods come and go: cards allocated, in percent, and what was lost of the asked, in percent.
func BenchmarkPlacementChurn(b *testing.B) {
	for _, r := range ranges(b) {
		if r.Load == "fill" {
			continue
		}
		b.Run(r.List+"/"+r.Load, func(b *testing.B) {
			c := load(b, r.List)
			for b.Loop() {
				got := mean(publishedSeeds()[:4], func(seed int64) []float64 {
					us, fgd := c.Churn(seed, r.offered(), ours(c)), c.Churn(seed, r.offered(), potential.NewFGD(c.Mix().Shares()))
					return []float64{us.Allocated, us.Lost, us.Multi, fgd.Allocated, fgd.Lost, fgd.Multi}
				})
				b.ReportMetric(got[0], "%/allocated")
				b.ReportMetric(r.Goal[0], "%/allocated_goal")
				b.ReportMetric(got[3], "%/allocated_FGD")
				b.ReportMetric(got[1], "%/lost")
				b.ReportMetric(r.Goal[1], "%/lost_goal")
				b.ReportMetric(got[4], "%/lost_FGD")
				b.ReportMetric(got[2], "%/multi_lost")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkPlacementPipeline is one seed of either experiment, by the scorer alone and by the whole engine.
func BenchmarkPlacementPipeline(b *testing.B) {
	for _, list := range []string{"default", "gpuspec33"} {
		c := load(b, list)
		b.Run(list+"/fill", func(b *testing.B) {
			for b.Loop() {
				whole := c.fill(42, func(ranks []int) placer { return c.pipeline(ranks, nil) })
				alone := c.Fill(42, ours(c))
				b.ReportMetric(whole[100], "%/at_100")
				b.ReportMetric(alone[100], "%/at_100_scorer")
				b.ReportMetric(whole[130], "%/at_130")
				b.ReportMetric(alone[130], "%/at_130_scorer")
				b.ReportMetric(0, "ns/op")
			}
		})
		b.Run(list+"/0.9", func(b *testing.B) {
			for b.Loop() {
				whole := c.churn(42, 0.9, func(ranks []int) placer { return c.pipeline(ranks, nil) })
				alone := c.Churn(42, 0.9, ours(c))
				b.ReportMetric(whole.Allocated, "%/allocated")
				b.ReportMetric(alone.Allocated, "%/allocated_scorer")
				b.ReportMetric(whole.Lost, "%/lost")
				b.ReportMetric(alone.Lost, "%/lost_scorer")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkPlacementDecision fills clusters of several sizes from empty until all cards have been asked for.
func BenchmarkPlacementDecision(b *testing.B) {
	c := load(b, "default")
	for _, nodes := range []int{1_213, 10_000, 100_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				decide(b, c, nodes)
			}
		})
	}
}

func decide(b *testing.B, c *Cluster, nodes int) {
	r := rand.New(rand.NewSource(1))
	scorer := ours(c)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := potential.NewIndex(scorer)
	capacity := 0
	for n, at := range r.Perm(nodes) {
		s := c.Nodes[n%len(c.Nodes)]
		x.Set(at, s)
		for _, card := range s.Cards {
			capacity += card.Milli()
		}
	}
	// The processor's time of this thread, since others may use the machine too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took []time.Duration
	var all time.Duration
	for asked := 0; asked < capacity; {
		p := &c.Pods[r.Intn(len(c.Pods))].Shape
		asked += p.Demand()
		start := threadTime(b)
		if node, room, ok := x.Choose(p); ok {
			s := x.State(node)
			x.Set(node, s.Place(p, room))
			scorer.Placed()
		}
		took = append(took, threadTime(b)-start)
		all += took[len(took)-1]
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/all.Seconds(), "decisions/s")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "µs/median")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "µs/p99")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(x)
}

// BenchmarkPipelineDecision is BenchmarkPlacementDecision through the whole engine, with eight plugins and the quotas of a
// tree of tenants, each decision booked.
func BenchmarkPipelineDecision(b *testing.B) {
	c := load(b, "default")
	for _, nodes := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				decidePipeline(b, c, nodes)
			}
		})
	}
}

func decidePipeline(b *testing.B, c *Cluster, nodes int) {
	r := rand.New(rand.NewSource(1))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	large := &Cluster{Pods: c.Pods}
	for n := range nodes {
		large.Nodes = append(large.Nodes, c.Nodes[n%len(c.Nodes)])
	}
	on := large.pipeline(r.Perm(nodes), []engine.PluginSetting{{Name: "binpack", Enabled: true, Weight: 1e-9}, {Name: "spread", Enabled: true, Weight: 1e-9}})
	for i := range on.engines {
		for _, p := range []engine.Plugin{withDriver{}, notDraining{}, small{}} {
			on.engines[i] = on.engines[i].With(p, 1e-9)
		}
	}
	quota := newQuotas(large.Capacity())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took []time.Duration
	var all time.Duration
	for asked, capacity := 0, large.Capacity(); asked < capacity; {
		p := &c.Pods[r.Intn(len(c.Pods))].Shape
		asked += p.Demand()
		if p.Cards == 0 {
			on.place(p)
			continue
		}
		request := requestOf(p)
		request.Tenant = quota.names[r.Intn(len(quota.names))]
		start := threadTime(b)
		if quota.take(request.Tenant, p.Demand()) {
			d := on.engine().DecideOn(on.cluster, request)
			if !d.Placed {
				quota.take(request.Tenant, -p.Demand())
			} else {
				on.take(numberOf(d.Groups[0].Placements[0].NodeID), p, d.Groups[0].Placements[0].Tasks[0].Claims)
			}
		}
		took = append(took, threadTime(b)-start)
		all += took[len(took)-1]
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/all.Seconds(), "decisions/s")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "µs/median")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "µs/p99")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(on)
}

// withDriver, notDraining and small are plugins as an installation may have them.
type (
	withDriver  struct{}
	notDraining struct{}
	small       struct{}
)

func (withDriver) Name() string         { return "with_driver" }
func (withDriver) Attributes() []string { return nil }
func (withDriver) Filter(c *engine.Candidate) engine.Code {
	if !c.Node.Drivers[c.Task.Driver] {
		return engine.CodeDriverMissing
	}
	return ""
}
func (notDraining) Name() string         { return "not_draining" }
func (notDraining) Attributes() []string { return []string{"meta.draining"} }
func (notDraining) Room(c *engine.Candidate) engine.Code {
	if c.Node.Attrs["meta.draining"] != "" {
		return engine.CodeOffline
	}
	return ""
}
func (small) Name() string                      { return "small" }
func (small) Attributes() []string              { return nil }
func (small) Score(c *engine.Candidate) float64 { return 100 / float64(1+len(c.Node.Pools)) }

// quotas are limits of tenants in teams, in thousandths of a card.
type quotas struct {
	names []string
	of    map[string]string // the team of a tenant, the company of a team
	left  map[string]int
}

func newQuotas(capacity int) *quotas {
	q := &quotas{of: map[string]string{}, left: map[string]int{"company": 2 * capacity}}
	for i := range 40 {
		tenant, team := fmt.Sprintf("tenant-%d", i), fmt.Sprintf("team-%d", i%8)
		q.names = append(q.names, tenant)
		q.of[tenant], q.of[team] = team, "company"
		q.left[tenant], q.left[team] = capacity, capacity
	}
	return q
}

func (q *quotas) take(tenant string, amount int) bool {
	for at := tenant; at != ""; at = q.of[at] {
		if q.left[at] < amount {
			return false
		}
	}
	for at := tenant; at != ""; at = q.of[at] {
		q.left[at] -= amount
	}
	return true
}

func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
