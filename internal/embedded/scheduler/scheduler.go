// Package scheduler decides what is to run where for one evaluation: which allocations of a job stop, stay, change in
// place or are replaced, and which node, ports and device instances each new one gets, by Nomad's documented rules.
// It is a pure function of what it is given, its random source included: it reads no clock and keeps, sends and
// starts nothing.
package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Input is everything a decision depends on.
type Input struct {
	Now          time.Time
	Eval         *api.Evaluation
	Job          *api.Job                              // nil when the job was purged
	Allocs       []*api.Allocation                     // of the job, by id
	Nodes        []*api.Node                           // every node, by id
	AllocsByNode func(nodeID string) []*api.Allocation // every allocation of a node
	Deployment   *api.Deployment                       // the job's newest, nil without one
	Rand         *rand.Rand                            // breaks ties
	NewID        func() string                         // names what is new
	Spread       bool                                  // spread load over nodes instead of packing it
	Node         func(nodeID string) *api.Node         // nil for an unknown node
}

// Stop is one allocation to end.
type Stop struct {
	Alloc        *api.Allocation
	Description  string
	ClientStatus string // lost when its node is gone; empty leaves it to the node
}

// Plan is what is to change.
type Plan struct {
	Stop       []Stop
	Place      []*api.Allocation // complete but for their indexes
	InPlace    []*api.Allocation // copies that run the new version of the job
	Delayed    []*api.Allocation // copies that name the evaluation that will replace them
	Followups  []*api.Evaluation // delayed evaluations
	Failed     map[string]*api.AllocationMetric
	Queued     map[string]int
	Updates    map[string]*api.DesiredUpdates
	Deployment *api.Deployment // new, or changed; nil when it stays
}

// Empty reports whether the plan changes nothing that runs.
func (p *Plan) Empty() bool {
	return len(p.Stop)+len(p.Place)+len(p.InPlace)+len(p.Delayed)+len(p.Followups) == 0 && p.Deployment == nil
}

// Descriptions of why an allocation stops, as Nomad words them.
const (
	NotNeeded   = "alloc not needed due to job update"
	Migrating   = "alloc is being migrated"
	Updating    = "alloc is being updated due to job update"
	Lost        = "alloc is lost since its node is down"
	Rescheduled = "alloc was rescheduled because it failed"
	NodeTainted = "alloc not needed as node is tainted"
)

// run is the work on one evaluation.
type run struct {
	Input
	plan    Plan
	cluster *cluster
	stopped map[string]bool // allocations that stop in this plan
}

// Schedule decides for one evaluation.
func Schedule(in Input) Plan {
	r := &run{Input: in, stopped: map[string]bool{}, plan: Plan{
		Failed: map[string]*api.AllocationMetric{}, Queued: map[string]int{}, Updates: map[string]*api.DesiredUpdates{},
	}}
	r.writeOff()
	if in.Job == nil || *in.Job.Stop {
		r.stopAll()
		return r.plan
	}
	r.cluster = newCluster(in)
	switch *in.Job.Type {
	case api.JobTypeSystem, api.JobTypeSysbatch:
		r.reconcileSystem()
	default:
		r.reconcile()
	}
	return r.plan
}

// writeOff gives up what was to stop on a node that is gone: nobody will tell that it ended.
func (r *run) writeOff() {
	for _, a := range r.Allocs {
		if a.DesiredStatus != api.AllocDesiredStatusRun && !ended(a) && r.down(a.NodeID) {
			r.stop(a, a.DesiredDescription)
		}
	}
}

func (r *run) stopAll() {
	for _, a := range r.Allocs {
		// What failed is stopped too, so that running the job again starts afresh; what is done stays done.
		if a.DesiredStatus != api.AllocDesiredStatusRun || a.ClientStatus == api.AllocClientStatusComplete {
			continue
		}
		r.stop(a, NotNeeded)
		r.updates(a.TaskGroup).Stop++
	}
	if r.Job != nil {
		for _, g := range r.Job.TaskGroups {
			r.plan.Queued[*g.Name] = 0
			r.updates(*g.Name)
		}
	}
}

func (r *run) stop(a *api.Allocation, why string) {
	s := Stop{Alloc: a, Description: why}
	if r.down(a.NodeID) && !ended(a) {
		s.ClientStatus = api.AllocClientStatusLost
	}
	r.stopped[a.ID] = true
	r.plan.Stop = append(r.plan.Stop, s)
}

func (r *run) updates(group string) *api.DesiredUpdates {
	u := r.plan.Updates[group]
	if u == nil {
		u = &api.DesiredUpdates{}
		r.plan.Updates[group] = u
	}
	return u
}

// down reports whether the node of an allocation is gone.
func (r *run) down(nodeID string) bool {
	n := r.Node(nodeID)
	return n == nil || n.Status == api.NodeStatusDown
}

// draining reports whether the node of an allocation is to be left.
func (r *run) draining(nodeID string) bool {
	n := r.Node(nodeID)
	return n != nil && n.DrainStrategy != nil
}

func ended(a *api.Allocation) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

func isTrue(b *bool) bool { return b != nil && *b }

func sameVersion(a *api.Allocation, j *api.Job) bool {
	return *a.Job.JobModifyIndex == *j.JobModifyIndex && *a.Job.CreateIndex == *j.CreateIndex
}
