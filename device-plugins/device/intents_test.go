package device

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// desk plays the placement service's intents.
type desk struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	open    []intent
	reports map[string]string // id → state and reason
	claims  int
	polls   int
	refuse  int // answer this many calls with 503
	lose    bool
	holds   bool // a poll without items stays open, until whoever polls leaves
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, reports: map[string]string{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer node-key" {
		d.t.Errorf("authorization %q", r.Header.Get("Authorization"))
	}
	if d.refuse > 0 {
		d.refuse--
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/intents"); {
	case path == "":
		d.polls++
		items := []intent{}
		for _, i := range d.open {
			for _, card := range r.URL.Query()["card"] {
				if card == i.CardUUID {
					items = append(items, i)
				}
			}
		}
		if d.holds && len(items) == 0 {
			d.mu.Unlock()
			<-r.Context().Done()
			d.mu.Lock()
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
	case strings.HasSuffix(path, "/claim"):
		d.claims++
		if d.lose {
			http.Error(w, "lost", http.StatusConflict)
			return
		}
		d.open[0].State = "claimed"
	case strings.HasSuffix(path, "/report"):
		var body struct{ State, Reason string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			d.t.Error(err)
		}
		d.reports[d.open[0].ID] = strings.TrimSpace(body.State + " " + body.Reason)
		d.open = d.open[1:]
	}
}

func (d *desk) want(card string, form accel.Form) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = append(d.open, intent{ID: strconv.Itoa(len(d.reports) + 1), CardUUID: card, Form: form, State: "wanted", Version: 1})
}

func (d *desk) report(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reports[id]
}

func (d *desk) count(what *int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *what
}

func served(d *desk) func(*Config) {
	return func(c *Config) { c.Server, c.Token = d.URL, "node-key" }
}

func TestIntent_SwitchesAnEmptyCardAndARestartKeepsIt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.refuse = 2 // the service is away at first
	det := &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}}
	p := start(t, served(d), det)
	messages := fingerprint(t, p)
	receive(t, messages)
	d.want("GPU-a", accel.Shared)
	wantLines(t, receive(t, messages), "nvidia/vgpu/A40-"+short("GPU-a")+" [c"+short("GPU-a")+".0 … 44] ok")
	waitFor(t, "the report", func() bool { return d.report("1") == "done" })

	restarted := start(t, func(c *Config) { c.StateDir = p.set.StateDir }, det)
	wantLines(t, receive(t, fingerprint(t, restarted)), "nvidia/vgpu/A40-"+short("GPU-a")+" [c"+short("GPU-a")+".0 … 44] ok")

	d.want("GPU-a", accel.Whole)
	wantLines(t, receive(t, messages), "nvidia/card/A40-"+short("GPU-a")+" [] ok", "nvidia/gpu/A40 [GPU-a] ok")
	waitFor(t, "the second report", func() bool { return d.report("2") == "done" })
}

func TestIntent_WaitsUntilTheCardIsEmpty(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		occupy, free func(t *testing.T, p *Plugin, b *bench)
	}{
		"lease": {
			func(t *testing.T, p *Plugin, _ *bench) {
				if err := grant.WriteLease(leaseDir(p), grant.Lease{TaskID: "a/b/c", Cards: []string{"GPU-a"}}); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, p *Plugin, _ *bench) {
				if err := grant.RemoveLease(leaseDir(p), "a/b/c"); err != nil {
					t.Fatal(err)
				}
			},
		},
		"process": {
			func(_ *testing.T, _ *Plugin, b *bench) {
				b.set(func(b *bench) { b.processes = map[string][]int{"GPU-a": {4711}} })
			},
			func(_ *testing.T, _ *Plugin, b *bench) { b.set(func(b *bench) { b.processes = nil }) },
		},
		"fresh reservation": {
			func(t *testing.T, p *Plugin, _ *bench) { reservation(t, p, "GPU-a") },
			func(t *testing.T, p *Plugin, _ *bench) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.elapsed = func() time.Duration { return reserveGrace * 2 }
			},
		},
		"reservation that the driver took over": {
			func(t *testing.T, p *Plugin, _ *bench) { reservation(t, p, "GPU-a") },
			func(t *testing.T, p *Plugin, _ *bench) {
				name, value, err := grant.Reservation{Instances: []string{"GPU-a"}}.Env()
				if err != nil {
					t.Error(err)
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				if err := grant.TakeReserved(p.leasesDir(), map[string]string{name: value}); err != nil {
					t.Error(err)
				}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			det := &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}}
			p := start(t, served(d), det)
			messages := fingerprint(t, p)
			receive(t, messages)
			tc.occupy(t, p, det)
			d.want("GPU-a", accel.Shared)
			from := d.count(&d.polls)
			waitFor(t, "more polls", func() bool { return d.count(&d.polls) > from+5 })
			if d.count(&d.claims) != 0 || len(messages) != 0 {
				t.Error("a card in use was claimed")
			}
			tc.free(t, p, det)
			waitFor(t, "the report", func() bool { return d.report("1") == "done" })
		})
	}
}

