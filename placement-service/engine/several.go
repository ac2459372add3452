package engine

// nominee is a node that was taken out of the index to see who comes next.
type nominee struct {
	node  int
	state string
}

// takeOut takes nodes out of the index; putBack puts them back.
func (c *Cluster) takeOut(nodes []int) []nominee {
	var out []nominee
	for _, node := range nodes {
		out = append(out, nominee{node, c.index.State(node)})
		c.index.Remove(node)
	}
	return out
}

func (c *Cluster) putBack(nodes []nominee) {
	for _, n := range nodes {
		c.index.Set(n.node, n.state)
	}
}

// decideSeveral is DecideOn for requests of several allocations or groups, each with one task that asks. Allocations of a
// group all go the same way, each to the best node for it at its turn: a node that has none of them yet is as good as it
// was, so that beside those that have one only so many of the best come into question as there are allocations. It
// decides among these alone. ok is false where that may differ from a look at every node, and where nothing fits, since the
// reason is about all of them.
func (e *Engine) decideSeveral(c *Cluster, r *Request) (d Decision, ok bool) {
	keys, plain := attributesOf(r)
	if r.Loose != "" || r.Gang != nil || !e.impersonal || !plain || !severable(r) {
		return d, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.numbers) == 0 || !c.watch(e.attributes) || !c.watch(keys) {
		return d, false
	}
	c.sort()
	w := e.scratch.Get().(*work)
	defer e.scratch.Put(w)
	c.judge.use(e)
	defer func() { c.judge.asked, c.judge.work = nil, nil }()
	best := c.takeOut(c.own(r.Tenant))
	defer func() { c.putBack(best) }()
	for _, i := range byHardness(r.Groups) {
		g := &r.Groups[i]
		if g.asking() == 0 || g.Count <= 0 {
			continue
		}
		one := *r
		one.Groups = r.Groups[i : i+1]
		_, broken, _ := w.isolated(func() Decision {
			best = c.nominate(&one, w, best)
			return Decision{}
		})
		if broken != nil {
			return d, false
		}
	}
	few := Snapshot{Nodes: make([]Node, len(best))}
	for i, n := range best {
		few.Nodes[i] = c.nodes[n.node]
	}
	if len(best) == 0 {
		return d, false
	}
	d = e.decide(&few, r, false)
	return d, d.Placed && len(d.Faults) == 0 && !d.togetherOnOne(r, &few)
}

// severable reports whether groups can be decided among the best nodes.
func severable(r *Request) bool {
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Keep != nil || g.asking() > 1 || len(g.Apart)+len(g.Spread) > 0 {
			return false
		}
	}
	return true
}

// nominate takes the best nodes for the one group of the request out of the index: of each way to serve it, the best first,
// as many as there are allocations. Where a way has as many, later ones are not tried.
func (c *Cluster) nominate(r *Request, w *work, best []nominee) []nominee {
	c.judge.begin(r, w)
	kind := c.kind(r)
	count, way := 0, int16(lackUnknown)
	for count < r.Groups[0].Count {
		node, v, found := c.index.Choose(&kind)
		if !found {
			break
		}
		if v.what != way {
			count, way = 0, v.what
		}
		count++
		best = append(best, c.takeOut([]int{node})...)
	}
	return best
}

// togetherOnOne reports whether a group of several allocations may have been served in a way in which all of them share one
// node: as many nodes as there are allocations say nothing about that.
func (d *Decision) togetherOnOne(r *Request, s *Snapshot) bool {
	for i := range d.Groups {
		g := &r.Groups[i]
		if g.Count < 2 || len(d.Groups[i].Placements) == 0 {
			continue
		}
		several := false
		for _, t := range g.Tasks {
			several = several || t.Ask != nil && t.Ask.Count > 1
		}
		if !several {
			continue
		}
		at := d.Groups[i].Placements[0]
		for j := range s.Nodes {
			n := &s.Nodes[j]
			for k := range n.Pools {
				if n.ID == at.NodeID && n.Pools[k].Group == at.Tasks[0].Claims[0].Group && preference(n.Pools[k].Form) > 0 {
					return true
				}
			}
		}
	}
	return false
}
