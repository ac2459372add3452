package engine

import (
	"cmp"
	"math"
	"slices"
)

// group places all allocations of a group, or says why not. What it took stays booked either way.
func (w *work) group(g *GroupAsk) (GroupPlan, *Refusal) {
	w.begin(g)
	if len(w.tasks) == 0 || g.Count <= 0 {
		return w.plan(nil), nil
	}
	if shape := w.keepShape(); shape != nil {
		if w.tryKeep(shape) {
			return w.plan(g.Keep), nil
		}
		w.undo(0)
	}
	best := w.search()
	if len(w.bound) == g.Count {
		return w.plan(nil), nil
	}
	if !w.say {
		return GroupPlan{}, &Refusal{}
	}
	if best != nil {
		w.fill(best) // again, for the reason: why the next allocation does not fit
	}
	return GroupPlan{}, w.explain()
}

// search tries the ways to serve the group until one serves all of it. Otherwise nothing stays booked, and the answer
// is the way that served most; nil when none served an allocation.
func (w *work) search() []item {
	options := make([][]option, len(w.tasks))
	for t := range w.tasks {
		options[t] = w.options(t)
		if len(options[t]) == 0 {
			return nil
		}
	}
	const tries = 32 // different slice sizes and forms are few; several tasks multiply them
	var best []item
	most := 0
	choice := make([]int, len(options))
	for range tries {
		items := w.itemsOf(func(t int) *option { return &options[t][choice[t]] })
		if w.fill(items) {
			return items
		}
		if len(w.bound) > most {
			most, best = len(w.bound), slices.Clone(items)
		}
		w.undo(0)
		if !advance(choice, options) {
			break
		}
	}
	return best
}

// advance counts through the combinations, the last task fastest.
func advance(choice []int, options [][]option) bool {
	for t := len(choice) - 1; t >= 0; t-- {
		if choice[t]++; choice[t] < len(options[t]) {
			return true
		}
		choice[t] = 0
	}
	return false
}

// itemsOf lists the device blocks of an allocation, those that take most of a card first, since they fit in the
// fewest places.
func (w *work) itemsOf(optionOf func(task int) *option) []item {
	w.items = w.items[:0]
	for t := range w.tasks {
		o := optionOf(t)
		for b := range o.blocks {
			w.items = append(w.items, item{t, b, o})
		}
	}
	slices.SortStableFunc(w.items, func(a, b item) int {
		return cmp.Compare(askHardness(w.tasks[b.task].Ask), askHardness(w.tasks[a.task].Ask))
	})
	return w.items
}

// fill places what is left of the group with these items. It reports whether all of it is placed.
func (w *work) fill(items []item) bool {
	if slices.ContainsFunc(items, func(it item) bool { return it.option.named }) {
		return w.fillOneNode(items)
	}
	w.worth = resize(w.worth, len(w.open))
	for i, n := range w.open {
		w.worth[i] = w.trial(n, items, 1)
	}
	for len(w.bound) < w.ask.Count {
		i := w.bestOpen()
		if i < 0 {
			return false
		}
		n := w.open[i]
		w.trial(n, items, 1)
		w.bind(n, items)
		if len(w.bound) < w.ask.Count {
			w.worth[i] = w.trial(n, items, 1)
			w.shut(n)
		}
	}
	return true
}

// bestOpen is the index of the open node with the best place; of equal ones the node with the lowest id, so that the
// order of the snapshot does not matter. It is -1 when no node has a place.
func (w *work) bestOpen() int {
	best, most := -1, 0.0
	for i, worth := range w.worth {
		if worth < 0 {
			continue
		}
		worth = w.domains.spread(w.open[i], worth)
		if best >= 0 && worth < most {
			continue
		}
		if best < 0 || worth > most || w.snap.Nodes[w.open[i]].ID < w.snap.Nodes[w.open[best]].ID {
			best, most = i, worth
		}
	}
	return best
}

// shut takes out of the choice the nodes whose failure domain is full since an allocation went to node n.
func (w *work) shut(n int) {
	if len(w.ask.Apart) == 0 {
		return
	}
	for i, other := range w.open {
		if other != n && w.worth[i] >= 0 && w.domains.full(other, 1) {
			w.worth[i] = -1
		}
	}
}

// fillOneNode places the group on one node, where the named blocks of every allocation use the same pools.
func (w *work) fillOneNode(items []item) bool {
	rest := w.ask.Count - len(w.bound)
	if rest > 1 && (w.ask.DistinctHosts || w.req.DistinctHosts) {
		return false
	}
	w.worth = resize(w.worth, len(w.open))
	for i, n := range w.open {
		w.worth[i] = w.trial(n, items, rest)
	}
	for {
		i := w.bestOpen()
		if i < 0 {
			return false
		}
		w.worth[i] = -1
		before := len(w.bound)
		if w.fillNode(w.open[i], items, rest) {
			return true
		}
		w.undo(before)
	}
}

