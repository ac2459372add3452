package engine

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/gang"
	"github.com/heteroflow/heteroflow/placement-service/engine/links"
)

// GangAsk is how near each other the members of a gang are to be. All of them are placed, or none; of an elastic gang as
// many as there is room for, and none when those are fewer than Min.
type GangAsk struct {
	// Level is zone, rack or switch, by the nodes' meta of that name, or node or part; none when empty.
	Level string    `json:"level,omitempty"`
	Mode  gang.Mode `json:"mode,omitempty"`
	// Min makes the gang elastic: the fewest members that may run, of the Count of its one group; 0 stands for all.
	Min int `json:"min,omitempty"`
}

// Member is one allocation of a placed gang.
type Member struct {
	Group  string `json:"group"`
	NodeID string `json:"node_id"`
}

// gangLevels are the levels above a node, outermost first. A node says in its meta in which domain of each it lies; one
// that does not is in a domain of its own.
var gangLevels = []string{"zone", "rack", "switch"}

// decideGang places the groups of the gang first, since they fit in the fewest places, then the others.
func (w *work) decideGang() Decision {
	plans := make([]GroupPlan, len(w.req.Groups))
	var scores []Score
	members, rest := w.gangGroups()
	order, refusal := w.gang(members, plans, &scores)
	if refusal != nil {
		return Decision{Refusal: refusal}
	}
	for _, i := range rest {
		plan, refusal := w.group(&w.req.Groups[i])
		if refusal != nil {
			return Decision{Refusal: refusal}
		}
		plans[i] = plan
		scores = append(scores, w.scores...)
	}
	return Decision{Placed: true, Groups: plans, Gang: order, Scores: scores}
}

// decideElastic places as many members of an elastic gang as there is room for, and says why not even the fewest fit.
func (w *work) decideElastic() Decision {
	e, s, r := w.e, w.snap, w.req
	at := slices.IndexFunc(r.Groups, func(g GroupAsk) bool { return g.Gang })
	with := func(members int) Decision {
		q := *r
		q.Groups = slices.Clone(r.Groups)
		q.Groups[at].Count = members
		w.reset(e, s, &q)
		return w.decideGang()
	}
	all, say := r.Groups[at].Count, w.say
	w.say = false
	best := with(all)
	if best.Placed {
		return best
	}
	w.say = say
	if best = with(r.Gang.Min); !best.Placed {
		return best
	}
	w.say = false
	for least, most := r.Gang.Min, all; most-least > 1; { // least fit, most do not
		middle := (least + most) / 2
		if d := with(middle); d.Placed {
			best, least = d, middle
		} else {
			most = middle
		}
	}
	return best
}

// elastic reports whether the request's gang may run with fewer members than its group's count.
func (r *Request) elastic() bool {
	return r.Gang != nil && r.Gang.Min > 0 && slices.ContainsFunc(r.Groups, func(g GroupAsk) bool { return g.Gang && g.Count > r.Gang.Min })
}

// gangGroups are the numbers of the groups of the gang, in their order, and of the others.
func (w *work) gangGroups() (members, rest []int) {
	for _, i := range byHardness(w.req.Groups) {
		if !w.req.Groups[i].Gang {
			rest = append(rest, i)
		}
	}
	for i := range w.req.Groups {
		if w.req.Groups[i].Gang {
			members = append(members, i)
		}
	}
	return members, rest
}

// gang places the members. Where they are alike and take whole cards it is by topology; where they are not, or some of
// them run already, each group is placed like any other, and still all or none.
func (w *work) gang(groups []int, plans []GroupPlan, scores *[]Score) ([]Member, *Refusal) {
	total := 0
	for _, i := range groups {
		total += w.req.Groups[i].Count
	}
	if total > 0 && w.alike(groups) {
		w.begin(&w.req.Groups[groups[0]])
		if fleets := w.fleets(); len(fleets) > 0 {
			return w.gangByTopology(fleets, groups, total, plans, scores)
		}
	}
	near := w.nearRunning(groups)
	for try, only := range near {
		w.only = only
		order, refusal := w.gangByGroup(groups, total, plans, scores)
		w.only = nil
		if refusal == nil || try == len(near)-1 {
			return order, refusal
		}
		w.reset(w.e, w.snap, w.req)
		*scores = nil
	}
	return nil, nil // near is never empty
}

