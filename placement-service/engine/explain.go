package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// lack is why the next allocation of the group does not fit on one node.
type lack struct {
	code Code
	node int
	task int   // index in tasks of the one that does not fit; -1 when it is not a task's matter
	pool *Pool // the best of the node; nil when none comes near
	have int   // MiB, MHz or cards that are free, by code
}

// explain says why the next allocation of the group does not fit: a count of nodes for each reason, and a sentence
// about the node that comes nearest.
func (w *work) explain() *Refusal {
	var best lack
	counts := map[Code]*ReasonCount{}
	for i := range w.snap.Nodes {
		l := w.nodeLack(i)
		if i == 0 || nearer(w, l, best) {
			best = l
		}
		if c := counts[l.code]; c == nil {
			counts[l.code] = &ReasonCount{Code: l.code, Nodes: 1, Example: w.example(l)}
		} else {
			c.Nodes++
		}
	}
	r := &Refusal{Code: best.code, Group: w.ask.Name}
	for _, c := range counts {
		r.Counts = append(r.Counts, *c)
	}
	sortCounts(r.Counts)
	task := max(0, best.task)
	if len(w.tasks) > 0 {
		r.Task = w.tasks[task].Name
	}
	w.tell(r, best, task)
	return r
}

// sortCounts puts reasons in the order of the checks.
func sortCounts(counts []ReasonCount) {
	slices.SortFunc(counts, func(a, b ReasonCount) int {
		return cmp.Or(cmp.Compare(rank(a.Code), rank(b.Code)), cmp.Compare(a.Code, b.Code))
	})
}

// nearer orders lacks: the later reason, then the one with more, then the lower node id.
func nearer(w *work, a, b lack) bool {
	return cmp.Or(
		cmp.Compare(rank(a.code), rank(b.code)),
		cmp.Compare(a.have, b.have),
		cmp.Compare(w.snap.Nodes[b.node].ID, w.snap.Nodes[a.node].ID),
	) > 0
}

// nodeLack finds the reason of one node, in the order of the checks.
func (w *work) nodeLack(i int) lack {
	n := &w.snap.Nodes[i]
	if code := w.nodeCode(i); code != "" {
		return lack{code: code, node: i, task: -1}
	}
	if len(n.Pools) == 0 {
		return lack{code: CodeNoCards, node: i, task: -1}
	}
	return w.roomLack(i)
}

// roomLack finds the reason of a node that the job may use.
func (w *work) roomLack(i int) lack {
	n := &w.snap.Nodes[i]
	for t := range w.tasks {
		if l := w.taskLack(i, t); l.code != "" {
			return l
		}
	}
	free := lack{node: i, task: -1}
	switch cpu, memory := n.CPUMHz-n.UsedCPUMHz-w.cpu[i], n.MemoryMiB-n.UsedMemoryMiB-w.memory[i]; {
	case cpu < w.ask.CPUMHz:
		free.code, free.have = CodeCPU, cpu
	case memory < w.ask.MemoryMiB:
		free.code, free.have = CodeNodeMemory, memory
	case n.DiskMiB > 0 && n.DiskMiB-n.UsedDiskMiB-w.disk[i] < w.ask.DiskMiB:
		free.code, free.have = CodeDisk, n.DiskMiB-n.UsedDiskMiB-w.disk[i]
	case w.here[i] > 0 && w.ask.DistinctHosts || w.jobHere[i] > 0 && w.req.DistinctHosts:
		free.code = CodeDistinctHosts
	case w.domains.full(i, 1):
		free.code = CodeAntiAffinity
	case len(w.tasks) > 1:
		free.code = CodeOneNode
	default:
		free.code = CodeOneSpec
	}
	return free
}

