package device

import (
	"errors"
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