func TestIntent_WhatCannotBeIsReported(t *testing.T) {
	t.Parallel()
	noSize := good("GPU-a", "")
	noSize.MemoryMiB = nil
	cases := map[string]struct {
		card   accel.Card
		form   accel.Form
		config func(*Config)
		want   string
	}{
		"unknown form":   {good("GPU-a", ""), "mig", nil, `failed form "mig"`},
		"size not known": {noSize, accel.Shared, nil, "failed " + reasonNoSize},
		"already so":     {good("GPU-a", ""), accel.Whole, nil, "done"},
		"the choice cannot be kept": {good("GPU-a", ""), accel.Shared, func(c *Config) {
			if err := os.MkdirAll(filepath.Join(c.StateDir, "forms.json", "in the way"), 0o755); err != nil {
				panic(err)
			}
		}, "failed keep chosen form"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			p := start(t, func(c *Config) {
				served(d)(c)
				if tc.config != nil {
					tc.config(c)
				}
			}, &bench{name: "x", cards: []accel.Card{tc.card}})
			receive(t, fingerprint(t, p))
			d.want("GPU-a", tc.form)
			waitFor(t, "the report", func() bool { return strings.HasPrefix(d.report("1"), tc.want) })
		})
	}
}

func TestIntent_UnreadableLeasesCountAsUse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := start(t, func(c *Config) { served(d)(c); c.StateDir = "/dev/null/state" }, &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}})
	receive(t, fingerprint(t, p))
	d.want("GPU-a", accel.Shared)
	from := d.count(&d.polls)
	waitFor(t, "more polls", func() bool { return d.count(&d.polls) > from+3 })
	if d.count(&d.claims) != 0 {
		t.Error("claimed though leases cannot be read")
	}
}

func TestIntent_FixedCardsAreNotAskedFor(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	auto, fixed := good("GPU-a", ""), good("GPU-b", "")
	fixed.Index = 1
	p := start(t, func(c *Config) { served(d)(c); c.Forms = map[string]string{"1": "whole"} }, &bench{name: "x", cards: []accel.Card{auto, fixed}})
	receive(t, fingerprint(t, p))
	d.want("GPU-b", accel.Shared)
	from := d.count(&d.polls)
	waitFor(t, "more polls", func() bool { return d.count(&d.polls) > from+3 })
	if d.count(&d.claims) != 0 {
		t.Error("the form of a fixed card was claimed")
	}
}

// The service holds a poll open for half a minute: a card that comes meanwhile is asked for at once.
func TestIntent_ACardThatComesIsAskedForAtOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.holds = true
	d.want("GPU-b", accel.Shared)
	b := &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}}
	p := start(t, served(d), b)
	receive(t, fingerprint(t, p))
	waitFor(t, "a poll that is held open", func() bool { return d.count(&d.polls) > 0 })
	late := good("GPU-b", "")
	late.Index = 1
	b.mu.Lock()
	b.cards = append(b.cards, late)
	b.mu.Unlock()
	waitFor(t, "the report", func() bool { return d.report("1") == "done" })
}

func TestIntent_LostClaimChangesNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.lose = true
	p := start(t, served(d), &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}})
	messages := fingerprint(t, p)
	receive(t, messages)
	d.want("GPU-a", accel.Shared)
	waitFor(t, "claims", func() bool { return d.count(&d.claims) > 2 })
	if len(messages) != 0 {
		t.Errorf("switched without the claim: %v", lines(<-messages))
	}
}

func TestForms_HalfWrittenBookIsRefusedNotGuessed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "forms.json"), []byte(`{"GPU-a":"sha`), 0o600); err != nil {
		t.Fatal(err)
	}
	book, err := openForms(dir)
	if err == nil || len(book.chosen) != 0 {
		t.Errorf("got %v, %v", book.chosen, err)
	}
	if err := book.choose("GPU-b", accel.Shared); err != nil {
		t.Fatal(err)
	}
	if again, err := openForms(dir); err != nil || again.chosen["GPU-b"] != accel.Shared {
		t.Errorf("got %v, %v", again.chosen, err)
	}
}

// An administrator reads these in the agent's log, and has nothing else to go by.
func TestIntentClient_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(refuses.Close)
	away := httptest.NewServer(nil)
	away.Close()
	for name, c := range map[string]struct{ server, token, want string }{
		"no token":         {refuses.URL, "", "write token, what \"heteroflow key create -kind node NAME\" prints"},
		"a wrong token":    {refuses.URL, "hf-node-x", "check token in the plugin's config"},
		"nothing is there": {away.URL, "hf-node-x", "check server in the plugin's config"},
	} {
		_, err := newIntentClient(c.server, c.token).poll(t.Context(), []string{"GPU-a"})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "GPU-a") {
			t.Errorf("%s: %v; want it to say %q, and not to list the node's cards", name, err, c.want)
		}
	}
}

// Between a reservation and its task's lease the clock may be set: that makes no reservation older or younger than it is.
func TestHeld_ClockIsSet(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forward": time.Hour, "a minute forward": reserveGrace, "back": -time.Hour, "not": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}})
			var passed time.Duration
			p.elapsed = func() time.Duration { return passed }
			messages := fingerprint(t, p)
			receive(t, messages)
			reservation(t, p, "GPU-a")
			p.mu.Lock()
			defer p.mu.Unlock()
			now := p.now()
			p.now = func() time.Time { return now.Add(jump) }
			for _, passed = range []time.Duration{0, reserveGrace - 1} {
				if why := p.heldLocked("GPU-a"); why != "it was reserved a moment ago" {
					t.Errorf("after %s: held because %q", passed, why)
				}
				if granted, err := p.granted(); err != nil || !granted["GPU-a"] {
					t.Errorf("after %s: granted are %v, %v", passed, granted, err)
				}
			}
			passed = reserveGrace
			if why := p.heldLocked("GPU-a"); why != "" {
				t.Errorf("after %s: held because %q", passed, why)
			}
			if granted, err := p.granted(); err != nil || granted["GPU-a"] {
				t.Errorf("after %s: granted are %v, %v", passed, granted, err)
			}
		})
	}
}
