package engine

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// worth is what a node in some state is worth to a request: the way in which it would be served and the score there, or
// the reason why it is not.
type worth struct {
	score float64 // what is free of what lacks, where it does not fit
	what  int16   // number of the way, or of the code
}

// judge holds single nodes of a cluster against the request that is being decided.
type judge struct {
	c     *Cluster
	e     *Engine // judgements are of this one
	epoch int
	asked *Request
	work  *work
	one   Snapshot
	ways  []option
	// numbers are the places in ways.
	numbers map[wayKey]int16
	codes   map[Code]int16
	named   []Code // by their number
	ranks   []int  // of the codes, by their number

	// What the request that is being decided found out of classes:
	nodeCodes map[uint32]Code
	poolsSeen map[poolOn]poolSeen
	options   []*numberedWay // scratch
}

// wayKey is what compareWays looks at.
type wayKey struct {
	form                accel.Form
	waste, unitMiB, mib uint64
	units, total        int
}

// poolOn is a class of pools on a class of nodes.
type poolOn struct{ node, pool uint32 }

// poolSeen is why no pool of the class serves, or the way in which one does; nil for none.
type poolSeen struct {
	why Code
	way *numberedWay
}

// numberedWay is a way to serve the request with its number.
type numberedWay struct {
	option
	number int16
}

// lackUnknown is in the place of the number of a code that was not looked for yet: most that do not fit are not asked why.
const lackUnknown = -1

// Judge decides on the node alone, with what is known of its classes.
func (j *judge) Judge(node int, _, _ *string) (worth, bool) {
	if code := j.look(node); code == "" {
		for _, o := range j.waysOn(node) {
			if score := j.work.trial(0, j.items(&o.option), 1); score >= 0 {
				return worth{score, o.number}, true
			}
		}
	}
	return worth{what: lackUnknown}, false
}

// items are the device blocks of the one task in a way to serve it.
func (j *judge) items(o *option) []item {
	w := j.work
	w.items = w.items[:0]
	for b := range o.blocks {
		w.items = append(w.items, item{0, b, o})
	}
	return w.items
}

// place decides for the node that was found best. ok is false when it does not fit there, which cannot be.
func (j *judge) place(node int) (d Decision, ok bool) {
	w := j.work
	if j.look(node) != "" {
		return d, false
	}
	for _, o := range j.waysOn(node) {
		w.kin = nil // of pools that are alike the name decides
		items := j.items(&o.option)
		if w.trial(0, items, 1) < 0 {
			continue
		}
		w.bind(0, items)
		return Decision{Placed: true, Groups: []GroupPlan{w.plan(nil)}, Scores: slices.Clone(w.scores)}, true
	}
	return d, false
}

// look makes the node the one to judge, and gives the reason why it does not come into question.
func (j *judge) look(node int) Code {
	j.one.Nodes = j.c.nodes[node : node+1 : node+1]
	j.work.reset(j.e, &j.one, j.asked)
	class := j.c.traits[node].class
	code, known := j.nodeCodes[class]
	if !known {
		code = j.work.nodeCode(0)
		j.nodeCodes[class] = code
	}
	if code == "" && len(j.one.Nodes[0].Pools) == 0 {
		return CodeNoCards
	}
	return code
}

// waysOn are the ways to serve the request on the node, the best first, and notes which pools come into question.
func (j *judge) waysOn(node int) []*numberedWay {
	w, t := j.work, &j.c.traits[node]
	w.kin = t.pools
	w.here = resize(w.here, 1)
	w.why[0] = resize(w.why[0], len(t.pools))
	j.options = j.options[:0]
	for p, class := range t.pools {
		seen, known := j.poolsSeen[poolOn{t.class, class}]
		if !known {
			w.filterPool(0, 0, p)
			seen.why = w.why[0][p]
			if o := optionOn(w.tasks[0].Ask, w.pool(0, p)); seen.why == "" && o.units > 0 {
				seen.way = &numberedWay{o, j.way(&o)}
			}
			j.poolsSeen[poolOn{t.class, class}] = seen
		}
		w.why[0][p] = seen.why
		if seen.way == nil {
			continue
		}
		at, there := slices.BinarySearchFunc(j.options, seen.way, func(a, b *numberedWay) int {
			if a.number == b.number {
				return 0
			}
			return compareWays(&a.option, &b.option)
		})
		if !there {
			j.options = slices.Insert(j.options, at, seen.way)
		}
	}
	return j.options
}

// lack is why the node does not fit.
func (j *judge) lack(node int) worth {
	code := j.look(node)
	if code != "" {
		return worth{what: j.code(code)}
	}
	j.waysOn(node)
	l := j.work.roomLack(0)
	return worth{float64(l.have), j.code(l.code)}
}

