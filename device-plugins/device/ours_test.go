package device

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// A shop is a machine on which the driver and an administrator divide cards, with the driver's notes beside it.
type shop struct {
	dir    string
	now    time.Time
	cards  []accel.Card
	parts  map[string][]string // card → its parts
	hidden bool                // the tool lists no parts, and tells only that the card is divided
	during func()              // what happens between the list and its delivery
	asked  time.Time           // when the tool told last; zero: at each reading
}

var _ Ager = (*shop)(nil)

// AsOf is when the tool told last.
func (s *shop) AsOf() time.Time {
	if s.asked.IsZero() {
		return s.now
	}
	return s.asked
}

func (s *shop) Name() string         { return "shop" }
func (s *shop) Vendor() accel.Vendor { return accel.NVIDIA }

func (s *shop) list() []accel.Card {
	var out []accel.Card
	for _, c := range s.cards {
		c.Modes = slices.Clone(c.Modes)
		if len(s.parts[c.UUID]) > 0 {
			c.Form = accel.Divided
			if s.hidden {
				c.Health = accel.Health{Reason: ReasonDivided}
			}
		}
		out = append(out, c)
		for _, id := range s.parts[c.UUID] {
			part := c
			part.UUID, part.Parent, part.Form, part.Modes, part.Model = id, c.UUID, accel.Partition, nil, c.Model+" vir04"
			if !s.hidden {
				out = append(out, part)
			}
		}
	}
	return out
}

func (s *shop) Detect(context.Context) ([]accel.Card, error) {
	if s.during == nil {
		return s.list(), nil
	}
	now := s.during
	s.during = nil
	listed := s.list()
	now()
	return listed, nil
}

func (s *shop) part(card, id string) { s.parts[card] = append(s.parts[card], id) }

func (s *shop) unpart(card, id string) {
	s.parts[card] = slices.DeleteFunc(s.parts[card], func(o string) bool { return o == id })
}

// must is for what the machine of a test cannot fail at.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *shop) lease(task, card string, form accel.Form) {
	l := grant.Lease{TaskID: task, Cards: []string{card}}
	if form != "" {
		l.Forms = map[string]accel.Form{card: form}
	}
	body, err := json.Marshal(l)
	must(err)
	replace(filepath.Join(s.dir, "leases", task+".lease.json"), body)
}

// replace writes a file as both plugins do, but for the waiting for the disk, which is most of the time of a property.
func replace(path string, body []byte) {
	must(os.MkdirAll(filepath.Dir(path), 0o755))
	must(os.WriteFile(path+".new", body, 0o600))
	must(os.Rename(path+".new", path))
}

func (s *shop) unlease(task string) { must(grant.RemoveLease(filepath.Join(s.dir, "leases"), task)) }

func (s *shop) entry(task string) string {
	return filepath.Join(s.dir, "shares", task+grant.ShareSuffix)
}

// issue writes an entry of the ledger as the driver does.
func (s *shop) issue(task, card string, form accel.Form, state grant.ShareState) {
	body, err := json.Marshal(map[string]any{"v": grant.ShareVersion, "state": state, "backend": "vnpu", "ask": map[string]any{
		"id": task, "task_id": task, "vendor": "nvidia", "card": grant.Card{UUID: card}, "form": form,
	}})
	must(err)
	replace(s.entry(task), body)
}

func (s *shop) drop(task string) { must(os.Remove(s.entry(task))) }

// opened is a plugin that looks at the shop, once for each call of its look.
func (s *shop) opened(forms map[string]string) *Plugin {
	p := New(func(Config) ([]Detector, error) { return []Detector{s}, nil }, hclog.NewNullLogger())
	p.now = func() time.Time { return s.now }
	cfg := DefaultConfig()
	cfg.RecoveryHold, cfg.StateDir, cfg.Forms, cfg.SliceMemory = "0s", s.dir, forms, "8GiB"
	must(p.Use(cfg))
	must(p.ready())
	return p
}

func see(p *Plugin) []*devicepb.DeviceGroup {
	p.observe(context.Background(), p.sources[0])
	groups, _ := p.groups()
	return groups
}

func newShop(dir string, cards ...accel.Card) *shop {
	return &shop{dir: dir, now: time.Unix(1e9, 0), cards: cards, parts: map[string][]string{}}
}

