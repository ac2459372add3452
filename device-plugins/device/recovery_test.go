package device

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// patient is a tracker as the plugin makes it by default, on a clock that the test moves.
func patient() (*tracker, *clock.Fake) {
	now := clock.NewFake(noon)
	tr := newTracker(3)
	tr.hold, tr.now = 10*time.Second, now.Now
	return tr, now
}

func TestTracker_HoldsBackARepairedCard(t *testing.T) {
	t.Parallel()
	tr, now := patient()
	a := good("GPU-a", "")
	tr.observe([]accel.Card{a})
	for range 3 {
		tr.observe([]accel.Card{bad(a, "lost")})
	}
	step := func(card accel.Card, want string) {
		t.Helper()
		now.Advance(5 * time.Second)
		tr.observe([]accel.Card{card})
		wantStates(t, tr, map[string]string{"GPU-a": want})
	}
	step(a, "lost")
	step(a, "lost")
	step(bad(a, "ERR!"), "ERR!") // begins anew
	step(a, "ERR!")
	step(a, "ERR!")
	step(a, "ok")
	step(bad(a, "lost"), "ok")
}

func TestTracker_FaultCondemnsAtOnceAndOnlyItsCard(t *testing.T) {
	t.Parallel()
	tr, now := patient()
	a, b := good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	tr.observe([]accel.Card{a, b})
	if !tr.condemn("GPU-a", "Xid 79") || tr.condemn("GPU-z", "Xid 79") {
		t.Error("the wrong cards are known")
	}
	wantStates(t, tr, map[string]string{"GPU-a": "Xid 79", "GPU-b": "ok"})
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{"GPU-a": "Xid 79", "GPU-b": "ok"})
	now.Advance(10 * time.Second)
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{"GPU-a": "ok", "GPU-b": "ok"})
}

// At the default pace a dead card is unhealthy within 15 seconds, and a repaired one back within 30, wherever between two
// readings it happens.
func TestTracker_PaceKeepsItsPromises(t *testing.T) {
	t.Parallel()
	const reading = 500 * time.Millisecond // one takes so long
	rapid.Check(t, func(t *rapid.T) {
		tr, now := patient()
		p := New(nil, hclog.NewNullLogger())
		p.set.period = 5 * time.Second
		a := good("GPU-a", "")
		read := func(err error) {
			now.Advance(reading)
			if err != nil {
				tr.fail(err)
			} else {
				tr.observe([]accel.Card{a})
			}
		}
		until := func(ok bool, err error) time.Duration {
			since := now.Now()
			// The trouble begins, or ends, at some moment of the pause that is running.
			wait := time.Duration(rapid.Int64Range(0, int64(p.pause(&source{tracker: tr}))).Draw(t, "wait"))
			for range 100 {
				now.Advance(wait)
				read(err)
				if tr.cards()[0].Health.OK == ok {
					return now.Now().Sub(since)
				}
				wait = p.pause(&source{tracker: tr})
			}
			t.Fatal("never")
			return 0
		}
		read(nil)
		if took := until(false, errors.New("nvml: Unknown Error")); took > 15*time.Second {
			t.Errorf("unhealthy only after %s", took)
		}
		if took := until(true, nil); took > 30*time.Second || took < 10*time.Second {
			t.Errorf("healthy again after %s", took)
		}
	})
}

// Whatever befalls a card: it is sick exactly when it had enough bad readings in a row or a fault and was not good for
// the hold since, so that two changes to healthy are never closer than the hold; and no card feels another's trouble.
func TestTracker_StateMachineProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr, now := patient()
		tr.limit = rapid.IntRange(1, 4).Draw(t, "limit")
		tr.hold = time.Duration(rapid.IntRange(0, 20).Draw(t, "hold")) * time.Second
		cards := []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0"), good("GPU-c", "0000:03:00.0")}
		type model struct {
			run    int
			sick   bool
			good   time.Time
			healed time.Time
		}
		models := map[string]*model{}
		for _, c := range cards {
			models[c.UUID] = &model{}
		}
		worse := func(m *model, certain bool) {
			m.run, m.good = m.run+1, time.Time{}
			m.sick = m.sick || certain || m.run >= tr.limit
		}
		tr.observe(cards)
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) { now.Advance(time.Duration(rapid.IntRange(0, 9000).Draw(t, "ms")) * time.Millisecond) },
			"reading": func(t *rapid.T) {
				var listed []accel.Card
				for _, c := range cards {
					m := models[c.UUID]
					switch rapid.SampledFrom([]string{"good", "good", "bad", "missing"}).Draw(t, c.UUID) {
					case "good":
						listed = append(listed, c)
						if m.good.IsZero() {
							m.good = now.Now()
						}
						m.run = 0
						if m.sick && now.Now().Sub(m.good) >= tr.hold {
							if !m.healed.IsZero() && now.Now().Sub(m.healed) < tr.hold {
								t.Errorf("%s flaps", c.UUID)
							}
							m.sick, m.healed = false, now.Now()
						}
					case "bad":
						listed = append(listed, bad(c, "ERR!"))
						worse(m, false)
					default:
						worse(m, false)
					}
				}
				tr.observe(listed)
			},
			"failed reading": func(*rapid.T) {
				tr.fail(errors.New("timeout"))
				for _, m := range models {
					worse(m, false)
				}
			},
			"fault": func(t *rapid.T) {
				c := rapid.SampledFrom(cards).Draw(t, "card")
				tr.condemn(c.UUID, "Xid 48")
				m := models[c.UUID]
				m.run = max(m.run, tr.limit-1)
				worse(m, true)
			},
			"": func(t *rapid.T) {
				for _, c := range tr.cards() {
					if c.Health.OK == models[c.UUID].sick || c.Health.OK == (c.Health.Reason != "") {
						t.Fatalf("%s: %+v, want sick %v", c.UUID, c.Health, models[c.UUID].sick)
					}
				}
			},
		})
	})
}

func TestFingerprint_HistoryIsKeptOverRestarts(t *testing.T) {
	t.Parallel()
	b := &bench{name: "x", cards: []accel.Card{good("GPU-a", ""), good("GPU-b", "")}}
	p := start(t, nil, b)
	messages := fingerprint(t, p)
	receive(t, messages)
	b.set(func(b *bench) { b.cards[0] = bad(b.cards[0], "lost") })
	receive(t, messages)
	kinds := func() []string {
		records, err := health.Read(p.set.StateDir)
		if err != nil {
			t.Error(err)
		}
		var out []string
		for _, r := range records {
			out = append(out, strings.TrimSpace(r.Card+" "+string(r.Kind)+" "+r.Reason))
		}
		return out
	}
	want := []string{"GPU-a unhealthy lost"}
	if diff := cmp.Diff(want, kinds()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	again := start(t, func(c *Config) { c.StateDir = p.set.StateDir }, &bench{name: "x", cards: slices.Clone(b.cards)})
	receive(t, fingerprint(t, again))
	if diff := cmp.Diff(want, kinds()); diff != "" {
		t.Errorf("a restart tells the same again (-want +got):\n%s", diff)
	}
}
