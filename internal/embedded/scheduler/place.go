package scheduler

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/constraint"
)

// want is one allocation to be placed.
type want struct {
	name       string
	previous   *api.Allocation // what it replaces
	reschedule bool            // because that failed
	update     bool            // because its job changed: what runs goes on running when there is no room
	migrate    bool
}

// placeAll finds a place for each allocation of a group that is wanted.
func (r *run) placeAll(g *api.TaskGroup, wanted []want, u *api.DesiredUpdates) {
	name := *g.Name
	r.plan.Queued[name] = 0
	for _, w := range wanted {
		if !w.update && !w.migrate {
			u.Place++
		}
		a, metric := r.place(g, w)
		if a != nil {
			r.plan.Place = append(r.plan.Place, a)
			continue
		}
		r.unplaced(g, 1, metric)
		if w.update {
			r.plan.Stop = slices.DeleteFunc(r.plan.Stop, func(s Stop) bool { return s.Alloc.ID == w.previous.ID })
			delete(r.stopped, w.previous.ID)
		}
	}
}

// placeNew places so many more allocations of a group. The first that finds no room stands for the rest: none of
// them asks for less.
func (r *run) placeNew(g *api.TaskGroup, missing int, taken names, u *api.DesiredUpdates) {
	u.Place += uint64(missing)
	index := 0
	for i := range missing {
		index = taken.next(index)
		a, metric := r.place(g, want{name: AllocName(r.Job, *g.Name, index)})
		if a == nil {
			r.unplaced(g, missing-i, metric)
			return
		}
		r.plan.Place = append(r.plan.Place, a)
		index++
	}
}

// unplaced counts allocations that found no room.
func (r *run) unplaced(g *api.TaskGroup, n int, metric *api.AllocationMetric) {
	r.plan.Queued[*g.Name] += n
	if failed := r.plan.Failed[*g.Name]; failed != nil {
		failed.CoalescedFailures += n
		return
	}
	metric.CoalescedFailures = n - 1
	r.plan.Failed[*g.Name] = metric
}

// option is one node on which an allocation fits.
type option struct {
	node  *api.Node
	offer *offer
	score *api.NodeScoreMeta
}

// place chooses among the nodes it looks at the one with the best score.
func (r *run) place(g *api.TaskGroup, w want) (*api.Allocation, *api.AllocationMetric) {
	metric := r.cluster.metric()
	var best *option
	seen, limit := 0, r.window(g)
	for _, n := range r.cluster.next() {
		metric.NodesEvaluated++
		if reason := r.cluster.filter(g, n); reason != "" {
			filtered(metric, n, reason)
			continue
		}
		if reason := r.distinct(g, n); reason != "" {
			filtered(metric, n, reason)
			continue
		}
		usage := r.cluster.usage(n, w.previous)
		offer, dimension := usage.fit(r, g)
		if dimension != "" {
			exhausted(metric, n, dimension)
			continue
		}
		o := &option{node: n, offer: offer, score: r.score(g, n, w, usage, offer)}
		metric.ScoreMetaData = append(metric.ScoreMetaData, o.score)
		if best == nil || o.score.NormScore > best.score.NormScore {
			best = o
		}
		if seen++; seen >= limit {
			break
		}
	}
	slices.SortStableFunc(metric.ScoreMetaData, func(a, b *api.NodeScoreMeta) int {
		switch {
		case a.NormScore > b.NormScore:
			return -1
		case a.NormScore < b.NormScore:
			return 1
		}
		return 0
	})
	metric.ScoreMetaData = metric.ScoreMetaData[:min(5, len(metric.ScoreMetaData))]
	if best == nil {
		return nil, metric
	}
	return r.allocate(g, w, best, metric), metric
}

func filtered(m *api.AllocationMetric, n *api.Node, reason string) {
	m.NodesFiltered++
	m.ConstraintFiltered = count(m.ConstraintFiltered, reason)
	if n.NodeClass != "" {
		m.ClassFiltered = count(m.ClassFiltered, n.NodeClass)
	}
}

func exhausted(m *api.AllocationMetric, n *api.Node, dimension string) {
	m.NodesExhausted++
	m.DimensionExhausted = count(m.DimensionExhausted, dimension)
	if n.NodeClass != "" {
		m.ClassExhausted = count(m.ClassExhausted, n.NodeClass)
	}
}

func count(m map[string]int, key string) map[string]int {
	if m == nil {
		m = map[string]int{}
	}
	m[key]++
	return m
}

// window is how many nodes with room are compared. Source: fact table 4.4.
func (r *run) window(g *api.TaskGroup) int {
	if len(r.affinities(g))+len(r.Job.Spreads)+len(g.Spreads) > 0 {
		return max(100, *g.Count)
	}
	if r.batch() {
		return 2
	}
	return max(2, bits.Len(uint(max(1, len(r.cluster.nodes)-1))))
}

