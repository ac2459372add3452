package embedded

import (
	"github.com/hashicorp/nomad/api"
)

// SetFault sets what goes wrong on a simulated node; the zero Fault ends it.
func (e *Engine) SetFault(nodeID string, f Fault) { e.sim.SetFault(nodeID, f) }

// SetStats sets what a simulated node measures of itself, which must not be changed afterwards; nil sets nothing.
func (e *Engine) SetStats(nodeID string, s *api.HostStats) { e.sim.SetStats(nodeID, s) }

// SetNodeDown marks a node as lost, as a missed heartbeat does, or as back.
func (e *Engine) SetNodeDown(nodeID string, down bool) error {
	if down {
		return e.core.SetNodeStatus(nodeID, api.NodeStatusDown, "node was lost by a test")
	}
	return e.core.SetNodeStatus(nodeID, api.NodeStatusReady, "")
}

// SetNode states a simulated node anew, as a changed fingerprint does.
func (e *Engine) SetNode(n SimNode) error { return e.core.PutNodes([]*api.Node{e.builder.Build(n)}) }

// DropEvents has the event streams leave out every batch for which drop returns true; nil ends that.
func (e *Engine) DropEvents(drop func(index uint64) bool) {
	if drop == nil {
		e.drop.Store(nil)
		return
	}
	e.drop.Store(&drop)
}
