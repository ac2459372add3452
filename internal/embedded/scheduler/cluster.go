package scheduler

import (
	"maps"
	"path"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/constraint"
)

// cluster is the nodes of a job's pool and datacenters, in random order, with what runs on them.
type cluster struct {
	in        Input
	nodes     []*api.Node
	inPool    int
	available map[string]int
	placed    map[string][]*api.Allocation // by this plan, by node
	usages    map[string]*usage
	filters   map[string]map[string]string // group → node → why not, empty when it may
}

func newCluster(in Input) *cluster {
	c := &cluster{
		in: in, available: map[string]int{}, placed: map[string][]*api.Allocation{}, usages: map[string]*usage{},
		filters: map[string]map[string]string{},
	}
	pool := value(in.Job.NodePool)
	for _, n := range in.Nodes {
		if !inPool(pool, n.NodePool) {
			continue
		}
		if n.Status != api.NodeStatusReady || n.SchedulingEligibility != api.NodeSchedulingEligible || n.DrainStrategy != nil {
			continue
		}
		if !inDatacenter(in.Job.Datacenters, n.Datacenter) {
			continue
		}
		c.inPool++
		c.available[n.Datacenter]++
		c.nodes = append(c.nodes, n)
	}
	in.Rand.Shuffle(len(c.nodes), func(i, j int) { c.nodes[i], c.nodes[j] = c.nodes[j], c.nodes[i] })
	return c
}

func inPool(want, have string) bool {
	if have == "" {
		have = "default"
	}
	return want == "all" || want == have || (want == "" && have == "default")
}

func inDatacenter(patterns []string, dc string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, dc)
		return err == nil && ok
	})
}

// next is the nodes in the order in which they are tried; each call starts somewhere else.
func (c *cluster) next() []*api.Node {
	if len(c.nodes) > 1 {
		at := c.in.Rand.IntN(len(c.nodes))
		c.nodes = slices.Concat(c.nodes[at:], c.nodes[:at])
	}
	return c.nodes
}

func (c *cluster) metric() *api.AllocationMetric {
	pool := value(c.in.Job.NodePool)
	if pool == "" {
		pool = "default"
	}
	return &api.AllocationMetric{NodesAvailable: maps.Clone(c.available), NodesInPool: c.inPool, NodePool: pool}
}

// filter says why no allocation of a group can ever run on a node as it is.
func (c *cluster) filter(g *api.TaskGroup, n *api.Node) string {
	byNode := c.filters[*g.Name]
	if byNode == nil {
		byNode = map[string]string{}
		c.filters[*g.Name] = byNode
	}
	reason, known := byNode[n.ID]
	if !known {
		reason = filterNode(c.in.Job, g, n)
		byNode[n.ID] = reason
	}
	return reason
}

// filterNode says why a node can not run a group, in the words of Nomad's metrics.
func filterNode(j *api.Job, g *api.TaskGroup, n *api.Node) string {
	lists := [][]*api.Constraint{j.Constraints, g.Constraints}
	for _, t := range g.Tasks {
		lists = append(lists, t.Constraints)
		if d := n.Drivers[t.Driver]; d == nil || !d.Detected || !d.Healthy {
			return "missing drivers"
		}
	}
	for _, list := range lists {
		for _, k := range list {
			if k.Operand == api.ConstraintDistinctHosts || k.Operand == api.ConstraintDistinctProperty {
				continue
			}
			if ok, _ := constraint.Node(n, []*api.Constraint{k}); !ok {
				return Describe(k)
			}
		}
	}
	for _, v := range g.Volumes {
		if v.Type == "host" && n.HostVolumes[v.Source] == nil {
			return "missing compatible host volumes"
		}
	}
	for _, t := range g.Tasks {
		if t.Resources != nil && !hasDevices(n, t.Resources.Devices) {
			return "missing devices"
		}
	}
	return ""
}

// Describe says a constraint as Nomad's metrics do.
func Describe(k *api.Constraint) string {
	if k.Operand == api.ConstraintDistinctHosts {
		return api.ConstraintDistinctHosts
	}
	return k.LTarget + " " + k.Operand + " " + k.RTarget
}

// distinct says which distinct constraint a node would break.
func (r *run) distinct(g *api.TaskGroup, n *api.Node) string {
	for _, k := range r.Job.Constraints {
		if why := r.cluster.breaks(k, n, ""); why != "" {
			return why
		}
	}
	for _, k := range g.Constraints {
		if why := r.cluster.breaks(k, n, *g.Name); why != "" {
			return why
		}
	}
	return ""
}

