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
	if c.Form != accel.Whole && c.Form != accel.Partition {
		t.Errorf("card %s has the form %q: a detector finds whole cards and partitions", c.UUID, c.Form)
	}
	if !slices.IsSorted(c.Modes) {
		t.Errorf("card %s: modes %v are not sorted", c.UUID, c.Modes)
	}
	if c.MemoryMiB != nil && *c.MemoryMiB == 0 {
		t.Errorf("card %s has no memory: unknown is nil, not 0", c.UUID)
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
