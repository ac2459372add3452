package gang

import "slices"

// PlaceReplicas places replicas that are gangs each, such as a leader and its workers: the members of one replica are
// together by the ask's level and mode, the replicas need not be. It places as many as fit, and none when those are
// fewer than least; then it says what the first one that does not fit lacks. A replica's leader is its first member.
func (c *Cluster) PlaceReplicas(a Ask, replicas, least int) ([][]Slot, *Short) {
	var out [][]Slot
	var short *Short
	limit := a.Limit
	on := map[int]int{} // members placed, by node: what the limit does not know
	if limit != nil {
		a.Limit = func(n int) int { return limit(n) - on[n] }
	}
	for len(out) < replicas {
		var slots []Slot
		if slots, short = c.Place(a); slots == nil {
			break
		}
		_ = c.Take(slots) // just found free
		for i := range slots {
			on[slots[i].Node]++
		}
		out = append(out, slots)
	}
	for _, slots := range out {
		_ = c.Give(slots) // questions do not change the cluster
	}
	if len(out) < max(1, least) {
		return nil, short
	}
	return out, nil
}

// Replace finds another slot for one member of a gang that runs, for example since its node failed, and leaves the
// others and the order of ranks as they are. It looks in the same domain as the member was in, then in those around
// it, but stays within the domain of the level that the ask requires. The old slot counts as taken, and the ask's Limit
// has to refuse nodes that are not to be used; it is asked for one more member.
func (c *Cluster) Replace(a Ask, gang []Slot, rank int) (Slot, bool) {
	a.Members, a.Min = 1, 1
	top := c.highest(&a, gang, rank)
	v := c.view(&a)
	for d := c.nodes[gang[rank].Node].domain; d >= 0; d = c.domains[d].parent {
		if v.of[d] > 0 {
			v.inDomain = d
			v.oneNode(1)
			return v.slots[0], true
		}
		if d == top {
			break
		}
	}
	return Slot{}, false
}

// highest is the domain that a replacement has to stay in.
func (c *Cluster) highest(a *Ask, gang []Slot, rank int) int {
	if a.Mode == Required && slices.Contains(c.levels, a.Level) {
		for d := c.nodes[gang[rank].Node].domain; d >= 0; d = c.domains[d].parent {
			if c.levelOf(d) == a.Level {
				return d
			}
		}
	}
	return 0
}