// breaks checks one distinct constraint of a job, or of one group of it.
func (c *cluster) breaks(k *api.Constraint, n *api.Node, group string) string {
	limit := 1
	switch k.Operand {
	case api.ConstraintDistinctHosts:
		if k.RTarget == "false" {
			return ""
		}
		for _, a := range c.own(group) {
			if a.NodeID == n.ID {
				return api.ConstraintDistinctHosts
			}
		}
	case api.ConstraintDistinctProperty:
		if parsed := atoi(k.RTarget); parsed > 0 {
			limit = parsed
		}
		mine, ok := constraint.NodeTarget(n, k.LTarget)
		if !ok {
			return "missing property \"" + k.LTarget + "\""
		}
		used := 0
		for _, a := range c.own(group) {
			if other := c.in.Node(a.NodeID); other != nil {
				if v, ok := constraint.NodeTarget(other, k.LTarget); ok && v == mine {
					used++
				}
			}
		}
		if used >= limit {
			return "distinct_property: " + k.LTarget + "=" + mine + " used by " + strconv.Itoa(used) + " allocs"
		}
	}
	return ""
}

// own lists the job's live allocations, of one group or of all, those of this plan included.
func (c *cluster) own(group string) []*api.Allocation {
	var list []*api.Allocation
	add := func(a *api.Allocation) {
		if group == "" || a.TaskGroup == group {
			list = append(list, a)
		}
	}
	for _, a := range c.in.Allocs {
		if a.DesiredStatus == api.AllocDesiredStatusRun && !ended(a) {
			add(a)
		}
	}
	for _, placed := range c.placed {
		for _, a := range placed {
			add(a)
		}
	}
	return list
}

// beside counts the group's live allocations on a node.
func (c *cluster) beside(g *api.TaskGroup, n *api.Node) int {
	beside := 0
	for _, a := range c.own(*g.Name) {
		if a.NodeID == n.ID {
			beside++
		}
	}
	return beside
}

// spread scores a node by how far its value of each spread's attribute is below its share, −1 to 1.
func (c *cluster) spread(g *api.TaskGroup, n *api.Node, spreads []*api.Spread) float64 {
	score, weights := 0.0, 0.0
	for _, s := range spreads {
		weight := float64(value(s.Weight))
		weights += weight
		mine, ok := constraint.NodeTarget(n, s.Attribute)
		if !ok {
			score -= weight
			continue
		}
		counts := map[string]int{}
		for _, a := range c.own(*g.Name) {
			if other := c.in.Node(a.NodeID); other != nil {
				v, _ := constraint.NodeTarget(other, s.Attribute)
				counts[v]++
			}
		}
		score += weight * boost(s, mine, counts, *g.Count)
	}
	if weights == 0 {
		return 0
	}
	return score / weights
}

func boost(s *api.Spread, mine string, counts map[string]int, total int) float64 {
	if len(s.SpreadTarget) > 0 {
		rest := 100
		for _, t := range s.SpreadTarget {
			rest -= int(t.Percent)
			if t.Value == mine {
				return share(float64(t.Percent)/100*float64(total), counts[mine])
			}
		}
		return share(float64(max(0, rest))/100*float64(total), counts[mine])
	}
	if len(counts) == 0 {
		return 0
	}
	most := slices.Max(slices.Collect(maps.Values(counts)))
	if most == 0 {
		return 0
	}
	return float64(most-counts[mine])/float64(most)*2 - 1
}

func share(desired float64, used int) float64 {
	if desired <= 0 {
		return -1
	}
	return max(-1, (desired-float64(used)-1)/desired)
}

// add counts an allocation of this plan.
func (c *cluster) add(a *api.Allocation) {
	c.placed[a.NodeID] = append(c.placed[a.NodeID], a)
	if u := c.usages[a.NodeID]; u != nil {
		u.take(a)
	}
}

// usage is what is taken on a node. What stops still holds its share until its node says that it ended; only the
// allocation that replaces it may count on it, since it starts after that.
func (c *cluster) usage(n *api.Node, replaced *api.Allocation) *usage {
	if replaced != nil && replaced.NodeID == n.ID && !ended(replaced) {
		return c.count(n, replaced.ID)
	}
	u := c.usages[n.ID]
	if u == nil {
		u = c.count(n, "")
		c.usages[n.ID] = u
	}
	return u
}

func (c *cluster) count(n *api.Node, except string) *usage {
	u := newUsage(n)
	for _, a := range c.in.AllocsByNode(n.ID) {
		if a.ID != except && !ended(a) {
			u.take(a)
		}
	}
	for _, a := range c.placed[n.ID] {
		u.take(a)
	}
	return u
}
