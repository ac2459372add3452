package core

import (
	"context"
	"maps"
	"slices"

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
