package device

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func ptr[T any](v T) *T { return &v }

func good(uuid, pci string) accel.Card {
	return accel.Card{
		Vendor: accel.NVIDIA, Model: "A40", RawName: "NVIDIA A40", UUID: uuid, PCIAddress: pci, MemoryMiB: ptr[uint64](46068),
		DriverVersion: "525.60.13", Form: accel.Whole, Health: accel.Health{OK: true},
	}
}

func bad(c accel.Card, why string) accel.Card {
	c.Health = accel.Health{Reason: why}
	return c
}

// states is UUID → reason, "ok" when healthy.
func states(t *tracker) map[string]string {
	out := map[string]string{}
	for _, c := range t.cards() {
		out[c.UUID] = c.Health.Reason
		if c.Health.OK {
			out[c.UUID] = "ok"
		}
	}
	return out
}

func wantStates(t *testing.T, tr *tracker, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, states(tr)); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
}

func TestTracker_PatientWithOneBadReading(t *testing.T) {
	t.Parallel()
	tr := newTracker(3)
	a, b := good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0")
	tr.observe([]accel.Card{a, b})
	tr.observe([]accel.Card{a})
	tr.observe([]accel.Card{a, bad(b, "lost")})
	wantStates(t, tr, map[string]string{"GPU-a": "ok", "GPU-b": "ok"})
	tr.observe([]accel.Card{a, bad(b, "lost")})
	wantStates(t, tr, map[string]string{"GPU-a": "ok", "GPU-b": "lost"})
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{"GPU-a": "ok", "GPU-b": "ok"})
}

func TestTracker_NeverGone(t *testing.T) {
	t.Parallel()
	tr := newTracker(2)
	tr.observe([]accel.Card{good("GPU-a", "0000:01:00.0")})
	for range 5 {
		tr.observe(nil)
	}
	wantStates(t, tr, map[string]string{"GPU-a": reasonMissing})
	for range 2 {
		tr.fail(errors.New("the tool is gone"))
	}
	wantStates(t, tr, map[string]string{"GPU-a": "the tool is gone"})
}