// sees checks the kinds of instances that are offered: "" where the card has a descriptor only.
func sees(t *testing.T, p *Plugin, when, want string) {
	t.Helper()
	if got := groupOf(see(p)); got != want {
		t.Errorf("%s: offered is %q, want %q", when, got, want)
	}
}

var (
	slicesOfAll = map[string]string{"A40": "shared"}
	migOfAll    = map[string]string{"A40": "mig"}
)

func inMIG(c accel.Card) accel.Card {
	c.Form, c.Modes = accel.MIG, []accel.Mode{accel.ModeMIG}
	c.Rounding = []accel.Rounding{{Mode: accel.ModeMIG, Parts: 7}}
	return c
}

func TestOurs_PartsOfTheDriverBelongToTheCard(t *testing.T) {
	t.Parallel()
	card := good("GPU-a", "0000:01:00.0")
	for name, tc := range map[string]struct {
		card  accel.Card
		forms map[string]string
		hold  func(*shop)
		want  string
		shut  bool // the tool does not list the parts
	}{
		"a lease":                    {card, slicesOfAll, func(s *shop) { s.lease("t", "GPU-a", accel.Shared) }, "vgpu", false},
		"a lease of an older driver": {card, slicesOfAll, func(s *shop) { s.lease("t", "GPU-a", "") }, "vgpu", false},
		"a share without its lease":  {card, slicesOfAll, func(s *shop) { s.issue("t", "GPU-a", accel.Shared, grant.ShareTimedOut) }, "vgpu", false},
		"hardware shares":            {inMIG(card), migOfAll, func(s *shop) { s.lease("t", "GPU-a", accel.MIG) }, "mig", false},
		"parts that nobody lists":    {card, slicesOfAll, func(s *shop) { s.issue("t", "GPU-a", accel.Shared, grant.ShareIssued) }, "vgpu", true},
		"a task has the card whole":  {card, nil, func(s *shop) { s.lease("t", "GPU-a", accel.Whole) }, "gpu", false}, // the part
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t.TempDir(), tc.card)
			s.hidden = tc.shut
			p := s.opened(tc.forms)
			before := see(p)
			tc.hold(s)
			s.part("GPU-a", "part-1")
			for _, p := range []*Plugin{p, s.opened(tc.forms)} { // also one that starts now
				after := see(p)
				if got := groupOf(after); got != tc.want {
					t.Errorf("offered is %q, want %q", got, tc.want)
				}
				if diff := cmp.Diff(before, after, protocmp.Transform()); (diff != "") == (tc.forms != nil) {
					t.Errorf("groups are the same: %v, want %v (-before +after)\n%s", diff == "", tc.forms != nil, diff)
				}
			}
		})
	}
}

func TestOurs_WithoutNotesPartsAreTheAdministrators(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
	p := s.opened(slicesOfAll)
	sees(t, p, "whole", "vgpu")
	s.part("GPU-a", "part-1")
	sees(t, p, "divided", "gpu")
	s.part("GPU-a", "part-2")
	s.lease("t", "part-1", accel.Partition)
	sees(t, s.opened(slicesOfAll), "a task has a part, after a start", "gpu")
	s.lease("late", "GPU-a", accel.Shared) // placed before it was divided
	s.issue("late", "GPU-a", accel.Shared, grant.ShareIssued)
	s.part("GPU-a", "part-3")
	sees(t, p, "what was divided stays divided", "gpu")
	sees(t, s.opened(slicesOfAll), "and over a start while a task has a part", "gpu")
}

// The administrator divides a card further on which tasks have shares: its slices stay until they have ended.
func TestOurs_PartsOfTheAdministratorBesideOurs(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
	p := s.opened(slicesOfAll)
	s.lease("t", "GPU-a", accel.Shared)
	s.part("GPU-a", "ours")
	sees(t, p, "held", "vgpu")
	s.part("GPU-a", "theirs")
	s.now = s.now.Add(time.Hour)
	sees(t, p, "held, and divided further", "vgpu")
	s.unpart("GPU-a", "ours")
	s.unlease("t")
	sees(t, p, "a moment after the end", "vgpu")
	s.now = s.now.Add(settleAfter)
	sees(t, p, "long after", "gpu")
	s.unpart("GPU-a", "theirs")
	for range 3 {
		see(p)
	}
	sees(t, p, "whole again", "vgpu")
}

