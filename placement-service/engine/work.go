package engine

import (
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/links"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// work is the state of one decision. It is used again by later decisions, so that deciding allocates nothing for each
// node; pools are numbered through the whole snapshot.
type work struct {
	e    *Engine
	snap *Snapshot
	req  *Request
	say  bool // a refusal is to give its reason

	asking *meter // the plugin that is asked now
	calls  int    // of plugins
	timing bool   // this call is timed
	began  int64  // of the call that is timed

	first   []int             // number of the first pool of each node, and the number of pools at the end
	used    []int             // instances taken by this decision, by pool
	cards   []links.Set       // cards taken by this decision, by pool, where links matter
	cpu     []int             // MHz taken by this decision, by node
	memory  []int             // MiB taken by this decision, by node
	disk    []int             // MiB taken by this decision, by node
	jobHere []int             // allocations placed by this decision, by node
	usedMiB []uint64          // card memory in use before this decision, by node
	allMiB  []uint64          // card memory, by node
	states  []potential.State // of each node that has been scored, before the trial; valid where stated
	stated  []bool
	values  []value // of the states
	model   modelSeen

	// Of the group that is being placed:
	ask      *GroupAsk
	tasks    []*TaskAsk        // those with an ask
	models   []map[string]bool // what each task's patterns said
	why      [][]Code          // for each task, why a pool does not serve it, by pool
	open     []int             // nodes that pass the node checks
	here     []int             // allocations of the group, by node
	worth    []float64         // of the best place on each open node; below 0 there is none
	picks    []int             // pools of the place under trial, in the order of items
	trialled int               // of the picks, how many are counted in used
	kin      []uint32          // of one node that is judged: numbers that are equal where pools are alike; nil where that is not known
	trying   []item            // the items that picks belong to
	items    []item
	bound    []binding
	scores   []Score
	like     []*Pool // for each task, the brand and model that a block under trial is to have
	steps    int     // of the search on one node
	domains  domains
	cand     Candidate

	only    func(node int) bool // nodes that come into question for members of a gang; nil for all
	within  links.Set           // cards of the pool of which a member of a gang may have some; 0 for all
	apart   bool                // members of the gang are on several nodes
	linkKey []byte              // scratch
}

// item is one device block of one task.
type item struct {
	task   int // index in tasks
	block  int // index among the blocks of the task
	option *option
}

// binding is one allocation that was placed: its node and the pools of its items.
type binding struct {
	node  int
	items []item
	picks []int
	cards []links.Set // of the items, 0 where they are Nomad's to choose; nil for all
}

func (w *work) reset(e *Engine, s *Snapshot, r *Request) {
	w.e, w.snap, w.req = e, s, r
	nodes := len(s.Nodes)
	w.first = resize(w.first, nodes+1)
	w.cpu, w.memory, w.disk, w.jobHere = resize(w.cpu, nodes), resize(w.memory, nodes), resize(w.disk, nodes), resize(w.jobHere, nodes)
	w.usedMiB, w.allMiB = resize(w.usedMiB, nodes), resize(w.allMiB, nodes)
	total := 0
	for i := range s.Nodes {
		w.first[i] = total
		for j := range s.Nodes[i].Pools {
			p := &s.Nodes[i].Pools[j]
			w.usedMiB[i] += uint64(p.Used) * p.UnitMiB
			w.allMiB[i] += uint64(p.Total) * p.UnitMiB
		}
		total += len(s.Nodes[i].Pools)
	}
	w.first[nodes] = total
	w.used, w.cards = resize(w.used, total), resize(w.cards, total)
	w.within, w.apart, w.only = 0, false, nil
	w.kin, w.model.known = nil, false
	w.stated = resize(w.stated, nodes)
	if cap(w.states) < nodes {
		w.states, w.values = make([]potential.State, nodes), make([]value, nodes)
	}
	w.states, w.values = w.states[:nodes], w.values[:nodes]
	w.trialled = 0
	w.domains.reset()
}

// resize gives a zeroed slice of length n, in the old memory where it suffices.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	s = s[:n]
	clear(s)
	return s
}

