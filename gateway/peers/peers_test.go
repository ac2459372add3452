//go:build unix

package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/peers"
	"github.com/heteroflow/heteroflow/gateway/peers/peerstest"
	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) peers.Ledger{
		"memory":     func(*testing.T) peers.Ledger { return peerstest.NewMemory() },
		"sqlite":     func(t *testing.T) peers.Ledger { return opened(t, filepath.Join(t.TempDir(), "state.db")) },
		"postgresql": func(t *testing.T) peers.Ledger { return opened(t, postgres.SchemaURL(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peerstest.Run(t, open)
		})
	}
}

func opened(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// gateway is one instance: its pool, its clock and its exchange.
type gateway struct {
	name  string
	clock *clock.Fake
	pool  *balance.Pool
	*peers.Exchange
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// start makes a gateway whose clock is ahead by so much.
func start(l peers.Ledger, name string, ahead time.Duration, backends int) *gateway {
	g := &gateway{name: name, clock: clock.NewFake(noon.Add(ahead))}
	g.pool = balance.NewPool(g.clock)
	var list []balance.Backend
	for i := range backends {
		id := fmt.Sprintf("b%02d", i)
		list = append(list, balance.Backend{ID: id, Addr: id})
	}
	g.pool.Set(list)
	g.Exchange = peers.New(name, l, func() map[string]*balance.Pool { return map[string]*balance.Pool{"llm": g.pool} }, g.clock, hclog.NewNullLogger())
	return g
}

func (g *gateway) beat(t testing.TB) {
	t.Helper()
	if err := g.Beat(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func keyed(id int) session.Prompt {
	return session.Prompt{Keys: session.Keys{session.LevelOpening: session.Key(id)}, Tokens: 500}
}

// send sends one turn of a session and gives the backend.
func (g *gateway) send(id int) string {
	l := g.pool.Take(balance.Ask{Policy: balance.LeastTokens, Prompt: keyed(id), Stream: true})
	l.FirstByte()
	l.Done(balance.Success)
	return l.ID
}

// P53: sessions of three instances behind a round robin stay where they are, also with clocks that differ by more than
// a session lives, and through PostgreSQL.
func TestP53_SessionsStayWhateverClocksSay(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string][3]time.Duration{
		"one clock":               {},
		"minutes apart":           {-7 * time.Minute, 0, 13 * time.Minute},
		"days apart":              {-48 * time.Hour, 0, 1000 * time.Hour},
		"one is years ahead":      {0, 0, 10 * 365 * 24 * time.Hour},
		"one is at the beginning": {-40 * 365 * 24 * time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l peers.Ledger = peerstest.NewMemory()
			if name == "days apart" {
				l = opened(t, postgres.SchemaURL(t))
			}
			var all []*gateway
			for i, a := range ahead {
				all = append(all, start(l, fmt.Sprint("gw", i), a, 8))
			}
			last, stayed, n := map[int]string{}, 0, 0
			for turn := range 5 {
				for id := 1; id <= 300; id++ {
					at := all[n%3].send(id)
					n++
					if last[id] == at {
						stayed++
					}
					last[id] = at
					for _, g := range all {
						g.clock.Advance(10 * time.Millisecond)
					}
				}
				for range 2 { // what was told after another had listened is heard at the next beat
					for _, g := range all {
						g.beat(t)
					}
				}
				if turn == 1 { // a session that moves is followed, by whoever's clock
					for _, g := range all {
						g.clock.Advance(time.Minute)
					}
				}
			}
			if share := float64(stayed) / 1200; share < 0.97 {
				t.Errorf("%.1f %% of follow-ups stayed, want 97 %%", 100*share)
			}
		})
	}
}

// A session that moved because its backend is gone is known to have moved at all instances, though the clock of the one
// that moved it is behind.
func TestExchange_TheLaterMoveHolds(t *testing.T) {
	t.Parallel()
	l := peerstest.NewMemory()
	ahead, behind := start(l, "ahead", 3*time.Hour, 2), start(l, "behind", -3*time.Hour, 2)
	was := ahead.send(7)
	ahead.beat(t)
	behind.beat(t)
	other := map[string]string{"b00": "b01", "b01": "b00"}[was]
	behind.pool.Set([]balance.Backend{{ID: other, Addr: other}})
	if got := behind.send(7); got != other {
		t.Fatalf("sent to %s", got)
	}
	behind.beat(t)
	ahead.beat(t)
	if got := ahead.send(7); got != other {
		t.Errorf("the instance whose clock is ahead sends to %s, want %s", got, other)
	}
}

// Loads are known within a beat, and those of an instance that died are not counted any more: neither by those who knew
// it, nor by one that starts later.
func TestExchange_LoadsOfTheDeadVanish(t *testing.T) {
	t.Parallel()
	l := peerstest.NewMemory()
	a, b := start(l, "a", 0, 1), start(l, "b", time.Hour, 1)
	b.pool.Take(balance.Ask{Policy: balance.LeastTokens, Prompt: session.Prompt{Tokens: 100}})
	elsewhere := func(g *gateway) int { _, n, _ := g.pool.Ready(); return n }
	for range 2 {
		b.beat(t)
		a.beat(t)
	}
	if elsewhere(a) != 1 || elsewhere(b) != 0 {
		t.Fatalf("elsewhere: %d and %d", elsewhere(a), elsewhere(b))
	}
	late := start(l, "late", 0, 1)
	late.beat(t)
	if n := elsewhere(late); n != 0 {
		t.Errorf("%d requests of an instance that has not been heard of", n)
	}
	for range 10 { // b says nothing any more
		a.clock.Advance(500 * time.Millisecond)
		a.beat(t)
	}
	a.pool.Take(balance.Ask{Policy: balance.LeastTokens})
	if n := elsewhere(a); n != 0 {
		t.Errorf("%d requests of a dead instance still count", n)
	}
	a.clock.Advance(5 * time.Minute)
	a.beat(t)
	heads, err := l.Gateways(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range heads {
		if h.ID == "b" {
			t.Error("what a dead instance told is still there after five minutes")
		}
	}
}

// While the ledger is away each goes on alone; after that all is caught up with, also by an instance that starts then.
func TestExchange_LedgerAway(t *testing.T) {
	t.Parallel()
	l := peerstest.NewMemory()
	a, b := start(l, "a", 0, 4), start(l, "b", 0, 4)
	where := map[int]string{}
	a.beat(t)
	b.beat(t)
	l.Away(true)
	for id := 1; id <= 5000; id++ {
		where[id] = a.send(id)
		if id%500 == 0 {
			if a.Beat(context.Background()) == nil || b.Beat(context.Background()) == nil {
				t.Fatal("a ledger that is away answered")
			}
		}
	}
	l.Away(false)
	a.beat(t)
	b.beat(t)
	late := start(l, "late", 0, 4)
	late.beat(t)
	for _, g := range []*gateway{b, late} {
		if n := g.pool.Pins(); n != 5000 {
			t.Errorf("%s knows %d of 5000 sessions", g.name, n)
		}
		for id, at := range where {
			if got := g.send(id); got != at {
				t.Fatalf("%s sends session %d to %s, want %s", g.name, id, got, at)
			}
		}
	}
	t.Logf("%d bytes a session", l.Bytes()/5000)
	if per := l.Bytes() / 5000; per > 64 {
		t.Errorf("%d bytes a session", per)
	}
}

// Whatever was told: in whatever order and however often rows are read, all instances end up with the same sessions, and
// what was set last, or what is the greater of two that were set at once, holds.
func TestMerge_AnyOrderAnyNumberOfTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type telling struct {
			pins  []session.Pin
			ahead time.Duration
		}
		var told []telling
		newest := map[session.Key]session.Pin{}
		for range rapid.IntRange(1, 12).Draw(t, "tellings") {
			one := telling{ahead: time.Duration(rapid.IntRange(-120, 120).Draw(t, "ahead")) * time.Minute}
			for range rapid.IntRange(0, 6).Draw(t, "pins") {
				p := session.Pin{
					Key: session.Key(rapid.IntRange(1, 5).Draw(t, "key")), Backend: rapid.SampledFrom([]string{"b00", "b01", "b02"}).Draw(t, "backend"),
					At: noon.Add(one.ahead - time.Duration(rapid.IntRange(0, 59).Draw(t, "age"))*time.Minute), Tokens: rapid.IntRange(0, 1000).Draw(t, "tokens"),
				}
				one.pins = append(one.pins, p)
				if have, ok := newest[p.Key]; !ok || p.At.After(have.At) || p.At.Equal(have.At) && p.Backend > have.Backend {
					newest[p.Key] = p
				}
			}
			told = append(told, one)
		}
		for range 3 {
			g := start(peerstest.NewMemory(), "x", 0, 3)
			order := append(append([]telling(nil), told...), told...)
			order = rapid.Permutation(order).Draw(t, "order")
			for _, one := range order {
				g.pool.MergePins(one.pins, one.ahead)
			}
			for key, want := range newest {
				if got := g.send(int(key)); got != want.Backend {
					t.Fatalf("session %d is at %s, want %s", key, got, want.Backend)
				}
			}
		}
	})
}

// Rows that nobody understands cost a line in the log and nothing else.
func TestExchange_RowsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	l := peerstest.NewMemory()
	g := start(l, "g", 0, 2)
	bad := []string{"", "null", "[]", `{"llm":{"b":["b00"],"p":[[0,0,0,0]]}}`, `{"llm":{"b":[],"p":[[1,0,0,0]]}}`, `{"llm":{"b":["b00"],"p":[[1,-1,0,0]]}}`, `{"llm":{"b":["b00"],"p":[[1,0,0,-1]]}}`, `{"llm":7}`}
	head := store.GatewayHead{ID: "other", Loads: json.RawMessage(`{"llm":{"b00":[-1,0]}}`)}
	for i, text := range bad {
		head.Beat, head.PinsTo = int64(i+1), int64(i+1)
		if err := l.TellGateway(context.Background(), head, []store.GatewayPins{{Number: int64(i + 1), Pins: json.RawMessage(text)}}, 0, 0); err != nil {
			t.Fatal(err)
		}
		g.beat(t)
	}
	if n := g.pool.Pins(); n != 0 {
		t.Errorf("%d sessions from rows that make no sense", n)
	}
}