// taskLack finds why a task finds no cards on a node; its code is empty when it does.
func (w *work) taskLack(node, t int) lack {
	ask := w.tasks[t].Ask
	l := lack{node: node, task: t, code: CodeBrand, have: -1}
	most, all := 0, 0 // cards that would do, of one kind and of all
	for p := w.first[node]; p < w.first[node+1]; p++ {
		pool := w.pool(node, p)
		if code := w.why[t][p]; code != "" {
			l.better(code, pool, -1)
			continue
		}
		if !ask.Whole() && w.strange(node, p) {
			l.better(CodeShareTenant, pool, -1)
			continue
		}
		if w.loaded(node, p) {
			l.better(CodeLoad, pool, -1)
			continue
		}
		n := w.fits(node, t, p)
		like := n
		if all += n; n > 0 && ask.Count > 1 {
			like = w.fitsLike(node, t, p)
		}
		most = max(most, like)
		if ask.Whole() {
			l.better(CodeCount, pool, like)
		} else {
			have := pool.UnitMiB * uint64(max(0, w.free(node, p)))
			if _, _, largest := pool.size(ask, ask.MemoryMiB); largest > 0 {
				have = min(have, largest)
			}
			l.better(CodeMemory, pool, int(have))
		}
	}
	switch {
	case most >= ask.Count:
		return lack{}
	case all >= ask.Count:
		l.code = CodeModelsDiffer
	case !ask.Whole() && most > 0:
		l.code, l.have = CodeCount, most
	}
	return l
}

// fits is how many cards of a pool would serve one card of a task's ask: whole ones or partitions, or the one behind
// the slices.
func (w *work) fits(node, t, p int) int {
	ask, pool, free := w.tasks[t].Ask, w.pool(node, p), w.free(node, p)
	switch {
	case w.why[t][p] != "" || w.strange(node, p) || w.loaded(node, p):
		return 0
	case ask.Whole() && (pool.Form == accel.Whole || pool.Form == accel.Partition):
		return free
	case ask.Whole() && wholeCard(pool) && free == pool.Total:
		return 1
	case ask.Whole():
		return 0
	}
	if units := pool.units(ask); units > 0 && units <= free {
		return 1
	}
	return 0
}

// fitsLike is how many cards of one kind with this pool's would serve: those of a pool of whole cards come from it
// alone, those behind slices from all such cards of the model.
func (w *work) fitsLike(node, t, p int) int {
	pool := w.pool(node, p)
	if pool.Form == accel.Whole || pool.Form == accel.Partition {
		return w.fits(node, t, p)
	}
	n := 0
	for q := w.first[node]; q < w.first[node+1]; q++ {
		other := w.pool(node, q)
		same := other.Form == pool.Form && other.UnitMiB == pool.UnitMiB && sameModel(pool, other)
		if same && (!w.tasks[t].Ask.Whole() || other.Total == pool.Total) {
			n += w.fits(node, t, q)
		}
	}
	return n
}

// better keeps the pool that comes nearer: the later reason, then more free, then the first name.
func (l *lack) better(code Code, p *Pool, have int) {
	order := cmp.Or(cmp.Compare(rank(code), rank(l.code)), cmp.Compare(have, l.have))
	if order > 0 || order == 0 && (l.pool == nil || p.Group < l.pool.Group) {
		l.code, l.pool, l.have = code, p, have
	}
}

// tell fills the sentence and its parts.
func (w *work) tell(r *Refusal, l lack, task int) {
	node := w.snap.Nodes[l.node].Name
	if node == "" {
		node = w.snap.Nodes[l.node].ID
	}
	if len(w.tasks) > 0 {
		r.Need = need(w.tasks[task].Ask)
	}
	var ask accel.Ask
	if len(w.tasks) > 0 {
		ask = *w.tasks[task].Ask
	}
	switch l.code {
	case CodeMemory:
		have, want := uint64(max(0, l.have)), ask.MemoryMiB
		rounded, by, largest := l.pool.size(&ask, want)
		if by != "" && rounded == 0 {
			w.tellLargest(r, l.pool, node, ask, by, largest)
			break
		}
		want = max(want, rounded)
		r.Need = size(want, have) + " on one card"
		if ask.Count > 1 {
			r.Need = fmt.Sprintf("%d cards with %s each", ask.Count, size(want, have))
		}
		if want > ask.MemoryMiB {
			r.Need += fmt.Sprintf(", to which %s rounds %s", by, size(ask.MemoryMiB, want))
		}
		r.Best = fmt.Sprintf("%s on node %s with %s free", l.pool.Name, node, size(have, want))
		r.Gap = size(want-have, 0) + " short"
		r.Sentence = fmt.Sprintf("needs %s; best card is %s: %s", r.Need, r.Best, r.Gap)
	case CodeCount:
		have := max(0, l.have)
		r.Best = fmt.Sprintf("node %s with %d free", node, have)
		if ask.Whole() && l.pool != nil && have > 0 {
			r.Best = fmt.Sprintf("node %s with %d free %s", node, have, l.pool.Model)
		}
		r.Gap = fmt.Sprintf("%d short", ask.Count-have)
		r.Sentence = fmt.Sprintf("needs %s on one node; best is %s: %s", r.Need, r.Best, r.Gap)
	case CodeCPU:
		w.tellBeside(r, node, w.ask.CPUMHz, l.have, "MHz of processor")
	case CodeNodeMemory:
		w.tellBeside(r, node, w.ask.MemoryMiB, l.have, "MiB of main memory")
	case CodeDisk:
		w.tellBeside(r, node, w.ask.DiskMiB, l.have, "MiB of disk")
	default:
		r.Sentence = fmt.Sprintf("needs %s; %s", r.Need, w.whyNot(l, node, ask))
	}
	if len(w.bound) > 0 {
		r.Sentence = fmt.Sprintf("%d of %d allocations fit, the next %s", len(w.bound), w.ask.Count, r.Sentence)
	}
	if len(w.req.Groups) > 1 {
		r.Sentence = fmt.Sprintf("group %q %s", w.ask.Name, r.Sentence)
	}
}

