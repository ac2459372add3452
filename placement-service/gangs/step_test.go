package gangs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Whatever order members come, end, are lost and come back in, and however often an elastic gang is made larger and smaller: a
// start has each rank once, nobody begins while fewer than all are there, and never fewer than the fewest; with restart_gang
// never two starts run side by side, a member that ended with success is not missed, and a gang of which one was lost
// while others run is not left as it is.
func TestNext_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := grant.Gang{
			Members: rapid.IntRange(1, 5).Draw(t, "members"), Framework: "ddp", StartSeconds: rapid.IntRange(1, 40).Draw(t, "timeout"),
			OnLost: rapid.SampledFrom(grant.OnLostPolicies).Draw(t, "policy"),
		}
		if g.OnLost != grant.FailGang && rapid.Bool().Draw(t, "elastic") {
			g.Min = rapid.IntRange(1, g.Members).Draw(t, "least")
		}
		size := g.Members
		var plan []engine.Member
		for i := range g.Members {
			plan = append(plan, engine.Member{Group: "g", NodeID: fmt.Sprint("n", i%3)})
		}
		now, visits := epoch, 0
		all := map[string]came{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
			if g.Min > 0 && rapid.IntRange(0, 9).Draw(t, "resized") == 0 {
				size = rapid.IntRange(g.Min, g.Members).Draw(t, "size")
				for id, c := range all { // Nomad ends the highest indexes
					if c.said.Index >= size && c.fate == watch.FateRuns {
						c.fate = watch.FateLost
						all[id] = c
					}
				}
			}
			i := rapid.IntRange(0, size-1).Draw(t, "who")
			alloc := fmt.Sprint("a", i, "-", rapid.IntRange(0, 1).Draw(t, "life"))
			what := rapid.SampledFrom([]string{"come", "come", "come", "sign", "lose", "end"}).Draw(t, "what")
			done := slices.ContainsFunc(slices.Collect(maps.Values(all)), func(c came) bool { return c.said.Index == i && c.fate == watch.FateDone })
			switch c, there := all[alloc]; {
			case what == "come" && !done: // Nomad runs nothing again that ended with success
				visits++
				for id, other := range all { // and replaces an allocation that it gave up
					if other.said.Index == i && id != alloc {
						other.fate = watch.FateLost
						all[id] = other
					}
				}
				all[alloc] = came{alloc: alloc, visit: fmt.Sprint(visits), cameAt: now, seenAt: now, fate: watch.FateRuns, said: Said{Group: "g", Index: i, NodeID: fmt.Sprint("n", i%3)}}
			case what == "sign" && there && c.attempt == 0:
				c.seenAt = now
				all[alloc] = c
			case what == "lose" && there && c.fate == watch.FateRuns:
				c.fate = watch.FateLost
				all[alloc] = c
			case what == "end" && there && c.runs():
				c.fate = watch.FateDone
				all[alloc] = c
			}
			s := scene{gang: g, all: slices.Collect(maps.Values(all)), now: now}
			s.gang.Members = size
			for _, c := range all {
				if c.fate == watch.FateRuns {
					s.crew++
				}
			}
			p, step := s.parts(), next(s)
			if g.OnLost != grant.RestartMember && len(p.running) > 0 && p.lost > 0 && step.what != recall && step.what != endJob {
				t.Fatalf("%d run and %d were lost, and the step is %v", len(p.running), p.lost, step.what)
			}
			if p.lost == 0 && len(p.waiting)+len(p.called) == 0 && step.what != wait {
				t.Fatalf("nobody is missed, and the step is %v", step.what)
			}
			switch step.what {
			case start:
				members := step.members
				if step.whole {
					members = ranked(plan[:size], members)
					if g.Min > 0 {
						members = rooted(members)
					}
					if len(members) != size || size < g.Min {
						t.Fatalf("%d of %d begin, %d at least", len(members), size, g.Min)
					}
				}
				ranks := map[int]bool{}
				for _, c := range all {
					if c.runs() {
						if step.whole {
							t.Fatalf("a start begins while %s runs", c.alloc)
						}
						ranks[c.rank] = true
					}
				}
				for _, c := range members {
					if ranks[c.rank] || c.rank < 0 || c.rank >= g.Members || !c.waits(now) {
						t.Fatalf("rank %d of %s, which waits: %v", c.rank, c.alloc, c.waits(now))
					}
					ranks[c.rank] = true
					c.attempt = step.attempt
					all[c.alloc] = c
				}
			case recall:
				if g.OnLost != grant.RestartGang && (g.Min == 0 || !s.rootless(p)) {
					t.Fatalf("called back with %s", g.OnLost)
				}
				for id, c := range all {
					if c.attempt > 0 {
						c.attempt = -c.attempt
						all[id] = c
					}
				}
			case endJob:
				if g.OnLost == grant.RestartMember || step.why == "" {
					t.Fatalf("ended with %s: %q", g.OnLost, step.why)
				}
				return
			case giveUp:
				if now.Before(step.until) {
					t.Fatalf("given up before %v", step.until)
				}
				for id, c := range all {
					if c.attempt == 0 {
						delete(all, id)
					}
				}
			}
		}
	})
}

