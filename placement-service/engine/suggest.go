package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Suggestion is one change of a request with which it would start now: it was tried.
type Suggestion struct {
	Field    string  `json:"field"` // of the job: memory, compute, qos, model, vendor, count of cards, …
	Group    string  `json:"group,omitempty"`
	Task     string  `json:"task,omitempty"`
	From     string  `json:"from"`
	To       string  `json:"to"`
	Sentence string  `json:"sentence"` // for people
	Request  Request `json:"-"`        // as it was tried

	loss float64 // how much of what was asked for is given up, 0–1
}

// maxSuggestions is how many are worth reading.
const maxSuggestions = 3

// Suggest lists the changes of a refused request with which it would start now, the smallest first: one field of one
// group or task, each as little as does it. Nothing helps when the list is empty. What is given up of an amount is
// counted by its part; a rule that is given up counts as a quarter, isolation as a third for each step.
func (e *Engine) Suggest(s Snapshot, r Request) []Suggestion {
	if r.Loose != "" || len(s.Nodes) == 0 {
		return nil
	}
	d := e.decide(&s, &r, true)
	if d.Placed || d.Refusal.Code == CodePluginFailed {
		return nil
	}
	t := trial{e: e, s: &s, r: r, codes: map[Code]bool{}}
	for _, c := range d.Refusal.Counts {
		t.codes[c.Code] = true
	}
	for i := range r.Groups {
		if d.Refusal.Group == "" || r.Groups[i].Name == d.Refusal.Group {
			t.group(i)
		}
	}
	t.rules()
	t.gang()
	slices.SortStableFunc(t.found, func(a, b Suggestion) int { return cmp.Compare(a.loss, b.loss) })
	return t.found[:min(len(t.found), maxSuggestions)]
}

// trial tries changes of one request.
type trial struct {
	e     *Engine
	s     *Snapshot
	r     Request
	codes map[Code]bool // why nodes fell out
	found []Suggestion
}

// starts reports whether the request fits after the change, and gives both.
func (t *trial) starts(change func(*Request)) (Request, Decision, bool) {
	r := t.r
	r.Groups = slices.Clone(r.Groups)
	for i := range r.Groups {
		g := &r.Groups[i]
		g.Constraints, g.Tasks = slices.Clone(g.Constraints), slices.Clone(g.Tasks)
		for j := range g.Tasks {
			if ask := g.Tasks[j].Ask; ask != nil {
				g.Tasks[j].Ask = new(*ask)
			}
		}
	}
	change(&r)
	d := t.e.decide(t.s, &r, false)
	return r, d, d.Placed
}

func (t *trial) add(sg Suggestion, r Request) {
	sg.Request = r
	var b strings.Builder
	fmt.Fprintf(&b, "it would start now with %s = %s instead of %s", sg.Field, sg.To, sg.From)
	switch {
	case sg.Task != "":
		fmt.Fprintf(&b, " in task %s", sg.Task)
	case sg.Group != "":
		fmt.Fprintf(&b, " in group %s", sg.Group)
	}
	sg.Sentence = b.String()
	t.found = append(t.found, sg)
}

// most finds the largest of the amounts with which the request starts; they are tried from the largest, and in halves
// when there are many.
func (t *trial) most(amounts []uint64, set func(*Request, uint64)) (uint64, Request, bool) {
	var best uint64
	var with Request
	found := false
	slices.Sort(amounts)
	amounts = slices.Compact(amounts)
	for lo, hi := 0, len(amounts); lo < hi; {
		mid := (lo + hi) / 2
		if r, _, ok := t.starts(func(r *Request) { set(r, amounts[mid]) }); ok {
			best, with, found, lo = amounts[mid], r, true, mid+1
		} else {
			hi = mid
		}
	}
	return best, with, found
}

// below lists the amounts from 1 to less than n.
func below(n int) []uint64 {
	var out []uint64
	for v := 1; v < n; v++ {
		out = append(out, uint64(v))
	}
	return out
}

func part(to, from uint64) float64 { return 1 - float64(to)/float64(max(1, from)) }