// tellLargest says that no share as large is made of the card that comes nearest, whatever is free on it.
func (w *work) tellLargest(r *Refusal, p *Pool, node string, ask accel.Ask, by accel.Mode, largest uint64) {
	r.Need = need(&ask)
	what := size(ask.MemoryMiB, largest)
	if ask.ComputePct > 0 {
		what += fmt.Sprintf(" with %d %% of compute", ask.ComputePct)
	}
	r.Best = fmt.Sprintf("%s on node %s, of which %s makes shares of at most %s", p.Name, node, by, exact(largest))
	r.Sentence = fmt.Sprintf("needs %s; best card is %s, none of them %s: ask for less, or leave memory out for the whole card", r.Need, r.Best, what)
}

func (w *work) tellBeside(r *Refusal, node string, want, have int, what string) {
	have = max(0, have)
	r.Best = fmt.Sprintf("node %s with %d %s free", node, have, what)
	r.Gap = fmt.Sprintf("%d short", want-have)
	r.Sentence = fmt.Sprintf("needs %d %s beside %s; best is %s: %s", want, what, r.Need, r.Best, r.Gap)
}

// whyNot says a reason that is not about an amount.
func (w *work) whyNot(l lack, node string, ask accel.Ask) string {
	n := &w.snap.Nodes[l.node]
	switch l.code {
	case CodeOffline:
		return "no node is ready"
	case CodeTenant:
		return "every ready node is kept for other tenants"
	case CodeDatacenter:
		return fmt.Sprintf("no ready node is in datacenter %s", strings.Join(w.req.Datacenters, " or "))
	case CodeNodePool:
		return fmt.Sprintf("no ready node is in node pool %q", cmp.Or(w.req.NodePool, "default"))
	case CodeConstraint:
		c := failedConstraint(n, w.ask.Constraints)
		return fmt.Sprintf("no node satisfies the job's constraints, such as %s %s %q", c.L, cmp.Or(c.Operand, "="), c.R)
	case CodeDriverMissing:
		return fmt.Sprintf("no node has a healthy %q driver", missingDriver(n, w.ask.Tasks))
	case CodeRuntimeMissing:
		return w.noRuntime()
	case CodeNoCards:
		return "no node that the job may use offers a card"
	case CodeBrand:
		return fmt.Sprintf("no node that the job may use has a card of %s", list(ask.Vendors))
	case CodeModel:
		return fmt.Sprintf("no node that the job may use has a card of model %s", list(ask.Models))
	case CodeForm:
		return "the cards it may use are offered whole only: leave memory out, or have one of them shared in the device plugin's forms"
	case CodeQoS:
		return fmt.Sprintf("no card it may use isolates shares as %s; best is %s on node %s with %s", ask.QoS, l.pool.Name, node, tier(l.pool))
	case CodeShareTenant:
		return fmt.Sprintf("a card serves one tenant at a time, and what is free is beside shares of other tenants, such as on %s of node %s: "+
			"it starts when one of them is empty, or when heteroflow_share_tenants in the node's meta puts the tenants in one group", l.pool.Name, node)
	case CodeLoad:
		return "what has room is over its load limit: " + w.e.limits.say(n, l.pool)
	case CodeModelsDiffer:
		return fmt.Sprintf("node %s has as many that would do, but of different models, and one ask takes cards of one model", node)
	case CodeDistinctHosts:
		return "its allocations are to be on different nodes, and every node with room has one"
	case CodeAntiAffinity:
		return w.domains.why(l.node)
	case CodeOneNode:
		return fmt.Sprintf("the tasks of the group fit one by one, but not together on one node; nearest is node %s", node)
	}
	return "each allocation would fit alone, but all allocations of a group share one specification: use one group for each, or fewer cards"
}

