package meter

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
)

// outputWeight is how much more than one of the prompt a token of the answer counts. Source: the virtual token counter of
// "Fairness in Serving Large Language Models" (OSDI 2024), which takes 2.
const outputWeight = 2

// shares shares out one window.
type shares struct {
	from, to time.Time
	allocs   map[string]*worked
}

// worked is what the engine of one allocation did in the window.
type worked struct {
	busy []stretch
	work map[store.User]uint64
}

// stretch is some time, its end left out.
type stretch struct{ from, to time.Time }

func newShares(from, to time.Time) *shares {
	return &shares{from: from, to: to, allocs: map[string]*worked{}}
}

// add takes in a request. Its work counts in the window as its time in it does.
func (s *shares) add(w store.Work) {
	ran := stretch{w.Began, w.Began.Add(max(w.Duration, time.Microsecond))}
	in := stretch{later(ran.from, s.from), earlier(ran.to, s.to)}
	if !in.from.Before(in.to) {
		return
	}
	id := nomadapi.AllocOfService(w.Backend)
	a := s.allocs[id]
	if a == nil {
		a = &worked{work: map[store.User]uint64{}}
		s.allocs[id] = a
	}
	a.busy = append(a.busy, in)
	// In millionths, so that a part of a token is not lost; at least one, so that nobody works for nothing.
	a.work[w.User] += 1 + part(units(w)*1_000_000, uint64(in.to.Sub(in.from)), uint64(ran.to.Sub(ran.from)))
}

// units is the work of a request: the tokens of its prompt that were not cached, and those of its answer doubled. Where no
// tokens are known, as of pictures and sounds, it is the milliseconds that it took.
func units(w store.Work) uint64 {
	if w.Prompt == nil && w.Completion == nil {
		return uint64(min(max(1, w.Duration.Milliseconds()), mostTokens))
	}
	known := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return min(max(0, *n), mostTokens)
	}
	return uint64(max(0, known(w.Prompt)-known(w.Cached)) + outputWeight*known(w.Completion))
}

// mostTokens bounds what one request may count, so that the sum of those of a window does not overflow.
const mostTokens = 10_000_000

// part is of × some / all, rounded down; some is at most all.
func part(of, some, all uint64) uint64 {
	hi, lo := bits.Mul64(of, some)
	n, _ := bits.Div64(hi, lo, all)
	return n
}

// split gives every microsecond that the spans have in the window to exactly one account: while requests ran to those who
// made them, by their work, and else to the job's tenant. What is left over by a division goes into the next share.
func (s *shares) split(spans []store.CardSpan) []store.CardUse {
	merged := map[string][]stretch{}
	for id, a := range s.allocs {
		merged[id] = merge(a.busy)
	}
	var uses []store.CardUse
	hour := s.from.Truncate(time.Hour)
	for _, span := range spans {
		of := store.CardUse{Hour: hour, User: store.User{Tenant: span.Tenant}, Namespace: span.Namespace, JobID: span.JobID, Group: span.Group}
		held := func(t stretch) int64 { return span.Until(t.to) - span.Until(t.from) }
		own, used := held(stretch{s.from, s.to}), int64(0)
		for _, t := range merged[span.AllocID] {
			used += held(t)
		}
		if own -= used; own > 0 {
			of.Micros = own
			uses = append(uses, of)
		}
		if used > 0 {
			uses = append(uses, byWork(of, used, s.allocs[span.AllocID].work)...)
		}
	}
	return uses
}

// byWork shares an amount out in proportion, all of it.
func byWork(of store.CardUse, amount int64, work map[store.User]uint64) []store.CardUse {
	users := make([]store.User, 0, len(work))
	all := uint64(0)
	for u, n := range work {
		users = append(users, u)
		all += n
	}
	slices.SortFunc(users, func(a, b store.User) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.EndpointID, b.EndpointID), cmp.Compare(a.Model, b.Model))
	})
	var uses []store.CardUse
	upTo, given := uint64(0), int64(0)
	for _, u := range users {
		upTo += work[u]
		sum := int64(part(uint64(amount), upTo, all))
		if of.Micros = sum - given; of.Micros > 0 {
			of.User = u
			uses = append(uses, of)
		}
		given = sum
	}
	return uses
}

// merge gives the time that is in any of the stretches, in order.
func merge(list []stretch) []stretch {
	slices.SortFunc(list, func(a, b stretch) int { return a.from.Compare(b.from) })
	var out []stretch
	for _, t := range list {
		if n := len(out); n > 0 && !t.from.After(out[n-1].to) {
			out[n-1].to = later(out[n-1].to, t.to)
			continue
		}
		out = append(out, t)
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