// What is done when one of three ends, by how and by what the job says.
func TestNext_OneEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy grant.OnLost
		fates  []watch.Fate // of three that began
		gone   bool
		want   what
		why    string
	}{
		"lost, and the gang begins anew":         {grant.RestartGang, []watch.Fate{watch.FateRuns, watch.FateLost, watch.FateRuns}, false, recall, ""},
		"lost, and the others go on":             {grant.RestartMember, []watch.Fate{watch.FateRuns, watch.FateLost, watch.FateRuns}, false, wait, ""},
		"lost, and the job ends":                 {grant.FailGang, []watch.Fate{watch.FateRuns, watch.FateLost, watch.FateRuns}, false, endJob, "on_lost"},
		"with success":                           {grant.RestartGang, []watch.Fate{watch.FateDone, watch.FateRuns, watch.FateDone}, false, wait, ""},
		"with success, and on_lost is fail":      {grant.FailGang, []watch.Fate{watch.FateDone, watch.FateRuns, watch.FateRuns}, false, wait, ""},
		"all with success":                       {grant.RestartGang, []watch.Fate{watch.FateDone, watch.FateDone, watch.FateDone}, false, wait, ""},
		"lost after another's success":           {grant.RestartGang, []watch.Fate{watch.FateDone, watch.FateLost, watch.FateRuns}, false, endJob, "1 of 3 had ended with success"},
		"lost, and does not come back":           {grant.RestartGang, []watch.Fate{watch.FateRuns, watch.FateLost, watch.FateRuns}, true, endJob, "restart and reschedule"},
		"does not come back, and others go on":   {grant.RestartMember, []watch.Fate{watch.FateRuns, watch.FateLost, watch.FateRuns}, true, wait, ""},
		"not heard of by Nomad, which is behind": {grant.RestartGang, []watch.Fate{watch.FateRuns, watch.FateUnknown, watch.FateRuns}, false, wait, ""},
		"all lost: nobody is to be told":         {grant.RestartGang, []watch.Fate{watch.FateLost, watch.FateLost, watch.FateLost}, false, wait, ""},
	} {
		s := scene{gang: grant.Gang{Members: 3, StartSeconds: 60, OnLost: tc.policy}, gone: tc.gone, now: epoch}
		for i, fate := range tc.fates {
			s.all = append(s.all, came{alloc: fmt.Sprint(i), attempt: 1, rank: i, fate: fate, said: Said{Group: "g", Index: i}})
			if fate == watch.FateRuns {
				s.crew++
			}
		}
		if got := next(s); got.what != tc.want || !strings.Contains(got.why, tc.why) {
			t.Errorf("%s: step %v, %q; want %v, %q", name, got.what, got.why, tc.want, tc.why)
		}
	}
}

