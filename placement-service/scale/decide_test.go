package scale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var monday = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func policy(change func(*Policy)) *Policy {
	p := &Policy{Min: 0, Max: 8, Requests: 10, DownAfter: defaultDownAfter, IdleAfter: defaultIdleAfter}
	if change != nil {
		change(p)
	}
	return p
}

func busy(backends, inFlight int) Load {
	return Load{Known: true, Backends: backends, InFlight: inFlight}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	warm := State{Count: 2, Since: monday.Add(-time.Hour), Busy: monday.Add(-time.Minute)}
	window, err := ParseWindow("Mon 00:00-06:00 UTC min=3 max=4")
	if err != nil {
		t.Fatal(err)
	}
	scheduled := func(p *Policy) { p.Schedule = []Window{window} }
	for name, c := range map[string]struct {
		change func(*Policy)
		state  State
		count  int
		load   Load
		want   int
		says   string
	}{
		"enough":                           {nil, warm, 2, busy(2, 20), 2, "it has what it needs"},
		"one more":                         {nil, warm, 2, busy(2, 21), 3, "its load needs 3"},
		"many more at once":                {nil, warm, 2, busy(2, 75), 8, "its load needs 8"},
		"no more than it may have":         {nil, warm, 2, busy(2, 500), 8, "needs 50, it may have 8 at most"},
		"held requests count":              {nil, warm, 2, Load{Known: true, Backends: 2, InFlight: 15, Held: 15}, 3, "needs 3"},
		"from zero":                        {nil, State{}, 0, Load{Known: true, Held: 1}, 1, "needs 1"},
		"at zero with nothing to do":       {nil, State{}, 0, Load{Known: true}, 0, "what it needs"},
		"nobody tells":                     {nil, warm, 2, Load{}, 2, "no gateway tells"},
		"nobody tells, and too few":        {func(p *Policy) { p.Min = 3 }, warm, 2, Load{}, 3, "it has 2 and is to have 3 at least"},
		"more than it may have":            {nil, warm, 9, Load{}, 8, "it has 9 and may have 8 at most"},
		"the hours want more":              {scheduled, warm, 2, busy(2, 1), 3, "to have 3 at least (Mon 00:00-06:00 UTC min=3 max=4)"},
		"the hours allow less":             {scheduled, warm, 3, busy(3, 500), 4, "may have 4 at most (Mon"},
		"fewer, known for too short":       {nil, State{Count: 4, Since: monday.Add(-time.Minute), Busy: monday}, 4, busy(4, 9), 4, "1 would do; it is made smaller when"},
		"fewer for long":                   {nil, State{Count: 4, Since: monday.Add(-time.Hour), Busy: monday}, 4, busy(4, 9), 1, "1 were enough for 5m0s"},
		"fewer, but it has just grown":     {nil, State{Count: 4, Since: monday.Add(-time.Hour), Busy: monday, Grown: monday.Add(-time.Minute)}, 4, busy(4, 9), 4, "it has grown within"},
		"fewer, but there was a peak":      {nil, State{Count: 4, Since: monday.Add(-time.Hour), Busy: monday, Peaks: []Peak{{monday.Add(-4 * time.Minute), 3}}}, 4, busy(4, 9), 3, "3 were enough"},
		"fewer, and the peak is long ago":  {nil, State{Count: 4, Since: monday.Add(-time.Hour), Busy: monday, Peaks: []Peak{{monday.Add(-6 * time.Minute), 3}}}, 4, busy(4, 9), 1, "1 were enough"},
		"at the edge it stays":             {nil, State{Count: 3, Since: monday.Add(-time.Hour), Busy: monday}, 3, busy(3, 20), 3, "what it needs"},
		"the last one, idle for too short": {nil, State{Count: 1, Since: monday.Add(-time.Hour), Busy: monday.Add(-14 * time.Minute)}, 1, busy(1, 0), 1, "its last instance goes after 15m0s"},
		"the last one, idle for long":      {nil, State{Count: 1, Since: monday.Add(-time.Hour), Busy: monday.Add(-15 * time.Minute)}, 1, busy(1, 0), 0, "0 were enough"},
		"several, idle for too short":      {nil, State{Count: 4, Since: monday.Add(-time.Hour), Busy: monday.Add(-6 * time.Minute)}, 4, busy(4, 0), 1, "1 were enough"},
		"one stream keeps the last one":    {nil, State{Count: 1, Since: monday.Add(-9 * time.Hour), Busy: monday.Add(-9 * time.Hour)}, 1, busy(1, 1), 1, "what it needs"},
		"somebody else made it larger":     {nil, State{Count: 1, Since: monday.Add(-time.Hour), Busy: monday}, 4, busy(4, 9), 4, "it has grown within"},
		"tokens":                           {func(p *Policy) { p.Requests, p.Tokens = 0, 1000 }, warm, 2, Load{Known: true, Backends: 2, InFlight: 1, TokensPerMinute: 2001}, 3, "needs 3"},
		"a full cache":                     {func(p *Policy) { p.Cache = 0.8 }, warm, 2, Load{Known: true, Backends: 2, InFlight: 1, Cache: new(0.9)}, 3, "needs 3"},
		"late first tokens":                {func(p *Policy) { p.FirstToken = time.Second }, warm, 2, Load{Known: true, Backends: 2, InFlight: 1, FirstToken: new(3 * time.Second)}, 3, "needs 3"},
		"late, while one is coming":        {func(p *Policy) { p.FirstToken = time.Second }, warm, 3, Load{Known: true, Backends: 2, InFlight: 1, FirstToken: new(3 * time.Second)}, 3, "what it needs"},
		"engines have queues":              {nil, warm, 2, Load{Known: true, Backends: 2, InFlight: 5, Waiting: new(2)}, 3, "needs 3"},
		"one engine has a short one":       {nil, State{Count: 2, Since: monday.Add(-time.Hour), Busy: monday}, 2, Load{Known: true, Backends: 2, InFlight: 5, Waiting: new(1)}, 2, "what it needs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s := Decide(policy(c.change), c.state, c.count, c.load, monday)
			if d.Count != c.want || !strings.Contains(d.Reason, c.says) {
				t.Errorf("%d, %q; want %d, %q", d.Count, d.Reason, c.want, c.says)
			}
			if s.Count != d.Count {
				t.Errorf("it remembers %d of %d", s.Count, d.Count)
			}
		})
	}
}

