package engine

import "slices"

// serves reports whether a tenant may use the node.
func (n *Node) serves(tenant string) bool {
	return len(n.Tenants) == 0 || slices.Contains(n.Tenants, tenant)
}

// together reports whether two tenants may be on one card of the node.
func (n *Node) together(a, b string) bool {
	return a == b || n.inGroup(a) && n.inGroup(b)
}

func (n *Node) inGroup(tenant string) bool {
	return slices.Contains(n.Beside, AnyTenant) || slices.Contains(n.Beside, tenant)
}

// Alone reports whether a share for the tenant has to be alone on the pool's card, and beside which other tenants it may
// be all the same. A whole card has no neighbours, and neither has a partition.
func (n *Node) Alone(p *Pool, tenant string) (beside []string, alone bool) {
	switch {
	case p.wholes(), slices.Contains(n.Beside, AnyTenant):
		return nil, false
	case n.inGroup(tenant):
		return n.Beside, true
	}
	return nil, true
}

// strangers reports whether the pool's card has shares of a tenant beside which this one may not be.
func strangers(n *Node, p *Pool, tenant string) bool {
	if len(p.Holders) == 0 || p.wholes() {
		return false
	}
	return slices.ContainsFunc(p.Holders, func(h Holder) bool { return h.Units > 0 && !n.together(tenant, h.Tenant) })
}

// shareTenant keeps tenants off each other's cards, but for those of the node's sharing group. It is asked for room, since
// who is on a card changes.
type shareTenant struct{ anybody }

var _ RoomPlugin = shareTenant{}

// ShareTenant is the name of the plugin that keeps tenants off each other's cards.
const ShareTenant = "share_tenant"

func (shareTenant) Name() string { return ShareTenant }

func (shareTenant) Room(c *Candidate) Code {
	if strangers(c.Node, c.Pool, c.Request.Tenant) {
		return CodeShareTenant
	}
	return ""
}

// strange reports whether that plugin is on and keeps the request off the pool.
func (w *work) strange(node, p int) bool {
	return w.e.apart && strangers(&w.snap.Nodes[node], w.pool(node, p), w.req.Tenant)
}

// KeepsTenantsApart reports whether a card has one tenant at a time, but for those of a node's sharing group.
func (e *Engine) KeepsTenantsApart() bool { return e.apart }

// Hold notes what a tenant takes of a pool, or gives back when units are below 0, in holders of its own. Used is not
// changed.
func (p *Pool) Hold(tenant string, units int) {
	at, there := slices.BinarySearchFunc(p.Holders, tenant, func(h Holder, t string) int {
		switch {
		case h.Tenant < t:
			return -1
		case h.Tenant > t:
			return 1
		}
		return 0
	})
	holders := slices.Clone(p.Holders) // snapshots share what does not change
	if !there {
		holders = slices.Insert(holders, at, Holder{Tenant: tenant})
	}
	if holders[at].Units += units; holders[at].Units <= 0 {
		holders = slices.Delete(holders, at, at+1)
	}
	p.Holders = holders
}