// A job that runs again after its members ended is another run, however fast its first member comes.
func TestNext_AnotherRun(t *testing.T) {
	t.Parallel()
	s := scene{gang: grant.Gang{Members: 2, StartSeconds: 60, OnLost: grant.RestartGang}, now: epoch, all: []came{
		{alloc: "a1", attempt: 1, fate: watch.FateDone}, {alloc: "a2", attempt: 1, fate: watch.FateLost},
		{alloc: "b1", cameAt: epoch, seenAt: epoch, fate: watch.FateUnknown},
	}}
	if got := next(s); got.what != wait {
		t.Errorf("at once: step %v, %q", got.what, got.why)
	}
	s.now, s.crew = epoch.Add(2*settles), 2
	if got := next(s); got.what != wait {
		t.Errorf("both are to run: step %v, %q", got.what, got.why)
	}
	s.crew = 1
	if got := next(s); got.what != endJob {
		t.Errorf("one has come back alone: step %v", got.what)
	}
}

// An elastic gang of two to four, by who is there and by how many it is to have.
func TestNext_Elastic(t *testing.T) {
	t.Parallel()
	began := func(i int, fate watch.Fate) came {
		return came{alloc: fmt.Sprint(i), attempt: 1, rank: i, fate: fate, said: Said{Group: "g", Index: i}}
	}
	comes := func(i int) came {
		return came{alloc: fmt.Sprint(i), cameAt: epoch, seenAt: epoch, fate: watch.FateRuns, said: Said{Group: "g", Index: i}}
	}
	for name, tc := range map[string]struct {
		policy  grant.OnLost
		members int // that it is to have now
		all     []came
		gone    bool
		want    what
		begin   int
	}{
		"starts with fewer than its most":         {grant.RestartMember, 2, []came{comes(0), comes(1)}, false, start, 2},
		"does not start without one of these":     {grant.RestartMember, 3, []came{comes(0), comes(1)}, false, wait, 0},
		"grows in place":                          {grant.RestartMember, 3, []came{began(0, watch.FateRuns), began(1, watch.FateRuns), comes(2)}, false, start, 1},
		"grows by beginning anew":                 {grant.RestartGang, 3, []came{began(0, watch.FateRuns), began(1, watch.FateRuns), comes(2)}, false, recall, 0},
		"shrinks in place":                        {grant.RestartMember, 2, []came{began(0, watch.FateRuns), began(1, watch.FateRuns), began(2, watch.FateLost)}, false, wait, 0},
		"shrinks by beginning anew":               {grant.RestartGang, 2, []came{began(0, watch.FateRuns), began(1, watch.FateRuns), began(2, watch.FateLost)}, false, recall, 0},
		"where the others meet is lost":           {grant.RestartMember, 3, []came{began(0, watch.FateLost), began(1, watch.FateRuns), began(2, watch.FateRuns)}, false, recall, 0},
		"where the others met ended with success": {grant.RestartMember, 3, []came{began(0, watch.FateDone), began(1, watch.FateRuns), began(2, watch.FateRuns)}, false, wait, 0},
		"fewer than its fewest, and none comes":   {grant.RestartMember, 3, []came{began(0, watch.FateRuns), began(1, watch.FateLost), began(2, watch.FateLost)}, true, endJob, 0},
	} {
		s := scene{gang: grant.Gang{Members: tc.members, Min: 2, StartSeconds: 60, OnLost: tc.policy}, all: tc.all, gone: tc.gone, now: epoch}
		for _, c := range tc.all {
			if c.fate == watch.FateRuns {
				s.crew++
			}
		}
		if got := next(s); got.what != tc.want || len(got.members) != tc.begin {
			t.Errorf("%s: step %v with %d, want %v with %d", name, got.what, len(got.members), tc.want, tc.begin)
		}
	}
}

// The one with the lowest index, which Nomad stops last, is where the others meet.
func TestRooted(t *testing.T) {
	t.Parallel()
	var in []came
	for _, i := range []int{3, 1, 0, 2} {
		in = append(in, came{rank: len(in), said: Said{Index: i}})
	}
	var got []int
	for rank, c := range rooted(in) {
		if c.rank != rank {
			t.Errorf("rank %d at %d", c.rank, rank)
		}
		got = append(got, c.said.Index)
	}
	if !slices.Equal(got, []int{0, 3, 1, 2}) {
		t.Errorf("%v", got)
	}
}