// A tool that does not answer for minutes after a share has ended leaves the reading as it was: that shows nobody else's parts.
func TestOurs_WhatWasToldBeforeTheEndIsOurs(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
	p := s.opened(slicesOfAll)
	s.lease("t", "GPU-a", accel.Shared)
	s.part("GPU-a", "part-1")
	sees(t, p, "held", "vgpu")
	s.asked = s.now
	s.unlease("t")
	for _, pass := range []time.Duration{settleAfter, time.Hour} {
		s.now = s.now.Add(pass)
		sees(t, p, "long after, by what was told before the end", "vgpu")
	}
	s.asked = s.now
	sees(t, p, "told after the end", "gpu")
}

// A share that comes and goes between two readings, or during one, may be listed by a reading that finds no note of it.
func TestOurs_ShareThatIsGoneWhenItsNotesAreRead(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]bool{"gone": false, "listed a minute longer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
			p := s.opened(slicesOfAll)
			sees(t, p, "whole", "vgpu")
			s.part("GPU-a", "part-1") // as the list will have it
			s.during = func() {
				s.lease("t", "GPU-a", accel.Shared)
				s.unlease("t")
				if !stale {
					s.unpart("GPU-a", "part-1")
				}
			}
			sees(t, p, "during the reading", "vgpu")
			s.now = s.now.Add(time.Minute)
			sees(t, p, "a minute later", "vgpu")
			s.now = s.now.Add(settleAfter)
			if want := map[bool]string{false: "vgpu", true: "gpu"}[stale]; want != "" {
				sees(t, p, "when it is settled", want)
			}
		})
	}
}

// Before the plugin has offered anything nobody made a share: that the driver makes its folders at the same moment, as it
// does on a new node, says nothing of who divided a card.
func TestOurs_FoldersMadeDuringTheFirstReading(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
	s.part("GPU-a", "part-1")
	s.during = func() {
		must(os.MkdirAll(filepath.Join(s.dir, "leases"), 0o755))
		must(os.MkdirAll(filepath.Join(s.dir, "shares"), 0o755))
	}
	sees(t, s.opened(nil), "at the first reading", "gpu")
}

func TestOurs_NotesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0"))
	p := s.opened(slicesOfAll)
	s.part("GPU-b", "theirs")
	sees(t, p, "one is divided", "gpuvgpu")
	must(os.MkdirAll(filepath.Join(s.dir, "shares"), 0o755))
	must(os.WriteFile(s.entry("t"), []byte("{"), 0o600))
	s.part("GPU-a", "whose")
	s.part("GPU-b", "more")
	sees(t, p, "what was offered stays", "gpuvgpu")
	s.now = s.now.Add(time.Hour)
	sees(t, p, "as long as it lasts", "gpuvgpu")
	if text := p.parts.trouble; !strings.Contains(text, "t.share.json") {
		t.Errorf("said is %q", text)
	}
	if why := p.held("GPU-a"); !strings.Contains(why, "cannot be read") {
		t.Errorf("its form may be switched: %q", why)
	}
	again := s.opened(slicesOfAll)
	doubt := "vgpu: " + reasonDoubt
	sees(t, again, "after a start only what the administrator divided before is known", "gpu"+doubt)
	must(os.RemoveAll(filepath.Join(s.dir, "parts")))
	again = s.opened(slicesOfAll)
	sees(t, again, "after a start nobody knows", doubt+doubt)
	sees(t, again, "at every reading", doubt+doubt)
	s.issue("t", "GPU-a", accel.Shared, grant.ShareConfirmed)
	sees(t, again, "readable again", "gpuvgpu")
	sees(t, p, "readable again, in the other", "gpuvgpu")
}

func TestIntent_ShareWithoutItsLeaseIsUse(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), good("GPU-a", "0000:01:00.0"))
	p := s.opened(nil)
	s.issue("t", "GPU-a", accel.Shared, grant.ShareReleasing)
	if why := p.held("GPU-a"); why != "a share of task t is on it still" {
		t.Errorf("held: %q", why)
	}
}

