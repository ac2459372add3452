package scheduler

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// reconcileSystem works on system and sysbatch jobs: one allocation of each group on each node that can run it.
func (r *run) reconcileSystem() {
	nodes := slices.Clone(r.cluster.nodes)
	slices.SortFunc(nodes, func(a, b *api.Node) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	have := map[string]map[string]*api.Allocation{} // group → node
	for _, a := range r.Allocs {
		if a.DesiredStatus != api.AllocDesiredStatusRun {
			continue
		}
		if have[a.TaskGroup] == nil {
			have[a.TaskGroup] = map[string]*api.Allocation{}
		}
		if r.retire(a) {
			continue
		}
		if done := ended(a); done && !(r.sysbatch() && sameVersion(a, r.Job) && a.ClientStatus == api.AllocClientStatusComplete) {
			continue
		}
		have[a.TaskGroup][a.NodeID] = a
	}
	for _, g := range r.Job.TaskGroups {
		r.systemGroup(g, nodes, have[*g.Name])
	}
}

func (r *run) sysbatch() bool { return *r.Job.Type == api.JobTypeSysbatch }

// retire stops an allocation whose node or group is no longer the job's.
func (r *run) retire(a *api.Allocation) bool {
	if ended(a) {
		return false
	}
	u := r.updates(a.TaskGroup)
	g := find(r.Job, a.TaskGroup)
	switch {
	case g == nil || *g.Count == 0:
		r.stop(a, NotNeeded)
	case r.down(a.NodeID):
		r.stop(a, Lost)
	case r.draining(a.NodeID) && !r.Node(a.NodeID).DrainStrategy.IgnoreSystemJobs:
		r.stop(a, NodeTainted)
	case isTrue(a.DesiredTransition.Migrate):
		r.stop(a, Migrating)
	default:
		return false
	}
	u.Stop++
	return true
}

func (r *run) systemGroup(g *api.TaskGroup, nodes []*api.Node, have map[string]*api.Allocation) {
	u := r.updates(*g.Name)
	r.plan.Queued[*g.Name] = 0
	if *g.Count == 0 {
		return
	}
	name := AllocName(r.Job, *g.Name, 0)
	for _, n := range nodes {
		a := have[n.ID]
		reason := r.cluster.filter(g, n)
		switch {
		case a == nil && reason == "":
			r.placeOn(g, n, want{name: name}, u)
		case a == nil:
		case ended(a), sameVersion(a, r.Job):
			u.Ignore++
		case reason != "":
			r.stop(a, NotNeeded)
			u.Stop++
		case Destructive(a.Job, r.Job, *g.Name):
			r.stop(a, Updating)
			u.DestructiveUpdate++
			r.placeOn(g, n, want{name: name, previous: a, update: true}, u)
		default:
			u.InPlaceUpdate++
			next := *a
			next.Job, next.EvalID = r.Job, r.Eval.ID
			r.plan.InPlace = append(r.plan.InPlace, &next)
		}
	}
}

// placeOn places an allocation on one given node.
func (r *run) placeOn(g *api.TaskGroup, n *api.Node, w want, u *api.DesiredUpdates) {
	all := r.cluster.nodes
	r.cluster.nodes = []*api.Node{n}
	defer func() { r.cluster.nodes = all }()
	queued := r.plan.Queued[*g.Name]
	r.placeAll(g, []want{w}, u)
	r.plan.Queued[*g.Name] += queued
}
