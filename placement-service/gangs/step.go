package gangs

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// lifeSign is how long a member that waits counts without being heard of: it asks again well before.
const lifeSign = 30 * time.Second

// Said is what a member's driver says of it.
type Said struct {
	Group   string       `json:"group"`
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

// came is a member that is known: it waits, runs, or is called back.
type came struct {
	alloc, visit string
	attempt      int // as store.GangMember has it
	rank         int
	cameAt       time.Time
	seenAt       time.Time
	live         bool // Nomad wants its allocation to run, as far as that is known
	said         Said
}

// running reports whether the member began and is not called back.
func (c *came) running() bool { return c.attempt > 0 && c.live }

// waits reports whether the member is at the start.
func (c *came) waits(now time.Time) bool {
	return c.attempt == 0 && c.live && now.Sub(c.seenAt) < lifeSign
}

// step is what is to be done next.
type step struct {
	what    what
	members []came // that begin, with their ranks unless whole
	whole   bool   // all members begin, and get their ranks then
	attempt int
	present int       // members that wait
	until   time.Time // when those that wait give up
}

type what int

const (
	wait    what = iota
	start        // the members, with their ranks and the attempt
	recall       // those that run are to begin anew with the ones that wait
	giveUp       // the others did not come in time
	stopJob      // a member was lost, and the job is to end then
)

// next decides on what is known of a gang.
func next(g grant.Gang, all []came, now time.Time) step {
	var waiting, running []came
	attempt := 0
	for _, c := range all {
		attempt = max(attempt, c.attempt, -c.attempt)
		switch {
		case c.waits(now):
			waiting = append(waiting, c)
		case c.running():
			running = append(running, c)
		}
	}
	out := step{what: wait, present: len(waiting), attempt: attempt + 1}
	for i, c := range waiting {
		if until := c.cameAt.Add(g.StartTimeout()); i == 0 || until.Before(out.until) {
			out.until = until
		}
	}
	switch {
	case len(waiting) == 0:
		return out
	case len(running) > 0 && g.OnLost == grant.RestartMember:
		out.members = comeBack(g, all, running, waiting)
		if out.attempt = attempt; len(out.members) > 0 {
			out.what = start
		}
		return out
	case len(running) > 0 && g.OnLost == grant.FailGang:
		out.what = stopJob
		return out
	case len(running) > 0:
		out.what = recall
		return out
	case len(waiting) >= g.Members:
		out.what, out.whole, out.members = start, true, first(waiting, g.Members)
		return out
	case !now.Before(out.until):
		out.what = giveUp
	}
	return out
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