// TestDecide_Properties: whatever the load does, and whoever else scales, the bounds hold, no group has less than its load
// needs while it may have more, unknown loads change nothing, the direction turns at most once in five minutes, and the
// last instance stays until there was nothing to do for long.
func TestDecide_Properties(t *testing.T) {
	t.Parallel()
	for seed := range 400 {
		r := rand.New(rand.NewPCG(5, uint64(seed)))
		p := policy(func(p *Policy) {
			p.Min, p.Max = r.IntN(3), 3+r.IntN(10)
			p.DownAfter, p.IdleAfter = time.Duration(1+r.IntN(10))*time.Minute, time.Duration(1+r.IntN(20))*time.Minute
			if r.IntN(2) == 0 {
				p.Cache, p.FirstToken, p.Tokens = 0.8, time.Second, 5000
			}
		})
		var s State
		now, count, lastBusy := monday, r.IntN(4), monday
		type change struct {
			at time.Time
			by int
		}
		var changes []change
		level := r.IntN(100)
		for range 400 {
			now = now.Add(time.Duration(5+r.IntN(60)) * time.Second)
			switch r.IntN(12) {
			case 0:
				level = r.IntN(140)
			case 1:
				level = 0
			}
			l := Load{Known: r.IntN(20) > 0, Backends: r.IntN(count + 1), InFlight: level, Held: r.IntN(3) * min(1, level)}
			if r.IntN(2) == 0 {
				l.Cache, l.FirstToken, l.Waiting = new(r.Float64()), new(time.Duration(r.IntN(3000))*time.Millisecond), new(r.IntN(4)*min(1, level))
			}
			if l.Known && !l.idle() {
				lastBusy = now
			}
			if r.IntN(60) == 0 { // somebody else
				count = r.IntN(p.Max + 2)
			}
			before := s
			d, next := Decide(p, s, count, l, now)
			fail := func(what string) {
				t.Helper()
				t.Fatalf("seed %d at %s: %s\n%d to %d: %q\nload %+v\nstate %+v", seed, now.Sub(monday), what, count, d.Count, d.Reason, l, before)
			}
			inBounds := count >= p.Min && count <= p.Max
			switch {
			case d.Count < p.Min || d.Count > p.Max:
				fail("out of bounds")
			case !l.Known && inBounds && d.Count != count:
				fail("changed without knowing")
			case l.Known && d.Count < min(d.Need, p.Max):
				fail("less than it needs")
			case d.Count == 0 && count > 0 && now.Sub(lastBusy) < p.IdleAfter:
				fail("the last instance is gone")
			case l.Known && !l.idle() && d.Count == 0:
				fail("nothing is left while requests run")
			case d.Reason == "":
				fail("without a reason")
			case len(next.Peaks) > 100:
				fail("it remembers without end")
			}
			if again, _ := Decide(p, s, count, l, now); !slices.Equal(again.Signals, d.Signals) || again.Count != d.Count {
				fail("the same asked twice is answered in two ways")
			}
			if d.Count != count && inBounds {
				by := 1
				if d.Count < count {
					by = -1
				}
				changes = append(changes, change{now, by})
			}
			s, count = next, d.Count
		}
		for i, c := range changes {
			turns := 0
			for j := i + 1; j < len(changes) && changes[j].at.Sub(c.at) < Calm; j++ {
				if changes[j].by != changes[j-1].by {
					turns++
				}
			}
			if turns > 1 {
				t.Fatalf("seed %d: the direction turned %d times within %s", seed, turns, Calm)
			}
		}
	}
}