func TestTracker_KeepsLastGoodFacts(t *testing.T) {
	t.Parallel()
	tr := newTracker(1)
	a := good("GPU-a", "0000:01:00.0")
	tr.observe([]accel.Card{a})
	dead := accel.Card{Vendor: accel.NVIDIA, Model: "unknown", UUID: "GPU-a", Health: accel.Health{Reason: "dead"}}
	tr.observe([]accel.Card{dead})
	want := bad(a, "dead")
	if diff := cmp.Diff([]accel.Card{want}, tr.cards()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTracker_NewDeadCardIsListedAtOnce(t *testing.T) {
	t.Parallel()
	tr := newTracker(3)
	tr.observe([]accel.Card{bad(good("PCI-0000:83:00.0", "0000:83:00.0"), "ERR!")})
	wantStates(t, tr, map[string]string{"PCI-0000:83:00.0": "ERR!"})
}

func TestTracker_DeadCardIsKnownByItsPlace(t *testing.T) {
	t.Parallel()
	tr := newTracker(1)
	tr.observe([]accel.Card{good("GPU-a", "0000:83:00.0")})
	tr.observe([]accel.Card{bad(good("PCI-0000:83:00.0", "0000:83:00.0"), "lost")})
	wantStates(t, tr, map[string]string{"GPU-a": "lost"})
}

func TestTracker_PlaceLearnsItsUUID(t *testing.T) {
	t.Parallel()
	tr := newTracker(3)
	tr.observe([]accel.Card{bad(good("PCI-0000:83:00.0", "0000:83:00.0"), "no driver")})
	tr.observe([]accel.Card{good("GPU-a", "0000:83:00.0")})
	wantStates(t, tr, map[string]string{"GPU-a": "ok"})
}

func TestTracker_PartitionsDieAndChangeWithTheirBoard(t *testing.T) {
	t.Parallel()
	part := func(uuid string) accel.Card {
		c := good(uuid, "0000:09:00.0")
		c.Form, c.Model = accel.Partition, "H100 MIG 1g.10gb"
		return c
	}
	tr := newTracker(1)
	tr.observe([]accel.Card{part("MIG-1"), part("MIG-2")})
	tr.observe([]accel.Card{bad(good("GPU-a", "0000:09:00.0"), "lost")})
	wantStates(t, tr, map[string]string{"MIG-1": "lost", "MIG-2": "lost"})
	tr.observe([]accel.Card{part("MIG-1"), part("MIG-3")}) // made anew by the administrator
	wantStates(t, tr, map[string]string{"MIG-1": "ok", "MIG-3": "ok"})
	tr.observe([]accel.Card{good("GPU-a", "0000:09:00.0")}) // MIG mode switched off
	wantStates(t, tr, map[string]string{"GPU-a": "ok"})
}

// Whatever the readings say, a card that was good once stays listed, its facts never change, and it is unhealthy
// exactly when its last readings in a row were bad.
// A divided board is listed beside its parts: they die with it, and are gone when it is whole again.
func TestTracker_PartsOfAListedBoard(t *testing.T) {
	t.Parallel()
	tr := newTracker(1)
	board, twin, part := good("NPU-a", "0000:01:00.0"), good("NPU-b", "0000:01:00.0"), good("NPU-a-v100", "0000:01:00.0")
	board.Form, part.Form, part.Parent = accel.Divided, accel.Partition, "NPU-a"
	tr.observe([]accel.Card{board, twin, part})
	wantStates(t, tr, map[string]string{"NPU-a": "ok", "NPU-b": "ok", "NPU-a-v100": "ok"})
	tr.observe([]accel.Card{bad(board, "lost"), twin})
	wantStates(t, tr, map[string]string{"NPU-a": "lost", "NPU-b": "ok", "NPU-a-v100": "lost"})
	tr.observe([]accel.Card{board, part})
	wantStates(t, tr, map[string]string{"NPU-a": "ok", "NPU-b": reasonMissing, "NPU-a-v100": "ok"})
	board.Form = accel.Whole
	tr.observe([]accel.Card{board, twin})
	wantStates(t, tr, map[string]string{"NPU-a": "ok", "NPU-b": "ok"})
}

// A tool that forgets the parts of a card once, or some of them, neither takes them from those who use them nor has the
// card offered whole beside them. That it is whole again counts when it was said as often as that a card is sick.
func TestTracker_PartsForgottenOnce(t *testing.T) {
	t.Parallel()
	for name, pci := range map[string]string{"at a known place": "0000:01:00.0", "without a place": ""} {
		for how, parent := range map[string]bool{"board listed": true, "parts alone": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				whole, board := good("GPU-a", pci), good("GPU-a", pci)
				board.Form = accel.Divided
				one, two := good("GPU-a-1", pci), good("GPU-a-2", pci)
				one.Form, one.Parent, two.Form, two.Parent = accel.Partition, "GPU-a", accel.Partition, "GPU-a"
				parts := []accel.Card{one, two}
				want := map[string]string{"GPU-a-1": "ok", "GPU-a-2": "ok"}
				if parent {
					parts = append(parts, board)
					want["GPU-a"] = "ok"
				}
				tr := newTracker(3)
				tr.observe(parts)
				for range 3 {
					tr.observe([]accel.Card{whole})
					tr.observe([]accel.Card{whole})
					wantStates(t, tr, want)
					wantOneForm(t, tr)
					tr.observe(parts[1:])
					tr.observe(parts)
					wantStates(t, tr, want)
				}
				for range 3 {
					tr.observe([]accel.Card{whole})
				}
				wantStates(t, tr, map[string]string{"GPU-a": "ok"})
				if form := tr.cards()[0].Form; form != accel.Whole {
					t.Errorf("the card is %s after its parts are gone", form)
				}
				tr.observe(parts)
				wantStates(t, tr, want)
			})
		}
	}
}