// group tries the fields of one group and of its tasks.
func (t *trial) group(g int) {
	ask := &t.r.Groups[g]
	for i := range ask.Tasks {
		if ask.Tasks[i].Ask != nil {
			t.task(g, i)
		}
	}
	if to, r, ok := t.most(below(ask.Count), func(r *Request, n uint64) { r.Groups[g].Count = int(n) }); ok {
		t.add(Suggestion{Field: "count", Group: ask.Name, From: fmt.Sprint(ask.Count), To: fmt.Sprint(to), loss: part(to, uint64(ask.Count))}, r)
	}
	for _, f := range []struct {
		field string
		code  Code
		asked int
		free  func(*Node) int
		set   func(*GroupAsk, int)
	}{
		{"cpu", CodeCPU, ask.CPUMHz, func(n *Node) int { return n.CPUMHz - n.UsedCPUMHz }, func(g *GroupAsk, v int) { g.CPUMHz = v }},
		{"memory of the node", CodeNodeMemory, ask.MemoryMiB, func(n *Node) int { return n.MemoryMiB - n.UsedMemoryMiB }, func(g *GroupAsk, v int) { g.MemoryMiB = v }},
		{"ephemeral disk", CodeDisk, ask.DiskMiB, func(n *Node) int { return n.DiskMiB - n.UsedDiskMiB }, func(g *GroupAsk, v int) { g.DiskMiB = v }},
	} {
		if !t.codes[f.code] {
			continue
		}
		var amounts []uint64
		for i := range t.s.Nodes {
			if v := f.free(&t.s.Nodes[i]); v > 0 && v < f.asked {
				amounts = append(amounts, uint64(v))
			}
		}
		if to, r, ok := t.most(amounts, func(r *Request, v uint64) { f.set(&r.Groups[g], int(v)) }); ok {
			t.add(Suggestion{Field: f.field, Group: ask.Name, From: fmt.Sprint(f.asked), To: fmt.Sprint(to), loss: part(to, uint64(f.asked))}, r)
		}
	}
	if ask.DistinctHosts && t.codes[CodeDistinctHosts] {
		if r, _, ok := t.starts(func(r *Request) { r.Groups[g].DistinctHosts = false }); ok {
			t.add(Suggestion{Field: "distinct_hosts", Group: ask.Name, From: "true", To: "false", loss: 0.25}, r)
		}
	}
	for i, c := range ask.Constraints {
		if !t.codes[CodeConstraint] {
			break
		}
		r, _, ok := t.starts(func(r *Request) { r.Groups[g].Constraints = slices.Delete(r.Groups[g].Constraints, i, i+1) })
		if ok {
			t.add(Suggestion{Field: "constraint", Group: ask.Name, From: strings.TrimSpace(c.L + " " + c.Operand + " " + c.R), To: "none", loss: 0.25}, r)
		}
	}
}