// noRuntime names the nodes that would come into question if their driver ran the tasks, and what is to be done there.
func (w *work) noRuntime() string {
	nodes := map[string][]string{} // by the runtime that they lack
	for i := range w.snap.Nodes {
		if n := &w.snap.Nodes[i]; w.nodeCode(i) == CodeRuntimeMissing {
			lacks := missingRuntime(n, w.ask.Tasks)
			nodes[lacks] = append(nodes[lacks], cmp.Or(n.Name, n.ID))
		}
	}
	var reasons []string
	for _, lacks := range slices.Sorted(maps.Keys(nodes)) {
		slices.Sort(nodes[lacks])
		on := few(nodes[lacks])
		switch lacks {
		case "docker":
			reasons = append(reasons, "no node runs containers: Docker does not answer on "+on)
		case "process":
			do := "does"
			if len(nodes[lacks]) > 1 {
				do = "do"
			}
			reasons = append(reasons, fmt.Sprintf("%s %s not allow plain processes: set process { enabled = true } in the driver's config", on, do))
		default:
			reasons = append(reasons, fmt.Sprintf("the driver on %s has no runtime %q", on, lacks))
		}
	}
	return strings.Join(reasons, "; ")
}

// few is a list of names for a sentence, the first three of them.
func few(names []string) string {
	list := strings.Join(names[:min(len(names), 3)], ", ")
	if len(names) > 3 {
		list += fmt.Sprintf(" and %d more", len(names)-3)
	}
	return list
}

// example is one node with what it lacks, for the counts.
func (w *work) example(l lack) string {
	n := &w.snap.Nodes[l.node]
	name := cmp.Or(n.Name, n.ID)
	switch {
	case l.code == CodeConstraint:
		c := failedConstraint(n, w.ask.Constraints)
		return fmt.Sprintf("%s: %s %s %q", name, c.L, cmp.Or(c.Operand, "="), c.R)
	case l.code == CodeDriverMissing:
		return name + ": " + missingDriver(n, w.ask.Tasks)
	case l.code == CodeRuntimeMissing:
		return name + ": " + missingRuntime(n, w.ask.Tasks)
	case l.code == CodeMemory:
		return fmt.Sprintf("%s: %s has %s free", name, l.pool.Name, accel.FormatMiB(uint64(max(0, l.have))))
	case l.code == CodeCount:
		return fmt.Sprintf("%s: %d free", name, max(0, l.have))
	case l.code == CodeLoad:
		return w.e.limits.say(n, l.pool)
	case l.pool != nil:
		return name + ": " + l.pool.Name
	}
	return name
}

// need says an ask in the words of a reason.
func need(a *accel.Ask) string {
	switch {
	case a.Whole() && a.Count == 1:
		return "1 whole card"
	case a.Whole():
		return fmt.Sprintf("%d whole cards of one model", a.Count)
	case a.Count == 1:
		return accel.FormatMiB(a.MemoryMiB) + " on one card"
	}
	return fmt.Sprintf("%d cards with %s each", a.Count, accel.FormatMiB(a.MemoryMiB))
}

// size prints an amount of memory; exactly where rounding would hide the difference to the other amount.
func size(mib, other uint64) string {
	if text := accel.FormatMiB(mib); mib == other || text != accel.FormatMiB(other) {
		return text
	}
	return exact(mib)
}

func exact(mib uint64) string {
	if mib%1024 == 0 && mib > 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%d MiB", mib)
}

func list[T ~string](names []T) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, " or ")
}

// never reports whether the request cannot fit even in an empty cluster, and then says so in the refusal.
func never(catalog Catalog, r *Request, refusal *Refusal) bool {
	for _, g := range r.Groups {
		for _, t := range g.Tasks {
			if t.Ask == nil {
				continue
			}
			if never := catalog.Impossible(*t.Ask); never != nil {
				refusal.Code, refusal.Sentence, refusal.Group, refusal.Task = never.Code, never.Sentence, g.Name, t.Name
				return true
			}
		}
	}
	return false
}