// A tool that tells no places may name its cards otherwise after an upgrade: the old names do not stay as sick cards.
func TestTracker_OtherNamesWithoutPlaces(t *testing.T) {
	t.Parallel()
	at := func(uuid string, index int) accel.Card {
		c := good(uuid, "")
		c.Index = index
		return c
	}
	tr := newTracker(2)
	tr.observe([]accel.Card{at("GPU-a", 0), at("GPU-b", 1)})
	tr.observe([]accel.Card{at("SN-a", 0), at("SN-b", 1)})
	wantStates(t, tr, map[string]string{"SN-a": "ok", "SN-b": "ok"})
	tr.observe([]accel.Card{at("SN-b", 0)}) // the first is gone, and they are counted anew
	tr.observe([]accel.Card{at("SN-b", 0)})
	wantStates(t, tr, map[string]string{"SN-a": reasonMissing, "SN-b": "ok"})
}

func TestTracker_RemembersNoEndlessNames(t *testing.T) {
	t.Parallel()
	tr := newTracker(1)
	for n := range 3 * mostKnown {
		c := good(fmt.Sprintf("GPU-%d", n), fmt.Sprintf("%04x:01:00.0", n))
		c.Index = -1
		tr.observe([]accel.Card{c})
	}
	if n := len(tr.known); n > mostKnown+1 {
		t.Errorf("%d cards are remembered", n)
	}
}

// A part may be named otherwise for one reading, such as by its place when the list of the tool is not answered: it is not
// offered under two names. Parts that were made anew come when the old ones are gone for certain.
func TestTracker_PartsNamedOtherwise(t *testing.T) {
	t.Parallel()
	part := func(uuid, parent string) accel.Card {
		c := good(uuid, "0000:01:00.0")
		c.Form, c.Parent = accel.Partition, parent
		return c
	}
	board := good("GPU-a", "0000:01:00.0")
	board.Form = accel.Divided
	nameless := board
	nameless.UUID = "PCI-0000:01:00.0"
	usual := []accel.Card{board, part("MIG-1", "GPU-a"), part("MIG-2", "GPU-a")}
	want := map[string]string{"GPU-a": "ok", "MIG-1": "ok", "MIG-2": "ok"}
	tr := newTracker(3)
	for range 3 {
		tr.observe(usual)
		tr.observe([]accel.Card{board, part("MIG-GPU-a/1/0", "GPU-a"), part("MIG-GPU-a/2/0", "GPU-a")})
		wantStates(t, tr, want)
		tr.observe([]accel.Card{nameless, part("MIG-PCI/1/0", nameless.UUID), part("MIG-PCI/2/0", nameless.UUID)})
		wantStates(t, tr, want)
	}
	tr.observe(usual)
	tr.observe(append(slices.Clone(usual), part("MIG-3", "GPU-a"))) // one more is no matter of doubt
	want["MIG-3"] = "ok"
	wantStates(t, tr, want)
	for range 3 {
		wantStates(t, tr, want)
		tr.observe([]accel.Card{board, part("MIG-4", "GPU-a")})
	}
	wantStates(t, tr, map[string]string{"GPU-a": "ok", "MIG-4": "ok"})
}

// Whatever forms of a tool's output are answered when, a part is not offered under two names: the table knows places and no
// names, the list names and no places.
func TestTracker_PropertyOnePart(t *testing.T) {
	t.Parallel()
	const place = "0000:01:00.0"
	listing := func(board, pci string, parts ...string) []accel.Card {
		b := good(board, pci)
		b.Form = accel.Divided
		other := good("GPU-z", "")
		if pci != "" {
			other = good("GPU-z", "0000:02:00.0")
		}
		cards := []accel.Card{b, other}
		for _, uuid := range parts {
			part := good(uuid, pci)
			part.Form, part.Parent = accel.Partition, board
			cards = append(cards, part)
		}
		return cards
	}
	whole := good("GPU-a", place)
	readings := [][]accel.Card{
		listing("GPU-a", place, "MIG-1", "MIG-2"), listing("GPU-a", place, "MIG-1"), listing("GPU-a", "", "MIG-1", "MIG-2"),
		listing("PCI-"+place, place, "MIG-PCI/1", "MIG-PCI/2"), listing("GPU-a", place, "MIG-GPU-a/1", "MIG-GPU-a/2"),
		{whole},
		{good("GPU-a", "")},
		{bad(good("PCI-"+place, place), "lost")},
		nil,
	}
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker(rapid.IntRange(1, 4).Draw(t, "limit"))
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, len(readings)-1), 1, 40).Draw(t, "readings") {
			tr.observe(readings[n])
			parts, wholes := 0, 0
			for _, c := range tr.cards() {
				switch {
				case c.UUID == "GPU-z":
				case c.Form == accel.Partition && c.Health.OK:
					parts++
				case c.Form == accel.Whole && c.Health.OK:
					wholes++
				}
			}
			if parts > 2 || wholes > 1 || parts > 0 && wholes > 0 {
				t.Fatalf("%d parts and %d whole cards are offered of a card in two parts: %v", parts, wholes, states(tr))
			}
		}
		for range tr.limit {
			tr.observe(readings[0])
		}
		for _, uuid := range []string{"GPU-a", "MIG-1", "MIG-2"} {
			if got := states(tr); got[uuid] != "ok" {
				t.Fatalf("%s does not come back: %v", uuid, got)
			}
		}
	})
}