func (r *run) affinities(g *api.TaskGroup) []*api.Affinity {
	all := slices.Concat(r.Job.Affinities, g.Affinities)
	for _, t := range g.Tasks {
		all = append(all, t.Affinities...)
	}
	return all
}

// score is the mean of the parts that apply to a node.
func (r *run) score(g *api.TaskGroup, n *api.Node, w want, u *usage, o *offer) *api.NodeScoreMeta {
	parts := map[string]float64{"binpack": u.pack(n, o, r.Spread)}
	if o.deviceAffinity {
		parts["devices"] = o.deviceScore
	}
	if beside := r.cluster.beside(g, n); beside > 0 {
		parts["job-anti-affinity"] = -float64(beside+1) / float64(max(1, *g.Count))
	}
	if w.reschedule && w.previous.NodeID == n.ID {
		parts["node-reschedule-penalty"] = -1
	}
	if affinities := r.affinities(g); len(affinities) > 0 {
		parts["node-affinity"] = constraint.NodeAffinity(n, affinities)
	}
	if spreads := slices.Concat(r.Job.Spreads, g.Spreads); len(spreads) > 0 {
		parts["allocation-spread"] = r.cluster.spread(g, n, spreads)
	}
	sum := 0.0
	for _, v := range parts {
		sum += v
	}
	norm := sum / float64(len(parts))
	for _, part := range []string{"job-anti-affinity", "node-reschedule-penalty", "node-affinity"} {
		parts[part] += 0 // shown, but not part of the mean
	}
	return &api.NodeScoreMeta{NodeID: n.ID, Scores: parts, NormScore: norm}
}

// pack scores how full CPU and memory of a node would be, 0 to 1: fuller is better, or emptier when spreading.
// Source: the formula of Google's Borg as Nomad's documentation cites it, "best fit v3".
func (u *usage) pack(n *api.Node, o *offer, spread bool) float64 {
	cpu, memory := free(n.NodeResources.Cpu.CpuShares, u.cpu+o.cpu), free(n.NodeResources.Memory.MemoryMB, u.memory+o.memory)
	total := math.Pow(10, cpu) + math.Pow(10, memory)
	score := 20 - total
	if spread {
		score = total - 2
	}
	return min(18, max(0, score)) / 18
}

func free(capacity, used int64) float64 {
	if capacity <= 0 {
		return 0
	}
	return 1 - float64(used)/float64(capacity)
}

// legacyResources says an allocation's share in the fields that clients read before AllocatedResources; the nomad
// command line still does.
func legacyResources(o *offer) (*api.Resources, map[string]*api.Resources) {
	all := &api.Resources{CPU: new(int(o.cpu)), Cores: new(0), MemoryMB: new(int(o.memory)), MemoryMaxMB: new(0), DiskMB: new(int(o.disk)), IOPS: new(0), Networks: o.resources.Shared.Networks}
	tasks := map[string]*api.Resources{}
	for name, t := range o.resources.Tasks {
		tasks[name] = &api.Resources{
			CPU: new(int(t.Cpu.CpuShares)), Cores: new(len(t.Cpu.ReservedCores)), MemoryMB: new(int(t.Memory.MemoryMB)),
			MemoryMaxMB: new(int(t.Memory.MemoryMaxMB)), DiskMB: new(0), IOPS: new(0), Networks: t.Networks,
		}
		*all.MemoryMaxMB += int(t.Memory.MemoryMaxMB)
	}
	return all, tasks
}

func (r *run) allocate(g *api.TaskGroup, w want, o *option, metric *api.AllocationMetric) *api.Allocation {
	metric.AllocationTime = time.Microsecond // the engine has no clock of its own here; zero would read as "not measured"
	a := &api.Allocation{
		ID: r.NewID(), Namespace: *r.Job.Namespace, EvalID: r.Eval.ID, Name: w.name, NodeID: o.node.ID, NodeName: o.node.Name,
		JobID: *r.Job.ID, Job: r.Job, TaskGroup: *g.Name, AllocatedResources: o.offer.resources, Metrics: metric,
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending,
		CreateTime: r.Now.UnixNano(), ModifyTime: r.Now.UnixNano(),
	}
	//lint:ignore SA1019 the nomad command line still reads these fields, and crashes without them
	a.Resources, a.TaskResources = legacyResources(o.offer)
	if w.previous != nil {
		a.PreviousAllocation = w.previous.ID
		if w.reschedule {
			a.RescheduleTracker = r.tracker(w.previous)
		}
	}
	if d := r.deployment(g); d != nil {
		a.DeploymentID = d.ID
		r.placedIn(g)
	}
	r.cluster.add(a)
	return a
}
