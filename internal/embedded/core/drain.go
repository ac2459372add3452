package core

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

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
		if !clock.Sleep(ctx, c.clock, 200*time.Millisecond) { // a busy state changes often; a drain is not urgent
			return nil
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