// gangByGroup places each group like any other.
func (w *work) gangByGroup(groups []int, total int, plans []GroupPlan, scores *[]Score) ([]Member, *Refusal) {
	var order []Member
	placed := 0
	for _, i := range groups {
		g := &w.req.Groups[i]
		plan, refusal := w.group(g)
		if refusal != nil {
			if w.say {
				w.incomplete(refusal, placed+len(w.bound), total, "")
			}
			return nil, refusal
		}
		plans[i] = plan
		*scores = append(*scores, w.scores...)
		for _, p := range plan.Placements {
			order = append(order, Member{Group: g.Name, NodeID: p.NodeID})
		}
		placed += g.Count
	}
	return order, nil
}

// nearRunning are the nodes on which to look for members that are missing, the nearest to those that run first: the domains
// that they are in, from the innermost out, and no farther than the level that the gang requires. Nil is all nodes.
func (w *work) nearRunning(groups []int) []func(int) bool {
	var running []*Node
	for _, i := range groups {
		if keep := w.req.Groups[i].Keep; keep != nil {
			for _, p := range keep.Placements {
				if at := slices.IndexFunc(w.snap.Nodes, func(n Node) bool { return n.ID == p.NodeID }); at >= 0 {
					running = append(running, &w.snap.Nodes[at])
				}
			}
		}
	}
	if len(running) == 0 {
		return []func(int) bool{nil}
	}
	required := w.req.Gang.Mode == gang.Required
	if required && (w.req.Gang.Level == gang.LevelNode || w.req.Gang.Level == gang.LevelPart) {
		return []func(int) bool{func(i int) bool {
			return slices.ContainsFunc(running, func(n *Node) bool { return n.ID == w.snap.Nodes[i].ID })
		}}
	}
	var out []func(int) bool
	for at, level := range slices.Backward(gangLevels) {
		out = append(out, func(i int) bool {
			return slices.ContainsFunc(running, func(n *Node) bool { return together(n, &w.snap.Nodes[i], at) })
		})
		if required && level == w.req.Gang.Level {
			return out
		}
	}
	return append(out, nil)
}

// together reports whether two nodes lie in one domain of a level, and of all levels around it.
func together(a, b *Node, level int) bool {
	for _, around := range gangLevels[:level+1] {
		key := "meta." + around
		if a.Attrs[key] != b.Attrs[key] {
			return false
		}
	}
	return a.Attrs["meta."+gangLevels[level]] != "" || a.ID == b.ID
}

// alike reports whether all members ask for the same whole cards of one task, and none of them runs.
func (w *work) alike(groups []int) bool {
	var first GroupAsk
	for k, i := range groups {
		g := w.req.Groups[i]
		if g.asking() != 1 || g.Keep != nil && len(g.Keep.Placements) > 0 || len(g.Apart)+len(g.Spread) > 0 {
			return false
		}
		g.Name, g.Count, g.Keep = "", 0, nil
		g.Tasks = slices.Clone(g.Tasks)
		for t := range g.Tasks {
			if g.Tasks[t].Ask != nil && !g.Tasks[t].Ask.Whole() {
				return false
			}
			g.Tasks[t].Name = ""
		}
		if k == 0 {
			first = g
		} else if !reflect.DeepEqual(first, g) {
			return false
		}
	}
	return true
}

// fleet is the cards of one model as a gang sees them.
type fleet struct {
	cluster *gang.Cluster
	model   *Pool
	nodes   []int       // numbers in the snapshot
	pools   []int       // of each node
	parts   [][]uint16  // cards of each part of each node's pool, as a set; nil for one part of which the cards do not matter
	levels  []string    // that some node is in
	free    []links.Set // of each node's pool; 0 where the cards do not matter
}

