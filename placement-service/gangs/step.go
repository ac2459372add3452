package gangs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

const (
	// lifeSign is how long a member that waits counts without being heard of: it asks again well before.
	lifeSign = 30 * time.Second
	// settles is how long Nomad takes at most to replace what has ended, or to say when it is going to.
	settles = 5 * time.Second
)

// Said is what a member's driver says of it, and what its grant does.
type Said struct {
	Group   string       `json:"group"`
	Gang    grant.Gang   `json:"gang"`
	Index   int          `json:"index"` // of the allocation in its group
	NodeID  string       `json:"node_id"`
	Address string       `json:"address,omitempty"` // where the others reach it; empty takes the node's
	Port    int          `json:"port,omitempty"`    // of the label master; 0 when it has none
	Vendor  accel.Vendor `json:"vendor"`
	Cards   []Card       `json:"cards"`
}

// Card is one card of a member, in the order in which its processes take them.
type Card struct {
	UUID    string `json:"uuid"`
	Index   int    `json:"index"`
	Address string `json:"address,omitempty"` // of its own network interface, which Ascend's NPUs have
}

// came is a member that is known: it waits, runs, is called back, or has ended.
type came struct {
	alloc, visit string
	attempt      int // as store.GangMember has it
	rank         int
	cameAt       time.Time
	seenAt       time.Time
	fate         watch.Fate
	said         Said
}

// runs reports whether the member began and is not called back.
func (c *came) runs() bool { return c.attempt > 0 && c.fate == watch.FateRuns }

// waits reports whether the member is at the start. One that waits may be ahead of what Nomad told.
func (c *came) waits(now time.Time) bool {
	return c.attempt == 0 && (c.fate == watch.FateRuns || c.fate == watch.FateUnknown) && now.Sub(c.seenAt) < lifeSign
}

// scene is what is known of a gang.
type scene struct {
	gang grant.Gang // its Members are those that are to run now, which of an elastic gang may be fewer than the most
	all  []came
	crew int  // allocations that Nomad wants to run, of the groups whose members came
	gone bool // some are missing for longer than Nomad takes to replace them, and nothing says that it is going to
	now  time.Time
}

// step is what is to be done next.
type step struct {
	what    what
	members []came // that begin, with their ranks unless whole
	whole   bool   // all members begin, and get their ranks then
	attempt int
	present int       // members that wait
	until   time.Time // when those that wait give up
	why     string    // the job is ended, as a sentence
}

type what int

const (
	wait   what = iota
	start       // the members, with their ranks and the attempt
	recall      // those that run are to begin anew, all together
	giveUp      // the others did not come in time
	endJob      // a member was lost, and the gang cannot or is not to go on
)

// parts are the members of a gang by what they do. Those of earlier starts who have ended are in none.
type parts struct {
	waiting, running, called []came
	lost, done               int // of the last start
	attempt                  int // of the last start; 0 when there was none
}

func (s *scene) parts() parts {
	var p parts
	for _, c := range s.all {
		p.attempt = max(p.attempt, c.attempt, -c.attempt)
	}
	for _, c := range s.all {
		switch {
		case c.waits(s.now):
			p.waiting = append(p.waiting, c)
		case c.runs():
			p.running = append(p.running, c)
		case c.attempt < 0 && c.fate == watch.FateRuns:
			p.called = append(p.called, c)
		case c.attempt == 0 || max(c.attempt, -c.attempt) < p.attempt:
		case c.fate == watch.FateDone:
			p.done++
		case c.fate == watch.FateLost:
			p.lost++
		}
	}
	return p
}

// next decides on what is known of a gang. A member that has ended with success while others run is not lost.
func next(s scene) step {
	g, p := s.gang, s.parts()
	out := step{what: wait, present: len(p.waiting), attempt: p.attempt + 1}
	for i, c := range p.waiting {
		if until := c.cameAt.Add(g.StartTimeout()); i == 0 || until.Before(out.until) {
			out.until = until
		}
	}
	left := len(p.running) > 0 && p.lost+len(p.waiting) > 0
	switch {
	case len(p.running)+len(p.waiting)+len(p.called) == 0:
	case s.gone && (g.OnLost != grant.RestartMember || g.Min > 0):
		out.what, out.why = endJob, "a member of the gang was lost, and its group's restart and reschedule blocks do not bring it back (again)"
	case len(p.running) > 0 && s.rootless(p):
		out.what = recall
	case len(p.running) > 0 && g.OnLost == grant.RestartMember:
		if out.members = comeBack(g, s.all, p.running, p.waiting); len(out.members) > 0 {
			out.what, out.attempt = start, p.attempt
		}
	case left && g.OnLost == grant.FailGang:
		out.what, out.why = endJob, `a member of the gang was lost, and on_lost = "fail" ends the job then`
	case s.unwhole(p):
		out.what, out.why = endJob, fmt.Sprintf("a member of the gang was lost after %d of %d had ended with success, which do not run again: the gang cannot begin anew", p.done, g.Members)
	case left:
		out.what = recall
	case len(p.waiting) >= g.Members:
		out.what, out.whole, out.members = start, true, first(p.waiting, g.Members)
	case len(p.waiting) > 0 && !s.now.Before(out.until):
		out.what = giveUp
	}
	return out
}

