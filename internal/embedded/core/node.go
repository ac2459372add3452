package core

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

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

// Adopt looks through the state once, before Run: a node that this engine does not run any more is down, and jobs
// with allocations on nodes that are gone are looked at.
func (c *Core) Adopt() error {
	return c.store.Update(func(tx *state.Tx) error {
		for _, old := range tx.Nodes() {
			if c.host(old.ID) == nil && old.Status != api.NodeStatusDown {
				n := *old
				n.Status, n.StatusDescription, n.StatusUpdatedAt = api.NodeStatusDown, "the engine runs without this node now", c.now().Unix()
				tx.PutNode(&n, "NodeStreamEvent")
				c.evaluateNode(tx, &n, byNode)
			}
		}
		done := map[string]bool{}
		for _, a := range tx.Allocs() {
			key := state.JobKey(a.Namespace, a.JobID)
			if state.Ended(a) || done[key] || tx.Node(a.NodeID) != nil {
				continue
			}
			done[key] = true
			j := tx.Job(a.Namespace, a.JobID)
			if j == nil {
				j = a.Job
			}
			tx.PutEval(c.evaluation(j, byNode))
		}
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