// gangByTopology places members of one kind: the model that holds all of them in the fewest nodes, in the order in which the
// ask names models.
func (w *work) gangByTopology(fleets []*fleet, groups []int, total int, plans []GroupPlan, scores *[]Score) ([]Member, *Refusal) {
	ask := w.gangAsk(total)
	var best *fleet
	var slots []gang.Slot
	var short *gang.Short
	var nearest *fleet
	spread := 0
	for _, f := range fleets {
		if err := f.cluster.Check(ask); err != nil {
			return nil, w.noLevel(f, err)
		}
		a := ask
		a.Limit = w.limit(f)
		got, lacks := f.cluster.Place(a)
		if got == nil {
			if short == nil || lacks.Room > short.Room {
				short, nearest = lacks, f
			}
			continue
		}
		if n := nodesOf(got); best == nil || n < spread {
			best, slots, spread = f, got, n
		}
	}
	if best == nil {
		return nil, w.gangRefusal(nearest, short, ask, total)
	}
	w.apart = spread > 1
	var order []Member
	next := 0
	for _, i := range groups {
		g := &w.req.Groups[i]
		if i != groups[0] {
			w.beginAlike(g)
		}
		items := w.wholeItems()
		for range g.Count {
			if !w.bindMember(best, &slots[next], items) {
				return nil, w.contested(g, next, total)
			}
			order = append(order, Member{Group: g.Name, NodeID: w.snap.Nodes[best.nodes[slots[next].Node]].ID})
			next++
		}
		plans[i] = w.plan(nil)
		*scores = append(*scores, w.scores...)
	}
	w.within, w.apart = 0, false
	return order, nil
}

// beginAlike begins a group that asks for the same as the one before: what was found of nodes and pools holds for it too.
func (w *work) beginAlike(g *GroupAsk) {
	w.ask = g
	w.tasks = w.tasks[:0]
	for i := range g.Tasks {
		if g.Tasks[i].Ask != nil {
			w.tasks = append(w.tasks, &g.Tasks[i])
		}
	}
	w.domains.begin(w.snap, g)
	w.here = resize(w.here, len(w.snap.Nodes))
	w.bound, w.scores = w.bound[:0], w.scores[:0]
}

// gangAsk is the ask in the words of package gang.
func (w *work) gangAsk(members int) gang.Ask {
	return gang.Ask{Members: members, Cards: w.tasks[0].Ask.Count, Level: w.req.Gang.Level, Mode: w.req.Gang.Mode}
}

// fleets are the models that serve the members, in the order in which the ask names them, then by name.
func (w *work) fleets() []*fleet {
	var out []*fleet
	for _, n := range w.open {
		for p := w.first[n]; p < w.first[n+1]; p++ {
			pool := w.pool(n, p)
			if w.why[0][p] != "" || pool.Form != accel.Whole {
				continue
			}
			at, known := slices.BinarySearchFunc(out, pool, func(f *fleet, pool *Pool) int { return compareModels(f.model, pool) })
			if !known {
				out = slices.Insert(out, at, &fleet{model: pool})
			}
			f := out[at]
			if last := len(f.nodes) - 1; last >= 0 && f.nodes[last] == n { // two pools of one model: the one with more free
				if w.free(n, p) <= w.free(n, f.pools[last]) {
					continue
				}
				f.nodes, f.pools = f.nodes[:last], f.pools[:last]
			}
			f.nodes, f.pools = append(f.nodes, n), append(f.pools, p)
		}
	}
	for _, f := range out {
		w.lay(f)
	}
	slices.SortStableFunc(out, func(a, b *fleet) int { return cmp.Compare(w.wish(a.model), w.wish(b.model)) })
	return out
}

// wish is the place of a model in the ask's list.
func (w *work) wish(p *Pool) int {
	ask := w.tasks[0].Ask
	for i, pattern := range ask.Models {
		if one := (&accel.Ask{Models: []string{pattern}}); one.AcceptsModel(p.Model) {
			return i
		}
	}
	return len(ask.Models)
}

