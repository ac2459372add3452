package device

import (
	"cmp"
	"slices"
)

// Fill takes over what another reading of the same card at the same moment knows more. What is known stays.
func (s *Sample) Fill(o Sample) {
	s.MemoryUsedMiB = cmp.Or(s.MemoryUsedMiB, o.MemoryUsedMiB)
	numbers, theirs := s.numbers(), o.numbers()
	for i, n := range numbers {
		*n = cmp.Or(*n, *theirs[i])
	}
	states, theirStates := s.states(), o.states()
	for i, yes := range states {
		*yes = cmp.Or(*yes, *theirStates[i])
	}
	if s.Processes == nil {
		s.Processes = slices.Clone(o.Processes)
	}
}

// numbers are the numbers with a fraction of a sample, in a fixed order.
func (s *Sample) numbers() []**float64 {
	return []**float64{
		&s.UtilizationPct, &s.MemoryUtilizationPct, &s.TemperatureC, &s.MemoryTemperatureC, &s.PowerW, &s.PowerLimitW, &s.EnergyJ,
		&s.ClockMHz, &s.MemoryClockMHz, &s.FanPct, &s.LinkErrors, &s.PCIeReplays, &s.ECCCorrected, &s.ECCUncorrected,
		&s.RetiredPages, &s.RemappedRows,
	}
}

// states are what may be so or not, in a fixed order.
func (s *Sample) states() []**bool {
	return []**bool{&s.RepairPending, &s.ThermalSlowdown, &s.PowerBrake, &s.LinkDown}
}
