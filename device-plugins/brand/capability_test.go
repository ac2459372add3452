package brand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// boards draws a machine: boards with one card each, with several cards on one address, with a maker's number, without one,
// with one that all share, or divided into parts.
func boards(t *rapid.T) []Card {
	var cards []Card
	for board := range rapid.IntRange(1, 6).Draw(t, "boards") {
		place := fmt.Sprintf("%04x:%02x:00.0", rapid.IntRange(0, 1).Draw(t, "domain"), board) // the same bus may be in two domains
		number := rapid.SampledFrom([]string{"", "same", fmt.Sprintf("sn%d", board)}).Draw(t, "number")
		chips := rapid.IntRange(1, 3).Draw(t, "chips")
		for chip := range chips {
			c := Card{ID: number, PCI: place, Name: "x"}
			if chips > 1 || number == "same" && rapid.Bool().Draw(t, "numbered") {
				c.Part = fmt.Sprint(chip)
			}
			if rapid.Bool().Draw(t, "divided") {
				c.Split(Part{ID: "a", Kind: "half"})
				c.Split(Part{ID: "b", Kind: "half"})
			}
			cards = append(cards, c)
		}
	}
	return cards
}

// owners is what each identity stands for: the place and the chip, as the test knows them.
func owners(r Reading, spec Spec) map[string]string {
	out := map[string]string{}
	for i, c := range r.Offer(spec) {
		out[c.UUID] = r.Cards[i].PCI + "#" + r.Cards[i].Part
		for n, part := range r.Cards[i].parts(c) {
			out[part.UUID] = r.Cards[i].PCI + "#" + r.Cards[i].Part + "#" + r.Cards[i].Parts[n].ID
		}
	}
	return out
}

// A machine whose cards are listed in another order and counted anew, as after a reboot or under a newer tool, has the same
// identities for the same cards; the index is the tool's own, whatever it is.
func TestIdentity_SurvivesReorderAndNewNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := Spec{Vendor: accel.Ascend, Prefix: "NPU-"}
		before := Reading{Cards: boards(t)}
		for i := range before.Cards {
			before.Cards[i].Index = &i
		}
		after := Reading{Cards: rapid.Permutation(before.Cards).Draw(t, "order")}
		first := rapid.IntRange(0, 9).Draw(t, "first")
		for i := range after.Cards {
			n := first + i*rapid.IntRange(1, 3).Draw(t, "gap") // sparse numbers
			after.Cards[i].Index = &n
		}
		want, got := owners(before, spec), owners(after, spec)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("identities (-before +after):\n%s", diff)
		}
		if len(want) != len(before.Cards)+2*count(before.Cards) {
			t.Fatalf("%d identities of %d cards and %d divided ones", len(want), len(before.Cards), count(before.Cards))
		}
		for i, c := range after.Offer(spec) {
			if c.Index != *after.Cards[i].Index {
				t.Fatalf("card %s has the index %d, the tool says %d", c.UUID, c.Index, *after.Cards[i].Index)
			}
			if strings.HasPrefix(c.UUID, "INDEX-") {
				t.Fatalf("card %+v is named by its index, though it has a place of its own", after.Cards[i])
			}
		}
	})
}

func count(cards []Card) int {
	n := 0
	for _, c := range cards {
		if len(c.Parts) > 0 {
			n++
		}
	}
	return n
}

func TestMode_MergedWithItsSource(t *testing.T) {
	t.Parallel()
	var a, b Card
	a.Mode(accel.ModeHAMi, "/lib.so")
	b.Mode(accel.ModeVDCU, "cli")
	b.Mode(accel.ModeHAMi, "cli")
	b.Divided, b.Rounding = true, []accel.Rounding{{Mode: accel.ModeVDCU, StepMiB: 1}, {Mode: accel.ModeMIG, StepMiB: 1}}
	a.merge(b)
	r := Reading{Cards: []Card{a}}
	r.Cards[0].PCI = "0000:01:00.0"
	c := r.Offer(Spec{Vendor: accel.Hygon, Prefix: "DCU-"})[0]
	want := map[string]string{"modes/hami": "/lib.so", "modes/vdcu": "cli", "pci_bus_id": "cli"}
	if diff := cmp.Diff(want, c.Sources); diff != "" || !slices.Equal(c.Modes, []string{"hami", "vdcu"}) {
		t.Errorf("modes %v, sources (-want +got):\n%s", c.Modes, diff)
	}
	if c.Form != accel.Divided || c.Health.Reason != ReasonDivided || len(c.Rounding) != 1 {
		t.Errorf("card %+v", c)
	}
}

// A call that is made seldom is made once a minute; where it fails later or does not end, what it said before holds, and it is
// asked again soon.
func TestSeldom_AnAnswerHolds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := New(Spec{Seldom: func(args []string) bool { return args[0] == "slow" }}, Config{}, hclog.NewNullLogger())
	d.now = func() time.Time { return now }
	d.asOf = now // as a reading begins
	ctx, cancel := context.WithCancel(context.Background())
	calls := map[string]int{}
	var fails error
	failed := false
	call := d.seldom(ctx, "tool", func(args ...string) (string, bool, error) {
		calls[args[0]]++
		if fails != nil || failed {
			return "internal error", true, fails
		}
		return args[0], false, nil
	})
	ask := func(name string) string {
		text, err := call(name)
		if err != nil {
			return err.Error()
		}
		return text
	}
	for range 3 {
		ask("slow")
		ask("fast")
	}
	if diff := cmp.Diff(map[string]int{"slow": 1, "fast": 3}, calls); diff != "" {
		t.Error(diff)
	}
	told := now
	now = now.Add(holdAnswer)
	failed = true
	for range 2 {
		if got := ask("slow"); got != "slow" || calls["slow"] != 2 || !d.AsOf().Equal(told) {
			t.Errorf("failed: %q after %v, of %s", got, maps.Clone(calls), d.AsOf())
		}
	}
	now = now.Add(askAgain)
	cancel() // from now on no call ends in time
	fails = errors.New("no answer")
	if got := ask("slow"); got != "slow" || calls["slow"] != 3 || !d.AsOf().Equal(told) {
		t.Errorf("not in time: %q after %v, of %s", got, maps.Clone(calls), d.AsOf())
	}
	now, fails, failed = now.Add(askAgain), nil, false
	d.asOf = now
	if got := ask("slow"); got != "slow" || calls["slow"] != 4 || !d.AsOf().Equal(now) {
		t.Errorf("again: %q after %v, of %s", got, maps.Clone(calls), d.AsOf())
	}
	for i := range 2 * maxAnswers {
		d.held[fmt.Sprint(i)] = answer{}
	}
	if _, err := d.seldom(context.Background(), "tool", func(...string) (string, bool, error) { return "x", false, nil })("slow", "new"); err != nil || len(d.held) != 1 {
		t.Errorf("%d answers are held, %v", len(d.held), err)
	}
}