// task tries the fields of one ask.
func (t *trial) task(g, i int) {
	name, ask := t.r.Groups[g].Tasks[i].Name, t.r.Groups[g].Tasks[i].Ask
	of := func(r *Request) *accel.Ask { return r.Groups[g].Tasks[i].Ask }
	add := func(field, from, to string, loss float64, r Request) {
		t.add(Suggestion{Field: field, Group: t.r.Groups[g].Name, Task: name, From: from, To: to, loss: loss}, r)
	}
	if to, r, ok := t.most(below(ask.Count), func(r *Request, n uint64) { of(r).Count = int(n) }); ok {
		add("cards", fmt.Sprint(ask.Count), fmt.Sprint(to), part(to, uint64(ask.Count)), r)
	}
	if !ask.Whole() && t.codes[CodeMemory] {
		if to, r, ok := t.most(t.sizes(ask), func(r *Request, mib uint64) { of(r).MemoryMiB = mib }); ok {
			add("memory", accel.FormatMiB(ask.MemoryMiB), accel.FormatMiB(to), part(to, ask.MemoryMiB), r)
		}
	}
	if ask.ComputePct > 10 {
		amounts := []uint64{10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90}
		amounts = slices.DeleteFunc(amounts, func(v uint64) bool { return v >= uint64(ask.ComputePct) })
		if to, r, ok := t.most(amounts, func(r *Request, pct uint64) { of(r).ComputePct = int(pct) }); ok {
			add("compute", fmt.Sprint(ask.ComputePct), fmt.Sprint(to), part(to, uint64(ask.ComputePct)), r)
		}
	}
	if t.codes[CodeQoS] || t.codes[CodeForm] {
		for step, q := range weaker(ask.QoS) {
			if r, _, ok := t.starts(func(r *Request) { of(r).QoS = q }); ok {
				add("qos", string(ask.QoS), string(q), float64(step+1)/3, r)
				break
			}
		}
	}
	if len(ask.Models) > 0 && t.codes[CodeModel] {
		if r, d, ok := t.starts(func(r *Request) { of(r).Models = nil }); ok {
			add("model", strings.Join(ask.Models, " or "), t.taken(d, name, func(p *Pool) string { return p.Model }), 0.25, r)
		}
	}
	if len(ask.Vendors) > 0 && t.codes[CodeBrand] {
		if r, d, ok := t.starts(func(r *Request) { of(r).Vendors = nil }); ok {
			var names []string
			for _, v := range ask.Vendors {
				names = append(names, string(v))
			}
			add("vendor", strings.Join(names, " or "), t.taken(d, name, func(p *Pool) string { return string(p.Vendor) }), 0.25, r)
		}
	}
}

// sizes are the amounts that are free on shared cards, whole GiB where that is less than a hundredth off.
func (t *trial) sizes(ask *accel.Ask) []uint64 {
	var out []uint64
	for i := range t.s.Nodes {
		for j := range t.s.Nodes[i].Pools {
			mib := t.s.Nodes[i].Pools[j].FreeMiB()
			if round := mib / 1024 * 1024; mib-round < mib/100 {
				mib = round
			}
			if mib > 0 && mib < ask.MemoryMiB {
				out = append(out, mib)
			}
		}
	}
	return out
}

// weaker lists the qualities below one, the next first.
func weaker(q accel.QoS) []accel.QoS {
	switch q {
	case accel.Gold:
		return []accel.QoS{accel.Silver, accel.Bronze}
	case accel.Silver:
		return []accel.QoS{accel.Bronze}
	}
	return nil
}

// taken names what a task was given.
func (t *trial) taken(d Decision, task string, of func(*Pool) string) string {
	var names []string
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			at := slices.IndexFunc(t.s.Nodes, func(n Node) bool { return n.ID == p.NodeID })
			for _, tp := range p.Tasks {
				for _, c := range tp.Claims {
					for j := range t.s.Nodes[at].Pools {
						if pool := &t.s.Nodes[at].Pools[j]; tp.Task == task && pool.Group == c.Group && !slices.Contains(names, of(pool)) {
							names = append(names, of(pool))
						}
					}
				}
			}
		}
	}
	return strings.Join(names, " or ")
}

// rules tries what holds for the whole job.
func (t *trial) rules() {
	if t.codes[CodeDatacenter] {
		if r, _, ok := t.starts(func(r *Request) { r.Datacenters = nil }); ok {
			t.add(Suggestion{Field: "datacenters", From: strings.Join(t.r.Datacenters, ", "), To: "*", loss: 0.25}, r)
		}
	}
	if t.codes[CodeNodePool] {
		if r, _, ok := t.starts(func(r *Request) { r.NodePool = "all" }); ok {
			t.add(Suggestion{Field: "node_pool", From: cmp.Or(t.r.NodePool, "default"), To: "all", loss: 0.25}, r)
		}
	}
	if t.r.DistinctHosts && t.codes[CodeDistinctHosts] {
		if r, _, ok := t.starts(func(r *Request) { r.DistinctHosts = false }); ok {
			t.add(Suggestion{Field: "distinct_hosts", From: "true", To: "false", loss: 0.25}, r)
		}
	}
}