// lay makes the gang's cluster of a fleet.
func (w *work) lay(f *fleet) {
	for _, level := range gangLevels {
		if slices.ContainsFunc(f.nodes, func(n int) bool { return w.snap.Nodes[n].Attrs["meta."+level] != "" }) {
			f.levels = append(f.levels, level)
		}
	}
	nodes := make([]gang.Node, len(f.nodes))
	f.parts, f.free = make([][]uint16, len(nodes)), make([]links.Set, len(nodes))
	for i, n := range f.nodes {
		node := &w.snap.Nodes[n]
		nodes[i] = gang.Node{ID: node.ID, Path: make([]string, len(f.levels))}
		for k, level := range f.levels {
			nodes[i].Path[k] = cmp.Or(node.Attrs["meta."+level], "node "+node.ID)
		}
		w.divide(f, i, &nodes[i])
	}
	f.cluster, _ = gang.New(f.levels, nodes) // each node has a domain for each level, and parts that can be
}

// divide cuts the cards of a node into its parts.
func (w *work) divide(f *fleet, i int, node *gang.Node) {
	n, p := f.nodes[i], f.pools[i]
	pool, free := w.pool(n, p), max(0, w.free(n, p))
	box := w.box(pool)
	if box == nil {
		node.Parts, node.Free = []int{min(255, max(pool.Total, free))}, []int{min(255, free)}
		return
	}
	set := w.freeCards(n, p)
	parts := box.Parts()
	if len(parts) > gang.MaxParts {
		parts = []links.Set{box.All()}
	}
	f.free[i] = set
	for _, part := range parts {
		f.parts[i] = append(f.parts[i], uint16(part))
		node.Parts, node.Free = append(node.Parts, part.Len()), append(node.Free, (part&set).Len())
	}
	for over := set.Len() - free; over > 0; over-- { // reserved, and not seen as allocations yet: nobody knows which
		most := 0
		for k := range node.Free {
			if node.Free[k] > 0 && (node.Free[most] == 0 || node.Free[k] < node.Free[most]) {
				most = k
			}
		}
		node.Free[most]--
	}
}

// limit is how many members a node takes beside its cards.
func (w *work) limit(f *fleet) func(int) int {
	items := w.wholeItems()
	return func(i int) int {
		n := f.nodes[i]
		node := &w.snap.Nodes[n]
		most := 1 << 20
		fit := func(free, each int) {
			if each > 0 {
				most = min(most, max(0, free/each))
			}
		}
		fit(node.CPUMHz-node.UsedCPUMHz-w.cpu[n], w.ask.CPUMHz)
		fit(node.MemoryMiB-node.UsedMemoryMiB-w.memory[n], w.ask.MemoryMiB)
		if node.DiskMiB > 0 {
			fit(node.DiskMiB-node.UsedDiskMiB-w.disk[n], w.ask.DiskMiB)
		}
		if w.ask.DistinctHosts || w.req.DistinctHosts {
			most = min(most, 1)
		}
		if most > 0 && w.free(n, f.pools[i]) >= items[0].option.units && w.hasRoom(n, f.pools[i], items[0], 1) == nil {
			return 0 // a plugin is against it
		}
		return most
	}
}

// wholeItems is the one device block of a member: cards of one pool.
func (w *work) wholeItems() []item {
	ask := w.tasks[0].Ask
	w.items = append(w.items[:0], item{0, 0, &option{blocks: 1, units: ask.Count, form: accel.Whole}})
	return w.items
}

// bindMember books the slot of a member.
func (w *work) bindMember(f *fleet, s *gang.Slot, items []item) bool {
	n, p := f.nodes[s.Node], f.pools[s.Node]
	if w.free(n, p) < items[0].option.units {
		return false
	}
	w.within = 0
	for k, cards := range f.parts[s.Node] {
		if s.Parts[k] > 0 {
			w.within |= links.Set(cards)
		}
	}
	if (w.within & w.freeCards(n, p)).Len() < items[0].option.units {
		w.within = 0
	}
	w.picks, w.trying, w.trialled = append(w.picks[:0], p), items, 0
	w.bind(n, items)
	return true
}

func nodesOf(slots []gang.Slot) int {
	seen := map[int]bool{}
	for i := range slots {
		seen[slots[i].Node] = true
	}
	return len(seen)
}

