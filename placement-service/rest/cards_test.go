package rest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// A card that is not healthy gives nothing, whatever of it is not held. What is not known of it stays unknown.
func TestGPUOf_WhatASickCardGives(t *testing.T) {
	t.Parallel()
	mib := uint64(46080)
	for name, c := range map[string]struct {
		card  watch.CardView
		units api.Units
		want  *api.Memory
	}{
		"healthy":        {watch.CardView{CardFacts: watch.CardFacts{Healthy: true, Units: 1, MemoryMiB: &mib}, In: engine.Pool{Form: accel.Whole}}, api.Units{Total: 1, Free: 1}, &api.Memory{TotalMiB: 46080, FreeMiB: 46080}},
		"dead":           {watch.CardView{CardFacts: watch.CardFacts{Units: 1, MemoryMiB: &mib}, In: engine.Pool{Form: accel.Whole}}, api.Units{Total: 1}, &api.Memory{TotalMiB: 46080}},
		"dead, by slice": {watch.CardView{CardFacts: watch.CardFacts{Units: 45}, UsedUnits: 5, In: engine.Pool{Form: accel.Shared, UnitMiB: 1024}}, api.Units{Total: 45, Used: 5, UnitMiB: ref(int64(1024))}, &api.Memory{TotalMiB: 46080, UsedMiB: 5120}},
		"dead, unknown":  {watch.CardView{CardFacts: watch.CardFacts{Units: 1}, In: engine.Pool{Form: accel.Whole}}, api.Units{Total: 1}, nil},
	} {
		got := gpuOf(c.card, nil)
		if diff := cmp.Diff(c.want, got.Memory); diff != "" {
			t.Errorf("%s: memory (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.units, got.Units); diff != "" {
			t.Errorf("%s: units (-want +got):\n%s", name, diff)
		}
	}
}
