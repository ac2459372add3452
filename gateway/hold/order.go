package hold

import "container/heap"

// order is who comes next of those who wait: fair between tenants by the tokens that each was served, fair between the keys
// of a tenant in the same way, and of one key the higher priority first, then who came first. So a client's word for its
// own priority moves nobody else, and more keys get a tenant no more.
type order struct {
	root flow
	seq  uint64
}

// flow is a tenant, or a key of one. The counters of those who have nobody waiting are kept until nobody waits at all: who
// leaves and comes back has not forgotten what it was served.
type flow struct {
	served  float64 // tokens, weighed
	waiting int
	below   map[string]*flow // nil for a key
	tickets tickets          // of a key
}

func (o *order) len() int { return o.root.waiting }

// path is the flows from the root to the ticket's key, made where they are missing.
func (o *order) path(r *Request) [3]*flow {
	tenant := o.root.child(r.Tenant)
	return [3]*flow{&o.root, tenant, tenant.child(r.Key)}
}

func (f *flow) child(name string) *flow {
	c := f.below[name]
	if c == nil {
		if f.below == nil {
			f.below = map[string]*flow{}
		}
		c = &flow{}
		f.below[name] = c
	}
	return c
}

// least is what the flow below with somebody waiting was served that got the least.
func (f *flow) least() (least float64, ok bool) {
	for _, c := range f.below {
		if c.waiting > 0 && (!ok || c.served < least) {
			least, ok = c.served, true
		}
	}
	return least, ok
}

func (o *order) push(t *Ticket) {
	o.seq++
	t.seq = o.seq
	path := o.path(&t.request)
	for i := 1; i < len(path); i++ {
		if path[i].waiting > 0 {
			continue
		}
		// Who begins to wait has saved nothing up while it did not: it is level with the one that was served least.
		if least, ok := path[i-1].least(); ok {
			path[i].served = max(path[i].served, least)
		}
	}
	for _, f := range path {
		f.waiting++
	}
	heap.Push(&path[2].tickets, t)
}

// pop takes out who comes next; nil when nobody waits.
func (o *order) pop() *Ticket {
	if o.root.waiting == 0 {
		return nil
	}
	key := o.root.next().next()
	t := key.tickets[0]
	o.remove(t)
	o.charge(&t.request, t.request.Tokens+perRequest)
	return t
}

// next is the flow that was served least; of two the one whose first ticket is the older.
func (f *flow) next() *flow {
	var best *flow
	for _, c := range f.below {
		if c.waiting == 0 {
			continue
		}
		if best == nil || c.served < best.served || c.served == best.served && c.first() < best.first() {
			best = c
		}
	}
	return best
}

func (f *flow) first() uint64 {
	if f.below == nil {
		return f.tickets[0].seq
	}
	var first uint64
	for _, c := range f.below {
		if c.waiting > 0 && (first == 0 || c.first() < first) {
			first = c.first()
		}
	}
	return first
}

// remove takes a ticket out, wherever it stands.
func (o *order) remove(t *Ticket) {
	path := o.path(&t.request)
	heap.Remove(&path[2].tickets, t.at)
	for _, f := range path {
		f.waiting--
	}
	if o.root.waiting == 0 {
		o.root.below = nil
	}
}

// charge counts tokens that a key was served, while somebody waits.
func (o *order) charge(r *Request, tokens int) {
	if o.root.waiting == 0 {
		return
	}
	path := o.path(r)
	path[1].served += float64(tokens)
	path[2].served += float64(tokens)
}

// perRequest is what a request costs besides its tokens, so that empty ones are not free.
const perRequest = 32

// tickets are those of one key, the next one first.
type tickets []*Ticket

func (h tickets) Len() int { return len(h) }
func (h tickets) Less(i, j int) bool {
	if h[i].request.Priority != h[j].request.Priority {
		return h[i].request.Priority > h[j].request.Priority
	}
	return h[i].seq < h[j].seq
}
func (h tickets) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *tickets) Push(x any) {
	t := x.(*Ticket) //nolint:forcetypeassert // nothing else is put there
	t.at = len(*h)
	*h = append(*h, t)
}
func (h *tickets) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