// way numbers ways to serve a request. They are as few as there are kinds of pools.
func (j *judge) way(o *option) int16 {
	key := wayKey{o.form, o.waste, o.unitMiB, o.mib, o.units, o.total}
	n, known := j.numbers[key]
	if !known {
		n = int16(len(j.ways))
		j.numbers[key], j.ways = n, append(j.ways, option{form: o.form, waste: o.waste, units: o.units, unitMiB: o.unitMiB, mib: o.mib, total: o.total})
	}
	return n
}

func (j *judge) code(c Code) int16 {
	n, known := j.codes[c]
	if !known {
		n = int16(len(j.named))
		j.codes[c], j.named, j.ranks = n, append(j.named, c), append(j.ranks, rank(c))
	}
	return n
}

// Better is the order in which Decide tries ways, then the higher score.
func (j *judge) Better(a, b worth) bool {
	if a.what != b.what {
		return compareWays(&j.ways[a.what], &j.ways[b.what]) < 0
	}
	return a.score > b.score
}

// Before is the order of ids.
func (j *judge) Before(a, b int) bool {
	if places := j.c.places; places != nil {
		return places[a] < places[b]
	}
	return j.c.nodes[a].ID < j.c.nodes[b].ID
}

// Epoch counts engines.
func (j *judge) Epoch() int { return j.epoch }

// use makes judgements those of an engine.
func (j *judge) use(e *Engine) {
	if j.e != e || len(j.ways) > math.MaxInt16/2 {
		j.e, j.ways, j.numbers = e, nil, map[wayKey]int16{}
		j.epoch++
		j.c.limit(e.limits)
	}
}

// begin makes ready to judge for a request.
func (j *judge) begin(r *Request, w *work) {
	j.asked, j.work = r, w
	clear(j.nodeCodes)
	clear(j.poolsSeen)
	j.one.Nodes = nil
	w.reset(j.e, &j.one, r)
	w.begin(&r.Groups[0])
}

// DecideOn is Decide on the cluster as it is now.
func (e *Engine) DecideOn(c *Cluster, r Request) Decision {
	if d, ok := e.decideIndexed(c, &r); ok {
		return d
	}
	if d, ok := e.decideSeveral(c, &r); ok {
		return d
	}
	return e.Decide(c.Snapshot(), r)
}