// Of cards whose tool tells no places the kernel tells nothing but those: they are not there twice when the tool comes or
// goes.
func TestTracker_PlacesOfCardsWithoutPlaces(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][2]string{"counted": {"INDEX-0", "INDEX-1"}, "named": {"DCU-a", "DCU-b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := func(uuid, pci string, index int) accel.Card {
				c := good(uuid, pci)
				c.Index = index
				return c
			}
			byTool := []accel.Card{at(ids[0], "", 0), at(ids[1], "", 1)}
			byKernel := []accel.Card{at("PCI-0000:01:00.0", "0000:01:00.0", -1), at("PCI-0000:02:00.0", "0000:02:00.0", -1)}
			want := map[string]string{ids[0]: "ok", ids[1]: "ok"}
			tr := newTracker(3)
			tr.observe(byKernel)
			wantStates(t, tr, map[string]string{"PCI-0000:01:00.0": "ok", "PCI-0000:02:00.0": "ok"})
			for range 2 {
				tr.observe(byTool)
				wantStates(t, tr, want)
				tr.observe(byKernel)
				tr.observe(byKernel)
				wantStates(t, tr, want)
			}
			tr.observe(byKernel)
			wantStates(t, tr, map[string]string{ids[0]: reasonMissing, ids[1]: reasonMissing})
			tr.observe(append(slices.Clone(byKernel), at("PCI-0000:03:00.0", "0000:03:00.0", -1))) // one more than there were
			wantStates(t, tr, map[string]string{ids[0]: reasonMissing, ids[1]: reasonMissing, "PCI-0000:03:00.0": "ok"})
		})
	}
}

// wantOneForm checks that no card is offered whole beside its parts.
func wantOneForm(t interface{ Errorf(string, ...any) }, tr *tracker) {
	for _, part := range tr.cards() {
		for _, c := range tr.cards() {
			if part.Form == accel.Partition && c.UUID == part.Parent && c.Form != accel.Divided {
				t.Errorf("%s is offered as %s beside its part %s", c.UUID, c.Form, part.UUID)
			}
		}
	}
}

// Whatever a tool says of a divided card and when, the card is never offered in two forms at once.
func TestTracker_PropertyOneForm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker(rapid.IntRange(1, 4).Draw(t, "limit"))
		pci := rapid.SampledFrom([]string{"", "0000:01:00.0"}).Draw(t, "place")
		board, twin := good("GPU-a", pci), good("GPU-b", pci)
		for range rapid.IntRange(1, 40).Draw(t, "readings") {
			var listed []accel.Card
			for n := range rapid.IntRange(0, 3).Draw(t, "parts") {
				part := good("GPU-a-"+string(rune('1'+(n+rapid.IntRange(0, 2).Draw(t, "which"))%5)), pci)
				part.Form, part.Parent = accel.Partition, "GPU-a"
				if !slices.ContainsFunc(listed, func(c accel.Card) bool { return c.UUID == part.UUID }) {
					listed = append(listed, part)
				}
			}
			b := board
			b.Form = accel.Whole
			if len(listed) > 0 {
				b.Form = accel.Divided
			}
			switch rapid.IntRange(0, 5).Draw(t, "board") {
			case 0:
				b = bad(b, "lost")
				listed = append(listed, b)
			case 1: // not listed
			case 2:
				b.UUID = "PCI-" + pci
				listed = append([]accel.Card{bad(b, "no driver")}, listed...)
			default:
				listed = append([]accel.Card{b}, listed...)
			}
			if rapid.Bool().Draw(t, "twin") {
				listed = append(listed, twin)
			}
			if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
				tr.fail(errors.New("timeout"))
			} else {
				tr.observe(listed)
			}
			wantOneForm(t, tr)
		}
	})
}