// PW18: 20 streams of five minutes, none of which ends in that time, are work. The service that has them is never made
// smaller than they need.
func TestPW18_LongStreamsAreWork(t *testing.T) {
	t.Parallel()
	p := policy(func(p *Policy) { p.DownAfter, p.IdleAfter = time.Minute, time.Minute })
	var s State
	count := 4
	for at := monday; at.Before(monday.Add(time.Hour)); at = at.Add(30 * time.Second) {
		var d Decision
		d, s = Decide(p, s, count, busy(count, 20), at)
		if count = d.Count; count < 2 {
			t.Fatalf("%s: %d instances for 20 streams: %s", at.Sub(monday), count, d.Reason)
		}
	}
	if count > 3 {
		t.Errorf("%d instances are left for 20 streams", count)
	}
}

// A load that swings around a target does not have the service follow each swing.
func TestDecide_SwingsAreNotFollowed(t *testing.T) {
	t.Parallel()
	p, s, count, changes := policy(nil), State{}, 2, 0
	for n := range 240 { // two hours
		d, next := Decide(p, s, count, busy(count, 18+4*(n%2)), monday.Add(time.Duration(n)*30*time.Second))
		if d.Count != count {
			changes++
		}
		s, count = next, d.Count
	}
	if changes != 1 || count != 3 {
		t.Errorf("%d changes, %d instances", changes, count)
	}
}

// Instances that are coming up are not taken for missing: the more is asked for, the more would come.
func TestDecide_SlowStarts(t *testing.T) {
	t.Parallel()
	p := policy(func(p *Policy) { p.Max, p.Cache, p.FirstToken = 100, 0.8, time.Second })
	s, count := State{}, 2
	for n := range 20 { // ten minutes in which nothing comes up
		d, next := Decide(p, s, count, Load{Known: true, Backends: 2, InFlight: 20, Cache: new(1.0), FirstToken: new(time.Minute), Waiting: new(9)}, monday.Add(time.Duration(n)*30*time.Second))
		s, count = next, d.Count
	}
	if count != 3 {
		t.Errorf("%d instances", count)
	}
}

func TestDecision_Explains(t *testing.T) {
	t.Parallel()
	p := policy(func(p *Policy) { p.Tokens, p.Cache, p.FirstToken = 1000, 0.8, time.Second })
	d, _ := Decide(p, State{}, 2, Load{Known: true, Backends: 2, InFlight: 12, Held: 3, TokensPerMinute: 1500, Cache: new(0.5), FirstToken: new(1500 * time.Millisecond), Waiting: new(1)}, monday)
	want := []string{
		"12 requests in flight and 3 held, 10 for each: 2", "1500 tokens a minute, 1000 for each: 2", "fullest cache at 50 %, 80 % wanted: 2",
		"1.5s to the first token, 1s wanted: 3", "1 requests wait in the engines' queues: 2",
	}
	if fmt.Sprint(want) != fmt.Sprint(d.Signals) {
		t.Errorf("%q", d.Signals)
	}
}
