package engine

import (
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// plan turns the bindings of the group into its plan. A running plan that was kept gives its blocks as they are.
func (w *work) plan(keep *GroupPlan) GroupPlan {
	plan := GroupPlan{Name: w.ask.Name, Tasks: make([]TaskShape, 0, len(w.tasks))}
	pins := w.pins()
	for t, task := range w.tasks {
		shape := TaskShape{Task: task.Name, Ask: *task.Ask, QoS: w.quality(t)}
		if keep != nil {
			old := keep.task(task.Name)
			shape.Blocks, shape.QoS = old.Blocks, old.QoS
			shape.RoundedMiB, shape.RoundedBy = old.RoundedMiB, old.RoundedBy
		} else if len(w.bound) > 0 {
			shape.Blocks = w.blocks(t, pins)
			shape.RoundedMiB, shape.RoundedBy = w.rounding(t)
		}
		plan.Tasks = append(plan.Tasks, shape)
	}
	for _, b := range w.bound {
		plan.Nodes = append(plan.Nodes, w.snap.Nodes[b.node].ID)
		plan.Placements = append(plan.Placements, w.placement(b, pins))
	}
	if keep != nil {
		plan.Nodes = append(plan.Nodes, w.known(keep.Nodes)...)
	}
	slices.Sort(plan.Nodes)
	plan.Nodes = slices.Compact(plan.Nodes)
	return plan
}

// known keeps the node ids that the snapshot has, since a node that left its list would lose its allocations.
func (w *work) known(ids []string) []string {
	var out []string
	for i := range w.snap.Nodes {
		if slices.Contains(ids, w.snap.Nodes[i].ID) {
			out = append(out, w.snap.Nodes[i].ID)
		}
	}
	return out
}

func (w *work) placement(b binding, pins map[blockOfTask]bool) Placement {
	out := Placement{NodeID: w.snap.Nodes[b.node].ID}
	for t, task := range w.tasks {
		claims := TaskPlacement{Task: task.Name}
		for i, it := range b.items {
			if it.task == t {
				pool := w.pool(b.node, b.picks[i])
				claim := Claim{Group: pool.Group, Units: it.option.units}
				if pins[blockOfTask{t, it.block}] {
					claim.Cards = pool.uuidsOf(b.cards[i])
				}
				claims.Claims = append(claims.Claims, claim)
			}
		}
		out.Tasks = append(out.Tasks, claims)
	}
	return out
}

// quality is what the task was asked to get, or the weakest of what its pools give.
func (w *work) quality(t int) accel.QoS {
	if q := w.tasks[t].Ask.QoS; q != "" {
		return q
	}
	weakest := accel.Gold
	switch {
	case w.tasks[t].Ask.Whole():
		return weakest
	case len(w.bound) == 0:
		return accel.Bronze
	}
	for _, b := range w.bound {
		for i, it := range b.items {
			if q := tier(w.pool(b.node, b.picks[i])); it.task == t && strength(q) < strength(weakest) {
				weakest = q
			}
		}
	}
	return weakest
}

// rounding is the size of the task's shares and the mode that makes them so; the same on all of its pools.
func (w *work) rounding(t int) (uint64, accel.Mode) {
	for _, b := range w.bound {
		for i, it := range b.items {
			if it.task != t || it.option.mib == 0 {
				continue
			}
			if _, by, _ := w.pool(b.node, b.picks[i]).size(it.option.ask, it.option.mib); by != "" {
				return it.option.mib, by
			}
		}
	}
	return 0, ""
}

// blocks are the device blocks of a task: each the pools that its allocations use.
func (w *work) blocks(t int, pins map[blockOfTask]bool) []Block {
	var out []Block
	for block := 0; ; block++ {
		var pools []*Pool
		var ids []string
		units := 0
		for _, b := range w.bound {
			for i, it := range b.items {
				if it.task == t && it.block == block {
					pools = append(pools, w.pool(b.node, b.picks[i]))
					units = it.option.units
					if pins[blockOfTask{t, block}] {
						ids = append(ids, w.pool(b.node, b.picks[i]).uuidsOf(b.cards[i])...)
					}
				}
			}
		}
		if len(pools) == 0 {
			return out
		}
		one := blockOf(pools, units)
		if len(ids) > 0 {
			slices.Sort(ids)
			one.Allow = append(one.Allow, Allow{Attribute: attrIDs, Values: ids})
		}
		out = append(out, one)
	}
}

// blockOf names the pools of a block: the exact group where there is one, else the type and a list of what may be
// taken.
func blockOf(pools []*Pool, units int) Block {
	block := Block{Device: pools[0].Group, Count: units}
	allow := Allow{Attribute: attrUUID}
	for _, p := range pools {
		if p.Group != block.Device {
			block.Device = p.Type
		}
		if _, known := p.attribute(attrUUID); !known {
			allow.Attribute = attrGroupName
		}
	}
	for _, p := range pools {
		value, _ := p.attribute(allow.Attribute) // known for each: checked above, and every pool has a name
		allow.Values = append(allow.Values, value)
	}
	slices.Sort(allow.Values)
	allow.Values = slices.Compact(allow.Values)
	block.Allow = []Allow{allow}
	return block
}

// task is the shape of a task of the plan, nil when it has none.
func (p *GroupPlan) task(name string) *TaskShape {
	for i := range p.Tasks {
		if p.Tasks[i].Task == name {
			return &p.Tasks[i]
		}
	}
	return nil
}

// keepShape gives the items of the running plan; nil when there is none that serves every task.
func (w *work) keepShape() []item {
	if w.ask.Keep == nil {
		return nil
	}
	options := make([]*option, len(w.tasks))
	for t, task := range w.tasks {
		if options[t] = kept(w.ask.Keep.task(task.Name)); options[t] == nil {
			return nil
		}
	}
	return w.itemsOf(func(t int) *option { return options[t] })
}

// tryKeep places the group with the blocks of the running plan: running allocations where they are, the others where
// the same blocks have room.
func (w *work) tryKeep(items []item) bool {
	for _, running := range w.ask.Keep.Placements {
		if len(w.bound) == w.ask.Count {
			break
		}
		w.keepRunning(items, running)
	}
	if len(w.bound) < w.ask.Count && !w.fill(items) {
		return false
	}
	return true
}

// keepRunning books a running allocation where it is. One whose node or pools are gone is placed like a new one.
func (w *work) keepRunning(items []item, running Placement) {
	n := slices.IndexFunc(w.snap.Nodes, func(n Node) bool { return n.ID == running.NodeID })
	if n < 0 {
		return
	}
	w.picks, w.trying = w.picks[:0], items
	for _, it := range items {
		p := w.claimed(n, it, running)
		if p < 0 || w.free(n, p) < it.option.units {
			return
		}
		w.picks = append(w.picks, p)
	}
	w.bind(n, items)
}

// claimed is the pool that a running allocation holds for an item, -1 when it is not there.
func (w *work) claimed(n int, it item, running Placement) int {
	for _, t := range running.Tasks {
		if t.Task != w.tasks[it.task].Name {
			continue
		}
		for _, claim := range t.Claims {
			for p := w.first[n]; p < w.first[n+1]; p++ {
				pool := w.pool(n, p)
				if pool.Group == claim.Group && claim.Units == it.option.units && it.option.accepts(it.block, pool) {
					return p
				}
			}
		}
	}
	return -1
}