// rootless reports whether the member is gone at which those of an elastic gang meet by themselves.
func (s *scene) rootless(p parts) bool {
	if s.gang.Min == 0 {
		return false
	}
	return !slices.ContainsFunc(s.all, func(c came) bool {
		begun := c.attempt > 0 && (c.fate == watch.FateRuns || c.fate == watch.FateUnknown)
		return c.rank == 0 && (begun || c.fate == watch.FateDone && max(c.attempt, -c.attempt) == p.attempt)
	})
}

// over reports whether nothing is left to be done for a gang: its members have ended with success, or are forgotten by Nomad.
func (s *scene) over() bool {
	return !slices.ContainsFunc(s.all, func(c came) bool {
		return c.waits(s.now) || c.fate == watch.FateRuns || c.fate == watch.FateLost
	})
}

// unwhole reports whether a gang is to begin anew of which some members have ended with success. Where Nomad runs all of
// them it is another run of the job; of what it is going to run it needs some time to tell.
func (s *scene) unwhole(p parts) bool {
	switch {
	case p.done == 0 || s.gang.OnLost == grant.RestartMember || s.crew+p.done > s.gang.Members:
		return false
	case len(p.running)+len(p.called) > 0:
		return p.lost+len(p.waiting)+len(p.called) > 0
	}
	return slices.ContainsFunc(p.waiting, func(c came) bool { return s.now.Sub(c.cameAt) >= settles })
}

// first are the members that came first, where there are more than belong to the gang: an allocation and its replacement.
func first(waiting []came, members int) []came {
	slices.SortFunc(waiting, func(a, b came) int { return cmp.Or(a.cameAt.Compare(b.cameAt), cmp.Compare(a.alloc, b.alloc)) })
	return waiting[:members]
}

// ranked orders members as they were placed: the i-th is the one that is in the group and on the node of the i-th place,
// of several there the one with the lowest index. Those that Nomad put elsewhere take the places that are left.
func ranked(plan []engine.Member, members []came) []came {
	rest := slices.Clone(members)
	slices.SortFunc(rest, func(a, b came) int {
		return cmp.Or(cmp.Compare(place(plan, a.said.Group), place(plan, b.said.Group)), cmp.Compare(a.said.Group, b.said.Group),
			cmp.Compare(a.said.Index, b.said.Index), cmp.Compare(a.alloc, b.alloc))
	})
	out := make([]*came, max(len(plan), len(members)))
	for i, p := range plan {
		at := slices.IndexFunc(rest, func(c came) bool { return c.said.Group == p.Group && c.said.NodeID == p.NodeID })
		if at >= 0 {
			out[i] = new(rest[at])
			rest = slices.Delete(rest, at, at+1)
		}
	}
	for i := range out {
		if out[i] == nil && len(rest) > 0 {
			out[i], rest = new(rest[0]), rest[1:]
		}
	}
	var all []came
	for _, c := range out {
		if c != nil {
			c.rank = len(all)
			all = append(all, *c)
		}
	}
	return all
}

// rooted puts the member with the lowest index first, which is the last that Nomad stops when the gang shrinks.
func rooted(members []came) []came {
	at := 0
	for i, c := range members {
		if c.said.Index < members[at].said.Index {
			at = i
		}
	}
	members = append(append([]came{members[at]}, members[:at]...), members[at+1:]...)
	for i := range members {
		members[i].rank = i
	}
	return members
}

// place is where a group first stands in the plan.
func place(plan []engine.Member, group string) int {
	at := slices.IndexFunc(plan, func(m engine.Member) bool { return m.Group == group })
	if at < 0 {
		return len(plan)
	}
	return at
}

// comeBack gives members that come back the ranks that nobody runs under: each its own if that is one of them.
func comeBack(g grant.Gang, all, running, waiting []came) []came {
	taken := map[int]bool{}
	for _, c := range running {
		taken[c.rank] = true
	}
	var free []int
	for r := range g.Members {
		if !taken[r] {
			free = append(free, r)
		}
	}
	had := map[string]int{} // ranks of the groups and indexes that began before
	for _, c := range all {
		if c.attempt > 0 {
			had[key(&c)] = c.rank
		}
	}
	slices.SortFunc(waiting, func(a, b came) int { return cmp.Or(a.cameAt.Compare(b.cameAt), cmp.Compare(a.alloc, b.alloc)) })
	var out []came
	for _, c := range waiting {
		if len(free) == 0 {
			break
		}
		at := 0
		if r, known := had[key(&c)]; known {
			at = max(0, slices.Index(free, r))
		}
		c.rank = free[at]
		free = slices.Delete(free, at, at+1)
		out = append(out, c)
	}
	return out
}

// key names a member over its allocations: Nomad gives a replacement the index of the one it replaces.
func key(c *came) string { return c.said.Group + "\x00" + strconv.Itoa(c.said.Index) }