func TestTracker_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		tr := newTracker(limit)
		all := []accel.Card{good("GPU-a", "0000:01:00.0"), good("GPU-b", "0000:02:00.0"), good("GPU-c", "0000:03:00.0")}
		tr.observe(all)
		badInARow := map[string]int{}
		for range rapid.IntRange(1, 30).Draw(t, "readings") {
			if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
				tr.fail(errors.New("timeout"))
				for _, c := range all {
					badInARow[c.UUID]++
				}
				continue
			}
			var listed []accel.Card
			for _, c := range all {
				switch rapid.IntRange(0, 3).Draw(t, "state") {
				case 0: // missing
					badInARow[c.UUID]++
				case 1:
					listed = append(listed, bad(c, "lost"))
					badInARow[c.UUID]++
				case 2:
					c.UUID, c.Model, c.MemoryMiB = "PCI-"+c.PCIAddress, "unknown", nil
					listed = append(listed, bad(c, "ERR!"))
					badInARow[all[slices.IndexFunc(all, func(o accel.Card) bool { return o.PCIAddress == c.PCIAddress })].UUID]++
				default:
					listed = append(listed, c)
					badInARow[c.UUID] = 0
				}
			}
			tr.observe(listed)
		}
		got := tr.cards()
		if len(got) != len(all) {
			t.Fatalf("%d cards listed, want %d", len(got), len(all))
		}
		for i, c := range got {
			if want := badInARow[c.UUID] < limit; c.Health.OK != want {
				t.Errorf("%s: ok %v after %d bad readings of %d", c.UUID, c.Health.OK, badInARow[c.UUID], limit)
			}
			if c.Health.OK == (c.Health.Reason != "") {
				t.Errorf("%s: health %+v", c.UUID, c.Health)
			}
			c.Health = all[i].Health
			if diff := cmp.Diff(all[i], c); diff != "" {
				t.Errorf("facts changed (-want +got):\n%s", diff)
			}
		}
	})
}

func TestTracker_TwoChipsAtOneAddress(t *testing.T) {
	t.Parallel()
	tr := newTracker(2)
	a, b := good("NPU-0000:01:00.0-0", "0000:01:00.0"), good("NPU-0000:01:00.0-1", "0000:01:00.0")
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{a.UUID: "ok", b.UUID: "ok"})
	tr.observe([]accel.Card{a})
	tr.observe([]accel.Card{a})
	wantStates(t, tr, map[string]string{a.UUID: "ok", b.UUID: reasonMissing})
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{a.UUID: "ok", b.UUID: "ok"})
}

func TestTracker_SickChipBesideAGoodOne(t *testing.T) {
	t.Parallel()
	tr := newTracker(1)
	a, b := good("NPU-0000:01:00.0-0", "0000:01:00.0"), bad(good("NPU-0000:01:00.0-1", "0000:01:00.0"), "Alarm")
	tr.observe([]accel.Card{a, b})
	wantStates(t, tr, map[string]string{a.UUID: "ok", b.UUID: "Alarm"})
}

// A reading that names the cards without their places, beside the places that the kernel lists, is a bad one: what it made
// of the places does not stay.
func TestTracker_ForgetsWhatWasOnlyAPlace(t *testing.T) {
	t.Parallel()
	tr := newTracker(2)
	a, place := good("GPU-a", "0000:01:00.0"), bad(good("PCI-0000:01:00.0", "0000:01:00.0"), "not reported")
	tr.observe([]accel.Card{a})
	tr.observe([]accel.Card{good("GPU-a", ""), place})
	tr.observe([]accel.Card{a})
	wantStates(t, tr, map[string]string{"GPU-a": "ok"})
}