// fillNode places the rest of the group on one node: the named pools as the first trial chose them, the other blocks
// where there is room for each allocation.
func (w *work) fillNode(n int, items []item, rest int) bool {
	w.trial(n, items, rest)
	named := slices.Clone(w.picks)
	fixed := make([]option, len(items))
	again := make([]item, len(items))
	for i, it := range items {
		again[i] = it
		if it.option.named {
			fixed[i] = *it.option
			fixed[i].keep = make([]Block, it.option.blocks)
			fixed[i].keep[it.block] = Block{Device: w.pool(n, named[i]).Group}
			again[i].option = &fixed[i]
		}
	}
	for range rest {
		if w.trial(n, again, 1) < 0 {
			return false
		}
		w.bind(n, again)
	}
	return true
}

// undo gives back all but the first allocations of the group.
func (w *work) undo(keep int) {
	for i := len(w.bound) - 1; i >= keep; i-- {
		w.take(w.bound[i].node, w.bound[i].items, w.bound[i].picks, -1)
		w.unseat(&w.bound[i])
	}
	w.bound = w.bound[:keep]
	w.scores = w.scores[:min(len(w.scores), keep)]
}

// trial finds the best place for one allocation on a node, for its worth; the pools are left in picks. It is below 0
// when there is none. Named blocks need room for all allocations that will use them.
func (w *work) trial(n int, items []item, allocations int) float64 {
	if w.here[n] > 0 && w.ask.DistinctHosts || w.jobHere[n] > 0 && w.req.DistinctHosts {
		return -1
	}
	if w.domains.full(n, allocations) {
		return -1
	}
	w.picks, w.trying, w.trialled, w.steps = w.picks[:0], items, 0, 0
	sum, ok := w.choose(n, items, allocations)
	if !ok {
		return -1
	}
	return sum / float64(len(items))
}

// maxSteps bounds the search on one node. Tasks with one block need one step; several tasks on a nearly full node may
// need to give back a choice.
const maxSteps = 96

// choose picks a pool for the item after the picks made so far and then for the others, best pool first. A task that
// takes several pools takes those of the model that is worth most.
func (w *work) choose(n int, items []item, allocations int) (float64, bool) {
	at := len(w.picks)
	if at == len(items) {
		return 0, true
	}
	it := items[at]
	if it.block > 0 || it.option.blocks == 1 {
		return w.chooseNext(n, items, allocations)
	}
	var few [4]*Pool
	models := w.modelsFor(few[:0], n, it)
	if len(models) == 1 {
		w.like[it.task] = models[0]
		if !w.enough(n, it, allocations) {
			return 0, false
		}
		return w.chooseNext(n, items, allocations)
	}
	best, found := 0.0, false
	var picks []int
	for _, w.like[it.task] = range models {
		if !w.enough(n, it, allocations) {
			continue
		}
		if worth, ok := w.chooseNext(n, items, allocations); ok && (!found || worth > best) {
			best, found, picks = worth, true, slices.Clone(w.picks[at:])
		}
		w.picks = w.picks[:at]
	}
	w.picks = append(w.picks, picks...)
	return best, found
}

// modelsFor adds a pool of each model on the node that could serve the item, in the order of their names. For a running
// plan, which names its pools, that is one nil.
func (w *work) modelsFor(models []*Pool, n int, it item) []*Pool {
	if it.option.keep != nil {
		return append(models, nil)
	}
	for p := w.first[n]; p < w.first[n+1]; p++ {
		pool := w.pool(n, p)
		if w.why[it.task][p] != "" || !it.option.accepts(it.block, pool) {
			continue
		}
		at, known := slices.BinarySearchFunc(models, pool, compareModels)
		if !known {
			models = slices.Insert(models, at, pool)
		}
	}
	return models
}

// suits reports whether the pool can serve the item: the pools of one task are of one model.
func (w *work) suits(it item, p *Pool) bool {
	like := w.like[it.task]
	return it.option.accepts(it.block, p) && (it.option.blocks == 1 || like == nil || sameModel(like, p))
}

func (w *work) chooseNext(n int, items []item, allocations int) (float64, bool) {
	at := len(w.picks)
	it := items[at]
	last := math.Inf(1)
	lastPool := -1
	for w.steps < maxSteps {
		w.steps++
		p, worth := w.nextPool(n, it, allocations, last, lastPool)
		if p < 0 {
			break
		}
		w.picks = append(w.picks, p)
		w.used[p] += it.option.units
		w.trialled++
		rest, ok := w.choose(n, items, allocations)
		w.trialled--
		w.used[p] -= it.option.units
		if ok {
			return worth + rest, true
		}
		w.picks = w.picks[:at]
		last, lastPool = worth, p
	}
	return 0, false
}