// A share of the driver, and how far it is: leased, issued, made, confirmed, releasing, unmade, dropped.
type stage struct {
	task, card, part string
	form             accel.Form
	step             int
}

// forward takes one step of a share's life; false after the last. Any other thing may happen between two steps.
func (s *shop) forward(x *stage) bool {
	switch x.step++; x.step {
	case 1:
		s.lease(x.task, x.card, x.form)
	case 2:
		s.issue(x.task, x.card, x.form, grant.ShareIssued)
	case 3:
		s.part(x.card, x.part)
	case 4:
		s.issue(x.task, x.card, x.form, grant.ShareConfirmed)
	case 5:
		s.issue(x.task, x.card, x.form, grant.ShareReleasing)
	case 6:
		s.unpart(x.card, x.part)
	case 7:
		s.drop(x.task)
	case 8:
		s.unlease(x.task)
		return false
	}
	return true
}

// Over any history of shares that come, go and are lost halfway, of readings between and during their steps, and of starts
// of the plugin, nothing that Nomad sees changes; an administrator's parts are seen in the end.
func TestOurs_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "ours")
		must(err)
		defer os.RemoveAll(dir) //nolint:errcheck // a leftover hurts nobody
		rules := map[string]string{"GPU-0": "shared", "GPU-1": "mig"}
		s := newShop(dir, good("GPU-0", "0000:01:00.0"), inMIG(good("GPU-1", "0000:02:00.0")), good("GPU-2", "0000:03:00.0"))
		s.hidden = rapid.Bool().Draw(t, "hidden")
		p := s.opened(rules)
		first := see(p)
		var alive []*stage
		made := 0
		act := func(t *rapid.T) {
			if n := len(alive); n > 0 && rapid.IntRange(0, 9).Draw(t, "begin") > 1 {
				at := rapid.IntRange(0, n-1).Draw(t, "which")
				if !s.forward(alive[at]) {
					alive = slices.Delete(alive, at, at+1)
				}
				return
			}
			made++
			card := rapid.IntRange(0, 1).Draw(t, "card")
			form := []accel.Form{accel.Shared, accel.MIG}[card]
			alive = append(alive, &stage{fmt.Sprintf("t%d", made), s.cards[card].UUID, fmt.Sprintf("part-%d", made), form, 0})
		}
		check := func(t *rapid.T) {
			if diff := cmp.Diff(first, see(p), protocmp.Transform()); diff != "" {
				t.Fatalf("groups changed (-first +now):\n%s", diff)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"act":  act,
			"wait": func(t *rapid.T) { s.now = s.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "s")) * time.Second) },
			"see":  check,
			"see during": func(t *rapid.T) {
				s.during = func() {
					for range rapid.IntRange(1, 8).Draw(t, "steps") {
						act(t)
					}
				}
				check(t)
			},
			"lose a lease": func(t *rapid.T) {
				for _, x := range alive {
					if x.step > 1 && x.step < 7 {
						s.unlease(x.task)
						return
					}
				}
			},
			"start": func(t *rapid.T) { p = s.opened(rules); check(t) },
		})
		for _, x := range alive {
			for s.forward(x) {
				continue
			}
		}
		check(t)
		s.part("GPU-0", "theirs")
		s.now = s.now.Add(settleAfter)
		for range 4 { // a card whose parts are not listed becomes sick
			see(p)
			s.now = s.now.Add(settleAfter)
		}
		if groupOf(see(p)) == groupOf(first) {
			t.Fatal("an administrator's part is never seen")
		}
	})
}

// Another tool, which is asked where the first does not answer, may list the parts and tell no mode.
func TestOurs_ToolThatTellsNoMode(t *testing.T) {
	t.Parallel()
	s := newShop(t.TempDir(), inMIG(good("GPU-a", "0000:01:00.0")))
	p := s.opened(migOfAll)
	before := see(p)
	s.lease("t", "GPU-a", accel.MIG)
	s.part("GPU-a", "part-1")
	s.cards[0].Modes = nil
	if diff := cmp.Diff(before, see(p), protocmp.Transform()); diff != "" {
		t.Errorf("groups changed (-before +after):\n%s", diff)
	}
}
