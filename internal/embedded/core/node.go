package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

var _ client.Uplink = (*Core)(nil)

// later has a change from the node side made soon, in order, together with others that are waiting.
func (c *Core) later(f func(*state.Tx) error) {
	c.mu.Lock()
	c.updates = append(c.updates, f)
	c.mu.Unlock()
	c.incoming.set()
}

// takeUpdates writes what the nodes said, everything that came in the meantime at once.
func (c *Core) takeUpdates(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.incoming:
		}
		c.mu.Lock()
		batch := c.updates
		c.updates = nil
		c.mu.Unlock()
		err := c.store.Update(func(tx *state.Tx) error {
			for _, f := range batch {
				if err := f(tx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// UpdateNode takes a node as its client states it; eligibility and drain are the server's and stay.
func (c *Core) UpdateNode(n *api.Node) {
	c.later(func(tx *state.Tx) error {
		c.putNode(tx, n)
		return nil
	})
}

// PutNodes registers many nodes in one change.
func (c *Core) PutNodes(nodes []*api.Node) error {
	return c.store.Update(func(tx *state.Tx) error {
		for _, n := range nodes {
			c.putNode(tx, n)
		}
		return nil
	})
}

func (c *Core) putNode(tx *state.Tx, n *api.Node) {
	next := *n
	old := tx.Node(n.ID)
	event := "NodeRegistration"
	if next.SchedulingEligibility == "" {
		next.SchedulingEligibility = api.NodeSchedulingEligible
	}
	if next.NodePool == "" {
		next.NodePool = "default"
	}
	if next.Status == "" {
		next.Status = api.NodeStatusReady
	}
	if next.HTTPAddr == "" {
		next.HTTPAddr = c.httpAddr
	}
	next.StatusUpdatedAt = c.now().Unix()
	if old != nil {
		next.CreateIndex = old.CreateIndex
		next.SchedulingEligibility, next.Drain, next.DrainStrategy, next.LastDrain = old.SchedulingEligibility, old.Drain, old.DrainStrategy, old.LastDrain
		next.Events = old.Events
		if old.Status == next.Status {
			next.StatusUpdatedAt = old.StatusUpdatedAt
		}
	} else {
		next.Events = []*api.NodeEvent{{Message: "Node registered", Subsystem: "Cluster", Timestamp: c.now(), CreateIndex: 0}}
	}
	tx.PutNode(&next, event)
	if old == nil || old.Status != next.Status || old.SchedulingEligibility != next.SchedulingEligibility || next.Status == api.NodeStatusDown {
		c.evaluateNode(tx, &next, byNode)
	}
}

// SetNodeStatus marks a node ready or down, as a missed heartbeat does.
func (c *Core) SetNodeStatus(id, status, why string) error {
	return c.store.Update(func(tx *state.Tx) error {
		old := tx.Node(id)
		if old == nil {
			return fmt.Errorf("node %q not found", id)
		}
		n := *old
		n.Status, n.StatusDescription, n.StatusUpdatedAt = status, why, c.now().Unix()
		tx.PutNode(&n, "NodeStreamEvent")
		c.evaluateNode(tx, &n, byNode)
		return nil
	})
}

// evaluateNode has every job looked at that a change of a node may concern.
func (c *Core) evaluateNode(tx *state.Tx, n *api.Node, trigger string) (ids []string) {
	done := map[string]bool{}
	eval := func(j *api.Job) {
		key := state.JobKey(*j.Namespace, *j.ID)
		if done[key] {
			return
		}
		done[key] = true
		e := c.evaluation(j, trigger)
		e.NodeID, e.NodeModifyIndex = n.ID, tx.Index
		tx.PutEval(e)
		ids = append(ids, e.ID)
	}
	for _, a := range tx.AllocsByNode(n.ID) {
		if !state.Ended(a) {
			if j := tx.Job(a.Namespace, a.JobID); j != nil {
				eval(j)
			}
		}
	}
	for _, j := range tx.Jobs("*") {
		system := *j.Type == api.JobTypeSystem || *j.Type == api.JobTypeSysbatch
		if system && !*j.Stop && !j.IsPeriodic() && !j.IsParameterized() {
			eval(j)
		}
	}
	return ids
}

// SetEligibility lets new allocations come to a node, or keeps them away.
func (c *Core) SetEligibility(id, eligibility string) (index uint64, evals []string, err error) {
	if eligibility != api.NodeSchedulingEligible && eligibility != api.NodeSchedulingIneligible {
		return 0, nil, Invalid("invalid scheduling eligibility %q: write eligible or ineligible", eligibility)
	}
	err = c.store.Update(func(tx *state.Tx) error {
		old := tx.Node(id)
		if old == nil {
			return NotFound("node not found")
		}
		if old.DrainStrategy != nil && eligibility == api.NodeSchedulingEligible {
			return Invalid("can not set node's scheduling eligibility to eligible while it is draining")
		}
		n := *old
		n.SchedulingEligibility = eligibility
		n.Events = c.nodeEvent(n.Events, "Node marked as "+eligibility+" for scheduling")
		tx.PutNode(&n, "NodeEligibility")
		if eligibility == api.NodeSchedulingEligible {
			evals = c.evaluateNode(tx, &n, byNode)
		}
		index = tx.Index
		return nil
	})
	return index, evals, err
}

func (c *Core) nodeEvent(events []*api.NodeEvent, message string) []*api.NodeEvent {
	events = append(slices.Clone(events), &api.NodeEvent{Message: message, Subsystem: "Drain", Timestamp: c.now()})
	return events[max(0, len(events)-10):]
}

// Drain has a node emptied, or ends that with a nil spec.
func (c *Core) Drain(id string, spec *api.DrainSpec, markEligible bool, meta map[string]string) (index uint64, evals []string, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		old := tx.Node(id)
		if old == nil {
			return NotFound("node not found")
		}
		n, now := *old, c.now()
		if spec != nil {
			n.DrainStrategy = &api.DrainStrategy{DrainSpec: *spec, StartedAt: now}
			if spec.Deadline > 0 {
				n.DrainStrategy.ForceDeadline = now.Add(spec.Deadline)
			}
			n.Drain, n.SchedulingEligibility = true, api.NodeSchedulingIneligible
			n.LastDrain = &api.DrainMetadata{StartedAt: now, UpdatedAt: now, Status: "draining", Meta: meta}
			n.Events = c.nodeEvent(n.Events, "Node drain strategy set")
		} else {
			n.DrainStrategy, n.Drain = nil, false
			if markEligible {
				n.SchedulingEligibility = api.NodeSchedulingEligible
			}
			if n.LastDrain != nil {
				last := *n.LastDrain
				last.UpdatedAt, last.Status = now, "canceled"
				n.LastDrain = &last
			}
			n.Events = c.nodeEvent(n.Events, "Node drain cancelled")
		}
		tx.PutNode(&n, "NodeDrain")
		evals = c.evaluateNode(tx, &n, byDrain)
		index = tx.Index
		return nil
	})
	return index, evals, err
}

// followDrains ends a drain once its node is empty.
func (c *Core) followDrains(ctx context.Context) error {
	for {
		changed := c.store.Changed()
		var empty []string
		c.store.View(func(r state.Reader) {
			for _, n := range r.Nodes() {
				if n.DrainStrategy != nil && drained(r, n) {
					empty = append(empty, n.ID)
				}
			}
		})
		for _, id := range empty {
			if err := c.endDrain(id); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		select { // a busy state changes often; a drain is not urgent
		case <-ctx.Done():
			return nil
		case <-c.clock.After(200 * time.Millisecond):
		}
	}
}

func drained(r state.Reader, n *api.Node) bool {
	return !slices.ContainsFunc(r.AllocsByNode(n.ID), func(a *api.Allocation) bool {
		system := *a.Job.Type == api.JobTypeSystem || *a.Job.Type == api.JobTypeSysbatch
		return !state.Ended(a) && !(system && n.DrainStrategy.IgnoreSystemJobs)
	})
}

func (c *Core) endDrain(id string) error {
	return c.store.Update(func(tx *state.Tx) error {
		old := tx.Node(id)
		if old == nil || old.DrainStrategy == nil {
			return nil
		}
		n := *old
		n.DrainStrategy, n.Drain = nil, false
		if n.LastDrain != nil {
			last := *n.LastDrain
			last.UpdatedAt, last.Status = c.now(), "complete"
			n.LastDrain = &last
		}
		n.Events = c.nodeEvent(n.Events, "Node drain complete")
		tx.PutNode(&n, "NodeDrain")
		return nil
	})
}

// UpdateAlloc takes what became of an allocation.
func (c *Core) UpdateAlloc(u client.AllocUpdate) {
	u.TaskStates = maps.Clone(u.TaskStates)
	c.later(func(tx *state.Tx) error {
		c.putUpdate(tx, u)
		return nil
	})
}

func (c *Core) putUpdate(tx *state.Tx, u client.AllocUpdate) {
	old := tx.Alloc(u.ID)
	if old == nil {
		return
	}
	a, now := *old, c.now()
	if !(state.Ended(old) && u.ClientStatus != old.ClientStatus && old.ClientStatus != api.AllocClientStatusLost) && u.ClientStatus != "" {
		a.ClientStatus, a.ClientDescription = u.ClientStatus, u.ClientDescription
	}
	if u.TaskStates != nil {
		a.TaskStates = u.TaskStates
	}
	if u.Healthy != nil && a.DeploymentID != "" {
		known := old.DeploymentStatus
		if known == nil || known.Healthy == nil || *known.Healthy != *u.Healthy {
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: u.Healthy, Timestamp: now, ModifyIndex: tx.Index}
		}
	}
	a.ModifyTime = now.UnixNano()
	tx.PutAlloc(&a, state.ClientUpdate)
	if !state.Ended(old) && state.Ended(&a) {
		c.allocEnded(tx, &a)
	}
}

// allocEnded has a job looked at when one of its allocations ended that was to run on.
func (c *Core) allocEnded(tx *state.Tx, a *api.Allocation) {
	for _, r := range tx.ServicesByAlloc(a.ID) {
		tx.DeleteService(r)
	}
	j := tx.Job(a.Namespace, a.JobID)
	if j == nil || *j.Stop || a.DesiredStatus != api.AllocDesiredStatusRun {
		return
	}
	switch *j.Type {
	case api.JobTypeBatch, api.JobTypeSysbatch:
		if a.ClientStatus == api.AllocClientStatusComplete {
			return
		}
	}
	tx.PutEval(c.evaluation(j, byFailure))
}

// UpdateServices takes every registration of one allocation.
func (c *Core) UpdateServices(allocID string, regs []*api.ServiceRegistration) {
	regs = slices.Clone(regs)
	c.later(func(tx *state.Tx) error {
		wanted := map[string]*api.ServiceRegistration{}
		if a := tx.Alloc(allocID); a != nil && !state.Ended(a) {
			for _, r := range regs {
				wanted[r.ID] = r
			}
		}
		for _, old := range tx.ServicesByAlloc(allocID) {
			next, stays := wanted[old.ID]
			if !stays {
				tx.DeleteService(old)
				continue
			}
			if sameService(old, next) {
				delete(wanted, old.ID)
			} else {
				next.CreateIndex = old.CreateIndex
			}
		}
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			r := *wanted[id]
			r.AllocID = allocID
			tx.PutService(&r)
		}
		return nil
	})
}

func sameService(a, b *api.ServiceRegistration) bool {
	return a.ServiceName == b.ServiceName && a.Address == b.Address && a.Port == b.Port && slices.Equal(a.Tags, b.Tags) &&
		a.NodeID == b.NodeID && a.Datacenter == b.Datacenter && a.JobID == b.JobID
}

// tellNodes hands each node its allocations when they changed.
func (c *Core) tellNodes(ctx context.Context) error {
	for {
		c.mu.Lock()
		dirty := slices.Sorted(maps.Keys(c.dirty))
		clear(c.dirty)
		c.mu.Unlock()
		for _, id := range dirty {
			host := c.host(id)
			if host == nil {
				continue
			}
			var allocs []*api.Allocation
			c.store.View(func(r state.Reader) { allocs = r.AllocsByNode(id) })
			host.SetAllocs(allocs)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.push:
		}
	}
}

// TellNode has a node told its allocations anew, at its start.
func (c *Core) TellNode(id string) {
	c.mu.Lock()
	c.dirty[id] = true
	c.mu.Unlock()
	c.push.set()
}

// EvaluateNode has every job of a node looked at.
func (c *Core) EvaluateNode(id string) (evals []string, index uint64, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		n := tx.Node(id)
		if n == nil {
			return NotFound("node not found")
		}
		evals, index = c.evaluateNode(tx, n, byNode), tx.Index
		return nil
	})
	return evals, index, err
}

// DeleteService removes one registration by hand.
func (c *Core) DeleteService(namespace, name, id string) (index uint64, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		for _, r := range tx.ServicesByName(namespace, name) {
			if r.ID == id {
				tx.DeleteService(r)
				index = tx.Index
				return nil
			}
		}
		return NotFound("service registration not found")
	})
	return index, err
}
