// Package detectortest is the suite that every detector must pass, whatever brand it reads. What a brand's tool prints
// is tested with the brand.
package detectortest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Run checks a detector on a machine with at least one card.
func Run(t *testing.T, d device.Detector) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cards, err := d.Detect(ctx)
	if err != nil || len(cards) == 0 {
		t.Fatalf("%d cards, error %v", len(cards), err)
	}
	seen := map[string]bool{}
	for _, c := range cards {
		checkCard(t, d, c)
		if seen[c.UUID] {
			t.Errorf("two cards have the identity %q", c.UUID)
		}
		seen[c.UUID] = true
	}
	for _, c := range cards {
		i := slices.IndexFunc(cards, func(o accel.Card) bool { return o.UUID == c.Parent })
		if i >= 0 && cards[i].Form != accel.Divided {
			t.Errorf("partition %s is listed beside %s, which is offered as %s: memory would be given away twice", c.UUID, c.Parent, cards[i].Form)
		}
	}
	again, err := d.Detect(ctx)
	if err != nil {
		t.Fatalf("second reading: %v", err)
	}
	if diff := cmp.Diff(cards, again); diff != "" {
		t.Errorf("facts changed between two readings (-first +second):\n%s", diff)
	}
	checkAbilities(ctx, t, d, cards)
	checkEnd(t, d)
}

func checkCard(t *testing.T, d device.Detector, c accel.Card) {
	t.Helper()
	if c.Vendor != d.Vendor() {
		t.Errorf("card %s is of %q, the detector of %q", c.UUID, c.Vendor, d.Vendor())
	}
	if c.UUID == "" || c.UUID[0] < 'A' || c.UUID[0] > 'z' {
		t.Errorf("identity %q does not start with a letter: Nomad would read it as a number", c.UUID)
	}
	if c.Model == "" {
		t.Errorf("card %s has no model: write unknown", c.UUID)
	}
	if c.Health.OK == (c.Health.Reason != "") {
		t.Errorf("card %s: health %+v", c.UUID, c.Health)
	}
	if !slices.Contains([]accel.Form{accel.Whole, accel.Divided, accel.Partition, accel.MIG}, c.Form) {
		t.Errorf("card %s has the form %q: a detector finds whole and divided cards, partitions, and cards in MIG mode", c.UUID, c.Form)
	}
	checkCapability(t, c)
	if !slices.IsSorted(c.Modes) {
		t.Errorf("card %s: modes %v are not sorted", c.UUID, c.Modes)
	}
	if c.MemoryMiB != nil && *c.MemoryMiB == 0 {
		t.Errorf("card %s has no memory: unknown is nil, not 0", c.UUID)
	}
}

// checkCapability sees that what a card can do was probed, that the probe is named, and that a part names its whole.
func checkCapability(t *testing.T, c accel.Card) {
	t.Helper()
	for _, mode := range c.Modes {
		if c.Sources[accel.SourceOfMode(mode)] == "" {
			t.Errorf("card %s has the mode %s and no source for it: modes are probed, never known from a name", c.UUID, mode)
		}
	}
	if c.Form == accel.Partition && len(c.Modes) > 0 {
		t.Errorf("partition %s has the modes %v: it is not divided again", c.UUID, c.Modes)
	}
	if c.Parent != "" && (c.Form != accel.Partition || c.Parent == c.UUID) {
		t.Errorf("card %s of the form %s has the parent %s", c.UUID, c.Form, c.Parent)
	}
	for _, r := range c.Rounding {
		if !slices.Contains(c.Modes, r.Mode) {
			t.Errorf("card %s has a rule for %s, which is none of its modes %v", c.UUID, r.Mode, c.Modes)
		}
	}
	text := accel.FormatRounding(c.Rounding)
	if again, err := accel.ParseRounding(text); err != nil || accel.FormatRounding(again) != text {
		t.Errorf("card %s: the rules %s cannot be read back: %v", c.UUID, text, err)
	}
}

func checkAbilities(ctx context.Context, t *testing.T, d device.Detector, cards []accel.Card) {
	t.Helper()
	mine := func(uuid string) bool {
		return slices.ContainsFunc(cards, func(c accel.Card) bool { return c.UUID == uuid })
	}
	if s, ok := d.(device.Sampler); ok {
		samples, err := s.Sample(ctx, cards)
		if err != nil {
			t.Errorf("sample: %v", err)
		}
		for uuid := range samples {
			if !mine(uuid) {
				t.Errorf("a sample of %q, which is none of the cards", uuid)
			}
		}
	}
	if l, ok := d.(device.ProcessLister); ok {
		processes, err := l.Processes(ctx, cards)
		if err != nil {
			t.Errorf("processes: %v", err)
		}
		for uuid := range processes {
			if !mine(uuid) {
				t.Errorf("processes of %q, which is none of the cards", uuid)
			}
		}
	}
}

// checkEnd makes sure that a context that has ended is not answered with an empty machine.
func checkEnd(t *testing.T, d device.Detector) {
	t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if cards, err := d.Detect(ended); err == nil && len(cards) == 0 {
		t.Error("no cards and no error after the end of the context: cannot tell is an error")
	} else if err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the end of the context came out as %v", err)
	}
}