// noLevel refuses a gang whose level no node knows. It waits, since nodes may come that do.
func (w *work) noLevel(f *fleet, err error) *Refusal {
	r := &Refusal{Code: CodeGangLevel, Group: w.ask.Name, Sentence: err.Error()}
	if level := w.req.Gang.Level; slices.Contains(gangLevels, level) && !slices.Contains(f.levels, level) {
		r.Sentence = fmt.Sprintf("the gang asks for one %s, and no node with cards for it says in which it lies: write %s = \"…\" into the meta of the nodes, or another level into the gang block", level, level)
	}
	return r
}

// contested refuses a gang for which something changed while it was placed, which cannot be on one snapshot.
func (w *work) contested(g *GroupAsk, placed, total int) *Refusal {
	r := &Refusal{Code: CodeGangIncomplete, Group: g.Name}
	w.incomplete(r, placed, total, "")
	return r
}

// gangRefusal says how many members would fit, and why the next does not.
func (w *work) gangRefusal(f *fleet, short *gang.Short, ask gang.Ask, total int) *Refusal {
	if !w.say {
		return &Refusal{}
	}
	booked := ask
	booked.Members, booked.Min, booked.Mode, booked.Level, booked.Limit = short.Room, 0, gang.Preferred, "", w.limit(f)
	if short.Room > 0 {
		slots, _ := f.cluster.Place(booked)
		items := w.wholeItems()
		for i := range slots {
			w.bindMember(f, &slots[i], items)
		}
	}
	r := w.explain()
	where := ""
	if ask.Mode == gang.Required {
		where = " in one " + ask.Level
		if short.Domain != "" {
			where += "; best is " + short.Domain
		}
	}
	w.incomplete(r, short.Room, total, where)
	return r
}

// incomplete turns a refusal of one member into that of the gang.
func (w *work) incomplete(r *Refusal, room, total int, where string) {
	for i := range r.Counts { // they have room, for too few or in another domain
		if r.Counts[i].Code == CodeOneSpec {
			r.Counts[i].Code = CodeGangIncomplete
		}
	}
	each := ""
	if len(w.tasks) > 0 {
		each = " with " + need(w.tasks[0].Ask) + " each"
	}
	if room == 0 && where == "" {
		r.Sentence = fmt.Sprintf("the gang needs %d members%s, and none fits now: %s", total, each, r.Sentence)
	} else {
		r.Code = CodeGangIncomplete
		r.Sentence = fmt.Sprintf("the gang needs %d members%s%s; %d fit now: %d short", total, each, where, room, total-room)
	}
	r.Need = fmt.Sprintf("%d members%s", total, each)
	r.Best = fmt.Sprintf("room for %d", room)
	r.Gap = fmt.Sprintf("%d short", total-room)
}

// gang tries the gang without its level.
func (t *trial) gang() {
	g := t.r.Gang
	if g == nil || g.Level == "" {
		return
	}
	if r, _, ok := t.starts(func(r *Request) { r.Gang = &GangAsk{Min: g.Min} }); ok {
		t.add(Suggestion{Field: "level", From: g.Level, To: "none", loss: 0.25}, r)
	}
}

// neverGang reports whether a gang has more members than all cards of the cluster together would serve, and then says so.
func neverGang(c Catalog, r *Request, refusal *Refusal) bool {
	if r.Gang == nil {
		return false
	}
	var most, want int
	var first *GroupAsk
	for i := range r.Groups {
		g := &r.Groups[i]
		if !g.Gang || g.asking() != 1 {
			continue
		}
		for t := range g.Tasks {
			if a := g.Tasks[t].Ask; a != nil && a.Whole() {
				members := g.Count
				if r.elastic() {
					members = r.Gang.Min
				}
				if want += a.Count * members; first == nil {
					first = g
					for _, m := range c.Models {
						if a.Accepts(m.Vendor, m.Model) {
							most += m.Cards
						}
					}
				}
			}
		}
	}
	if first == nil || want <= most {
		return false
	}
	refusal.Code, refusal.Group, refusal.Sentence = CodeCount, first.Name,
		fmt.Sprintf("the gang needs %d cards, but the cluster has %d that would do: write fewer members, or fewer cards for each", want, most)
	return true
}
