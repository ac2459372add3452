package engine

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A share of a card in MIG mode takes the slices of the profile that is made for it, not of the memory that was asked.
func TestUnits_OfMIGProfiles(t *testing.T) {
	t.Parallel()
	rules, err := accel.ParseRounding("mig:parts=7,1g.10gb=9984/1*7,1g.20gb=19968/1*4,2g.20gb=20096/2*3,3g.40gb=40448/3*2,7g.80gb=80384/7*1")
	if err != nil {
		t.Fatal(err)
	}
	p := Pool{Form: accel.MIG, UnitMiB: 81559 / 8, Total: 8, MIG: &rules[0]}
	for _, tc := range []struct {
		ask  accel.Ask
		want int
	}{
		{accel.Ask{MemoryMiB: 5000}, 1},
		{accel.Ask{MemoryMiB: 10240}, 2},
		{accel.Ask{MemoryMiB: 25000}, 4},
		{accel.Ask{MemoryMiB: 41000}, 8},
		{accel.Ask{MemoryMiB: 81000}, 0},
		{accel.Ask{MemoryMiB: 5000, ComputePct: 40}, 4},
		{accel.Ask{MemoryMiB: 5000, ComputePct: 28}, 2},
	} {
		if got := p.units(&tc.ask); got != tc.want {
			t.Errorf("%d MiB and %d %% take %d slices, want %d", tc.ask.MemoryMiB, tc.ask.ComputePct, got, tc.want)
		}
	}
	p.MIG = nil
	if got := p.units(&accel.Ask{MemoryMiB: 25000}); got != 3 {
		t.Errorf("without a rule %d slices", got)
	}
}
