package device

import (
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// cardMetric is one number that is told of a card, by whichever brand knows it. A number that a card does not report is
// absent: unknown is not zero.
type cardMetric struct {
	name, unit string // in Nomad's statistics
	metric     string // in the text file; the unit is the base unit at its end
	scale      float64
	help       string
	value      func(state) *float64 // in the unit of Nomad's statistics
}

// counter tells whether the number only ever grows.
func (m cardMetric) counter() bool { return strings.HasSuffix(m.metric, "_total") }

// cardMetrics are the numbers of every card, the same for every brand.
var cardMetrics = []cardMetric{
	{accel.StatUtilization, "%", "heteroflow_card_utilization_ratio", 0.01, "Share of time in which work ran on the card", func(s state) *float64 { return s.UtilizationPct }},
	{"memory_utilization", "%", "heteroflow_card_memory_utilization_ratio", 0.01, "Share of time in which the card's memory was read or written", func(s state) *float64 { return s.MemoryUtilizationPct }},
	{"memory_size", "MiB", "heteroflow_card_memory_size_bytes", mebibyte, "Memory of the card", func(s state) *float64 { return count(s.MemoryMiB) }},
	{accel.StatMemory, "MiB", "heteroflow_card_memory_used_bytes", mebibyte, "Memory of the card that is in use", func(s state) *float64 { return count(s.MemoryUsedMiB) }},
	{accel.StatTemperature, "C", "heteroflow_card_temperature_celsius", 1, "Temperature of the card", func(s state) *float64 { return s.TemperatureC }},
	{"memory_temperature", "C", "heteroflow_card_memory_temperature_celsius", 1, "Temperature of the card's memory", func(s state) *float64 { return s.MemoryTemperatureC }},
	{"power", "W", "heteroflow_card_power_watts", 1, "Power the card draws", func(s state) *float64 { return s.PowerW }},
	{"power_limit", "W", "heteroflow_card_power_limit_watts", 1, "Power the card may draw", func(s state) *float64 { return s.PowerLimitW }},
	{"energy", "J", "heteroflow_card_energy_joules_total", 1, "Energy the card has used since its driver was loaded", func(s state) *float64 { return s.EnergyJ }},
	{"clock", "MHz", "heteroflow_card_clock_hertz", 1e6, "Clock of the card's processors", func(s state) *float64 { return s.ClockMHz }},
	{"memory_clock", "MHz", "heteroflow_card_memory_clock_hertz", 1e6, "Clock of the card's memory", func(s state) *float64 { return s.MemoryClockMHz }},
	{"fan", "%", "heteroflow_card_fan_ratio", 0.01, "Speed of the card's fan as a share of its full speed", func(s state) *float64 { return s.FanPct }},
	{"link_errors", "", "heteroflow_card_link_errors_total", 1, "Errors on the card's links to other cards", func(s state) *float64 { return s.LinkErrors }},
	{"pcie_replays", "", "heteroflow_card_pcie_replays_total", 1, "Transfers over PCIe that had to be repeated", func(s state) *float64 { return s.PCIeReplays }},
	{"ecc_corrected", "", "heteroflow_card_ecc_corrected_errors_total", 1, "Memory errors that were corrected since the driver was loaded", func(s state) *float64 { return s.ECCCorrected }},
	{"ecc_uncorrected", "", "heteroflow_card_ecc_uncorrected_errors_total", 1, "Memory errors that could not be corrected since the driver was loaded", func(s state) *float64 { return s.ECCUncorrected }},
	{"retired_pages", "", "heteroflow_card_retired_pages", 1, "Pages of memory that are used no more", func(s state) *float64 { return s.RetiredPages }},
	{"remapped_rows", "", "heteroflow_card_remapped_rows", 1, "Rows of memory that were replaced by spare ones", func(s state) *float64 { return s.RemappedRows }},
	{"memory_repair_pending", "", "heteroflow_card_memory_repair_pending", 1, "1 while a page or row of memory waits to be replaced at the next reset", func(s state) *float64 { return flagged(s.RepairPending) }},
	{"thermal_slowdown", "", "heteroflow_card_thermal_slowdown", 1, "1 while the card is slowed down by heat", func(s state) *float64 { return flagged(s.ThermalSlowdown) }},
	{"power_brake", "", "heteroflow_card_power_brake", 1, "1 while the card is slowed down by the power brake", func(s state) *float64 { return flagged(s.PowerBrake) }},
	{"processes_without_grant", "", "heteroflow_card_processes_without_grant", 1, "Compute processes on a card that no task has", func(s state) *float64 { return number(s.foreign) }},
	{"card_faults", "", "heteroflow_card_faults_total", 1, "Faults of the card itself since the plugin started", func(s state) *float64 { return number(s.card) }},
	{"job_faults", "", "heteroflow_card_job_faults_total", 1, "Errors that programs made on the card since the plugin started", func(s state) *float64 { return number(s.job) }},
	{"healthy", "", "heteroflow_card_healthy", 1, "1 when the card can be given to tasks", func(s state) *float64 { ok := s.health().OK; return flagged(&ok) }},
}

const mebibyte = 1 << 20

func count(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	v := float64(*n)
	return &v
}

func number(n *int) *float64 {
	if n == nil {
		return nil
	}
	v := float64(*n)
	return &v
}

func flagged(yes *bool) *float64 {
	if yes == nil {
		return nil
	}
	v := 0.0
	if *yes {
		v = 1
	}
	return &v
}

// dcgmMetrics are numbers under the names and in the units of NVIDIA's dcgm-exporter, so that its dashboards show every
// brand.
var dcgmMetrics = []struct {
	metric, kind, help string
	value              func(state) *float64
}{
	{"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", func(s state) *float64 { return s.UtilizationPct }},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", func(s state) *float64 { return s.MemoryUtilizationPct }},
	{"DCGM_FI_DEV_FB_USED", "gauge", "Memory used (in MiB).", func(s state) *float64 { return count(s.MemoryUsedMiB) }},
	{"DCGM_FI_DEV_FB_FREE", "gauge", "Memory free (in MiB).", func(s state) *float64 {
		if s.MemoryMiB == nil || s.MemoryUsedMiB == nil || *s.MemoryUsedMiB > *s.MemoryMiB {
			return nil
		}
		free := *s.MemoryMiB - *s.MemoryUsedMiB
		return count(&free)
	}},
	{"DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", func(s state) *float64 { return s.TemperatureC }},
	{"DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", func(s state) *float64 { return s.MemoryTemperatureC }},
	{"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", func(s state) *float64 { return s.PowerW }},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver was loaded (in mJ).", func(s state) *float64 {
		if s.EnergyJ == nil {
			return nil
		}
		mj := *s.EnergyJ * 1000
		return &mj
	}},
	{"DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz).", func(s state) *float64 { return s.ClockMHz }},
	{"DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock (in MHz).", func(s state) *float64 { return s.MemoryClockMHz }},
	{"DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed (in %).", func(s state) *float64 { return s.FanPct }},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", func(s state) *float64 { return s.PCIeReplays }},
	{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Corrected memory errors.", func(s state) *float64 { return s.ECCCorrected }},
	{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Uncorrected memory errors.", func(s state) *float64 { return s.ECCUncorrected }},
}