// enough reports whether a task that takes several pools finds as many, so that a node with fewer is not searched.
func (w *work) enough(n int, it item, allocations int) bool {
	found := 0
	for p := w.first[n]; p < w.first[n+1] && found < it.option.blocks; p++ {
		if w.why[it.task][p] != "" || it.option.keep == nil && !w.suits(it, w.pool(n, p)) {
			continue
		}
		if w.hasRoom(n, p, it, allocations) != nil {
			found++
		}
	}
	return found >= it.option.blocks
}

// nextPool is the best pool of the node for the item that comes after the last one tried.
func (w *work) nextPool(n int, it item, allocations int, last float64, lastPool int) (pool int, worth float64) {
	pool, worth = -1, -1
	why := w.why[it.task]
	for p := w.first[n]; p < w.first[n+1]; p++ {
		if why[p] != "" || w.repeats(it, p) || !w.suits(it, w.pool(n, p)) || w.pickedByTask(it, p) {
			continue
		}
		worthHere, ok := w.worthOf(n, p, it, allocations)
		if !ok || worthHere > last || worthHere == last && !w.before(n, lastPool, p) {
			continue
		}
		if pool < 0 || worthHere > worth || worthHere == worth && w.before(n, p, pool) {
			pool, worth = p, worthHere
		}
	}
	return pool, worth
}

// repeats reports whether an earlier pool is like this one and as full, so that its worth is known.
func (w *work) repeats(it item, p int) bool {
	if w.kin == nil || it.option.blocks > 1 {
		return false
	}
	for q := range p {
		if w.kin[q] == w.kin[p] && w.pool(0, q).Used == w.pool(0, p).Used && w.loaded(0, q) == w.loaded(0, p) &&
			slices.Equal(w.pool(0, q).Holders, w.pool(0, p).Holders) {
			return true
		}
	}
	return false
}

// before orders pools of equal worth on a node, those with least free first, then by their name. Pool -1 comes before
// all.
func (w *work) before(n, a, b int) bool {
	if a < 0 {
		return true
	}
	if freeA, freeB := w.free(n, a), w.free(n, b); freeA != freeB {
		return freeA < freeB
	}
	return w.pool(n, a).Group < w.pool(n, b).Group
}

// pickedByTask reports whether another block of the same task has the pool: its cards are to be different ones.
func (w *work) pickedByTask(it item, p int) bool {
	if it.option.blocks == 1 {
		return false
	}
	for i, picked := range w.picks {
		if picked == p && w.trying[i].task == it.task {
			return true
		}
	}
	return false
}

// hasRoom is the stage Filter (for room) for one item on one pool; nil when there is none.
func (w *work) hasRoom(n, p int, it item, allocations int) *Candidate {
	units := it.option.units
	if it.option.named {
		units *= allocations
	}
	c := w.candidate(it.task, n, p)
	c.Units, c.Allocations = units, allocations
	if c.FreeUnits < units || it.option.keep != nil && w.namedFree(n, p, it) < units {
		return nil // whatever plugins are on: capacity is not a matter of opinion
	}
	for i := range w.e.rooms {
		if w.roomBy(&w.e.rooms[i], c) != "" {
			return nil
		}
	}
	return c
}

// worthOf is the stages Filter (for room), Score and PostScore for one item on one pool: the weighted mean of the
// scores, 0–100.
func (w *work) worthOf(n, p int, it item, allocations int) (float64, bool) {
	c := w.hasRoom(n, p, it, allocations)
	if c == nil {
		return 0, false
	}
	var sum, weights float64
	for i := range w.e.scorers {
		s := &w.e.scorers[i]
		if s.silent(c) {
			continue
		}
		sum += s.weight * w.scoreBy(s, c)
		weights += s.weight
	}
	if weights <= 0 {
		return 0, true
	}
	return sum / weights, true
}

// maxScores bounds the audit of a group with very many allocations.
const maxScores = 64

// bind is the stage Bind: it books the picks of the last trial.
func (w *work) bind(n int, items []item) {
	if len(w.scores) < maxScores {
		w.scores = append(w.scores, w.score(n, items))
	}
	b := binding{node: n, items: slices.Clone(items), picks: slices.Clone(w.picks)}
	b.cards = w.seat(n, b.items, b.picks)
	w.take(n, b.items, b.picks, 1)
	w.bound = append(w.bound, b)
}

// score is the audit of a place: each plugin's mean over the blocks.
func (w *work) score(n int, items []item) Score {
	out := Score{Group: w.ask.Name, NodeID: w.snap.Nodes[n].ID, Plugins: map[string]float64{}}
	for at := range w.e.scorers {
		s := &w.e.scorers[at]
		var sum, asked float64
		for i, it := range items {
			c := w.candidate(it.task, n, w.picks[i])
			c.Units, c.Allocations = it.option.units, 1
			if !s.silent(c) {
				sum, asked = sum+w.scoreBy(s, c), asked+1
			}
		}
		if asked == 0 {
			continue
		}
		out.Plugins[s.meter.Name()] = sum / asked
		out.Total += s.weight * out.Plugins[s.meter.Name()]
	}
	return out
}