// decideIndexed is DecideOn for requests of which each node can be judged by itself: one allocation with one task that
// asks, which nothing but what nodes are like sends to one of them.
func (e *Engine) decideIndexed(c *Cluster, r *Request) (d Decision, ok bool) {
	if r.Loose != "" || r.Gang != nil || len(r.Groups) != 1 || !e.impersonal {
		return d, false
	}
	g := &r.Groups[0]
	keys, plain := attributesOf(r)
	if g.Count != 1 || g.Keep != nil || g.asking() != 1 || !plain || len(g.Apart)+len(g.Spread) > 0 {
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
	c.judge.begin(r, w)
	defer func() { c.judge.asked, c.judge.work = nil, nil }()
	kind := c.kind(r)
	own := c.takeOut(c.own(r.Tenant))
	defer c.putBack(own)
	placed := false
	d, broken, _ := w.isolated(func() (d Decision) {
		node, _, found := c.index.Choose(&kind)
		switch {
		case len(own) > 0:
			if d = e.decideAmong(c, r, own, node, found); d.Placed {
				placed, ok = true, len(d.Faults) == 0
			}
		case found:
			placed = true
			d, ok = c.judge.place(node)
		}
		return d
	})
	switch {
	case broken != nil:
		return Decision{}, false
	case placed:
		return d, ok
	}
	return e.refuse(c, r, kind, own)
}

// decideAmong decides among a tenant's own nodes and the best of all others.
func (e *Engine) decideAmong(c *Cluster, r *Request, own []nominee, best int, found bool) Decision {
	few := Snapshot{Nodes: make([]Node, 0, len(own)+1)}
	for _, n := range own {
		few.Nodes = append(few.Nodes, c.nodes[n.node])
	}
	if found {
		few.Nodes = append(few.Nodes, c.nodes[best])
	}
	return e.decide(&few, r, false)
}

// refuse is the refusal of a request that no node can serve: that of the node that comes nearest, with the count of all, the
// tenant's own nodes among them.
func (e *Engine) refuse(c *Cluster, r *Request, kind string, own []nominee) (d Decision, ok bool) {
	type reason struct{ nodes, first int }
	var reasons []reason // by the number of the code
	nearest, best := -1, worth{}
	j := c.judge
	consider := func(first, nodes int, at *worth) {
		if at.what == lackUnknown {
			*at = j.lack(first)
		}
		for len(reasons) <= int(at.what) {
			reasons = append(reasons, reason{})
		}
		why := &reasons[at.what]
		if why.nodes == 0 || j.Before(first, why.first) {
			why.first = first
		}
		why.nodes += nodes
		switch {
		case nearest < 0, j.ranks[at.what] > j.ranks[best.what]:
		case j.ranks[at.what] < j.ranks[best.what], at.score < best.score:
			return
		case at.score == best.score && !j.Before(first, nearest):
			return
		}
		nearest, best = first, *at
	}
	c.index.Each(&kind, func(first, nodes int, at *worth, _ bool) { consider(first, nodes, at) })
	for _, n := range own {
		consider(n.node, 1, &worth{what: lackUnknown})
	}
	alone := func(node int) Decision { return e.decide(&Snapshot{Nodes: c.nodes[node : node+1 : node+1]}, r, true) }
	d = alone(nearest)
	if d.Placed || len(d.Faults) > 0 || d.Refusal.Code == CodeRuntimeMissing {
		return d, false // the sentence of the last names every node
	}
	d.Refusal.Counts = nil
	for code, why := range reasons {
		if why.nodes == 0 {
			continue
		}
		one := alone(why.first)
		if one.Placed || len(one.Refusal.Counts) != 1 {
			return d, false
		}
		d.Refusal.Counts = append(d.Refusal.Counts, ReasonCount{Code: j.named[code], Nodes: why.nodes, Example: one.Refusal.Counts[0].Example})
	}
	sortCounts(d.Refusal.Counts)
	if d.Refusal.Never = never(c.catalogNow(), r, d.Refusal); d.Refusal.Never || c.auto == 0 {
		return d, true
	}
	e.orSwitch(c.snapshot(), r, &d)
	return d, true
}

// kind names requests that every node serves alike, but for the tenant's own.
func (c *Cluster) kind(r *Request) string {
	key := kindOf(c.key[:0], r)
	if c.owned > 0 && c.named[r.Tenant] { // otherwise tenants are alike, however many there are
		key = text(key, r.Tenant)
	}
	return string(key)
}

// kindOf adds all of a request that decides where it goes: what is asked for, and not who asks.
func kindOf(key []byte, r *Request) []byte {
	key = texts(text(key, r.NodePool), r.Datacenters)
	key = truth(key, r.DistinctHosts)
	g := &r.Groups[0]
	for _, amount := range []int{g.CPUMHz, g.MemoryMiB, g.DiskMiB, len(g.Constraints), len(g.Tasks)} {
		key = binary.AppendVarint(key, int64(amount))
	}
	for _, c := range g.Constraints {
		key = text(text(text(key, c.L), c.R), c.Operand)
	}
	for i := range g.Tasks {
		t := &g.Tasks[i]
		key = truth(text(text(key, t.Driver), t.Runtime), t.Ask != nil)
		if t.Ask == nil {
			continue
		}
		key = binary.AppendUvarint(key, t.Ask.MemoryMiB)
		key = binary.AppendVarint(binary.AppendVarint(key, int64(t.Ask.Count)), int64(t.Ask.ComputePct))
		key = texts(text(key, string(t.Ask.QoS)), t.Ask.Models)
		key = binary.AppendUvarint(key, uint64(len(t.Ask.Vendors)))
		for _, v := range t.Ask.Vendors {
			key = text(key, string(v))
		}
	}
	return key
}

func texts(key []byte, list []string) []byte {
	key = binary.AppendUvarint(key, uint64(len(list)))
	for _, s := range list {
		key = text(key, s)
	}
	return key
}

// Impersonal is a plugin that tells nodes apart by what they are like and by nothing that names them or their cards: ids,
// names, UUIDs, the order of pools. Nor does it look at who asks: the job, its namespace and priority. Of the tenant it may
// tell only whether a node serves it and whether a card is held by others. It is asked once for all nodes that are alike,
// whoever asks for the same; other plugins are asked for each node each time.
type Impersonal interface {
	Plugin
	// Attributes are the keys of Node.Attrs that it looks at; none when empty.
	Attributes() []string
}

// anybody is embedded by the built-in plugins.
type anybody struct{}

func (anybody) Attributes() []string { return nil }

// know notes what a plugin looks at.
func (e *Engine) know(p Plugin) {
	if i, ok := p.(Impersonal); ok {
		e.attributes = append(slices.Clip(e.attributes), i.Attributes()...)
	} else {
		e.impersonal = false
	}
}