// begin runs the stages PreScore and Filter for a group: which nodes and pools come into question at all.
func (w *work) begin(g *GroupAsk) {
	w.ask = g
	w.tasks = w.tasks[:0]
	for i := range g.Tasks {
		if g.Tasks[i].Ask != nil {
			w.tasks = append(w.tasks, &g.Tasks[i])
		}
	}
	for len(w.models) < len(w.tasks) {
		w.models = append(w.models, map[string]bool{})
		w.why = append(w.why, nil)
	}
	w.like = resize(w.like, len(w.tasks))
	w.open = w.open[:0]
	w.here = resize(w.here, len(w.snap.Nodes))
	w.bound, w.scores = w.bound[:0], w.scores[:0]
	w.domains.begin(w.snap, g)
	for i := range w.snap.Nodes {
		if w.nodeCode(i) == "" && len(w.snap.Nodes[i].Pools) > 0 && (w.only == nil || w.only(i)) {
			w.open = append(w.open, i)
		}
	}
	for t := range w.tasks {
		clear(w.models[t])
		w.why[t] = resize(w.why[t], len(w.used))
		for _, n := range w.open {
			w.filter(t, n)
		}
	}
}

// filter asks every filter about the pools of a node for a task.
func (w *work) filter(task, node int) {
	for p := w.first[node]; p < w.first[node+1]; p++ {
		w.filterPool(task, node, p)
	}
}

func (w *work) filterPool(task, node, p int) {
	c := w.candidate(task, node, p)
	for i := range w.e.filters {
		if code := w.filterBy(&w.e.filters[i], c); code != "" {
			w.why[task][p] = code
			return
		}
	}
}

func (w *work) pool(node, p int) *Pool { return &w.snap.Nodes[node].Pools[p-w.first[node]] }

// free is what is left of a pool after what this decision took. No plugin can make it more.
func (w *work) free(node, p int) int { return w.pool(node, p).Free() - w.used[p] }

// candidate fills the one candidate that is passed to plugins.
func (w *work) candidate(task, node, p int) *Candidate {
	n := &w.snap.Nodes[node]
	w.cand = Candidate{
		Request: w.req, Group: w.ask, Task: w.tasks[task], Node: n, Pool: w.pool(node, p),
		FreeUnits:     w.free(node, p),
		FreeCPUMHz:    n.CPUMHz - n.UsedCPUMHz - w.cpu[node],
		FreeMemoryMiB: n.MemoryMiB - n.UsedMemoryMiB - w.memory[node],
		FreeDiskMiB:   n.DiskMiB - n.UsedDiskMiB - w.disk[node],
		NodeUsedMiB:   w.usedMiB[node], NodeTotalMiB: w.allMiB[node],
		Here:   w.jobHere[node],
		models: w.models[task], work: w, node: node, pool: p,
	}
	return &w.cand
}

// take books the picks of one allocation, or gives them back when times is -1.
func (w *work) take(node int, items []item, picks []int, times int) {
	for i, it := range items {
		w.used[picks[i]] += times * it.option.units
		mib := uint64(it.option.units) * w.pool(node, picks[i]).UnitMiB
		if times > 0 {
			w.usedMiB[node] += mib
		} else {
			w.usedMiB[node] -= mib
		}
	}
	w.domains.take(node, times)
	w.cpu[node] += times * w.ask.CPUMHz
	w.memory[node] += times * w.ask.MemoryMiB
	w.disk[node] += times * w.ask.DiskMiB
	w.stated[node] = false
	w.here[node] += times
	w.jobHere[node] += times
}

// wholeCard reports whether the pool is one shared card that nobody uses, so that all its slices are a whole card.
func wholeCard(p *Pool) bool {
	return p.Form == accel.Shared && p.Total > 0 && len(p.Cards) <= 1 &&
		(len(p.Cards) == 0 || p.Cards[0].Healthy && p.Cards[0].Units <= p.Total)
}
