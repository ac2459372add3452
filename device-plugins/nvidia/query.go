package nvidia

import (
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// parseQuery reads `nvidia-smi -q`: "key : value" lines in sections told apart by indentation, 4 blanks a level.
func parseQuery(out string) (report, bool) {
	var r queryReport
	var path []string
	for line := range lines(out) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" {
			continue
		}
		depth := (len(line) - len(strings.TrimLeft(line, " "))) / 4
		if address, ok := strings.CutPrefix(line, "GPU "); ok {
			if len(r.gpus) == maxBoards {
				break
			}
			path = path[:0]
			r.gpus = append(r.gpus, gpu{pci: pciAddress(address)})
			continue
		}
		key, value, pair := strings.Cut(trimmed, " : ")
		key = strings.TrimSpace(strings.TrimSuffix(key, " :"))
		if len(r.gpus) > 0 {
			depth-- // inside a card the card's own line is the root
		}
		path = append(path[:max(0, min(depth, len(path)))], key)
		if len(r.gpus) == 0 {
			r.queryHead(key, value)
			continue
		}
		g := &r.gpus[len(r.gpus)-1]
		if key == "Processes" {
			r.processesKnown = true
		}
		if !pair {
			if key == "MIG Device" {
				g.split(mig{device: len(g.migs)})
			}
			continue
		}
		r.queryValue(g, path, value)
	}
	return r.report, len(r.gpus) > 0
}

// A queryReport is a report with what the lines before the present one said of a process.
type queryReport struct {
	report
	gi, ci *int
	draws  bool // it only draws, and was left out
}

func (r *queryReport) queryHead(key, value string) {
	switch key {
	case "Attached GPUs":
		r.attached = whole(value)
	case "CUDA Version", "CUDA UMD Version":
		r.cuda = text(value)
	}
	if key == "Driver Version" || key == "KMD version" || key == "KMD Version" {
		if v := text(value); v != "" && v[0] >= '0' && v[0] <= '9' {
			first(&r.driver, v)
		}
	}
}

func (r *queryReport) queryValue(g *gpu, path []string, value string) {
	tail := strings.Join(path[max(0, len(path)-2):], "/")
	if path[0] == "MIG Device" && len(g.migs) > 0 {
		g.migs[len(g.migs)-1].queryValue(tail, value)
		return
	}
	switch key := path[len(path)-1]; {
	case key == "Product Name" && g.name == "":
		if g.name = text(value); g.name == "" {
			g.dead = reasonERR
		}
	case key == "GPU UUID":
		g.uuid = text(value)
	case key == "Minor Number":
		g.minor = whole(value)
	case key == "Process ID":
		if pid := whole(value); pid != nil {
			r.use(process{uuid: g.uuid, pci: g.pci, pid: *pid, gi: r.gi, ci: r.ci})
			r.draws = false
		}
	case key == "GPU instance ID":
		r.gi = whole(value)
	case key == "Compute instance ID":
		r.ci = whole(value)
	case key == "Used GPU Memory" && len(r.processes) > 0 && !r.draws:
		r.processes[len(r.processes)-1].memory = mib(value)
	case key == "Type" && strings.TrimSpace(value) == "G" && len(r.processes) > 0:
		r.processes, r.draws = r.processes[:len(r.processes)-1], true // a process that only draws
	case key == "GPU Recovery Action" && text(value) != "" && strings.TrimSpace(value) != "None":
		g.dead = "nvidia-smi asks for recovery: " + text(value)
	default:
		g.queryReading(tail, value)
	}
}

func (g *gpu) queryReading(tail, value string) {
	if name := queryFacts[tail]; name != "" {
		g.fact(name, value)
	}
	switch tail {
	case "MIG Mode/Current":
		g.migMode = onOff(value)
	case "FB Memory Usage/Total":
		g.memory = mib(value)
	case "FB Memory Usage/Used":
		g.memoryUsed = mib(value)
	case "Utilization/Gpu", "Utilization/GPU":
		g.utilization = toolout.Percent(value)
	case "Temperature/GPU Current Temp":
		g.temperature = toolout.Celsius(value)
	case "GPU Power Readings/Instantaneous Power Draw", "GPU Power Readings/Average Power Draw",
		"GPU Power Readings/Power Draw", "Power Readings/Power Draw":
		known(&g.power, toolout.Watts(value))
	case "GPU Power Readings/Current Power Limit", "Power Readings/Power Limit":
		g.powerOf = toolout.Watts(value)
	default:
		g.queryMore(tail, value)
	}
}

// queryFacts are the facts of a card by their places, under the names that they have in a query for them.
var queryFacts = map[string]string{
	"Serial Number": "serial", "Display Mode": "display_mode", "FB Memory Usage/Reserved": "memory.reserved", "FB Memory Usage/Free": "memory.free",
	"PCI/Device Id": "pci.device_id", "Utilization/Encoder": "utilization.encoder", "ECC Mode/Current": "ecc.mode.current",
	"GPU Power Readings/Instantaneous Power Draw": "power.draw.instant",
}

// queryMore reads the numbers that not every board has.
func (g *gpu) queryMore(tail, value string) {
	s := &g.more
	switch tail {
	case "Utilization/Memory":
		s.MemoryUtilizationPct = toolout.Percent(value)
	case "Temperature/Memory Current Temp":
		s.MemoryTemperatureC = toolout.Celsius(value)
	case "Fan Speed":
		s.FanPct = toolout.Percent(value)
	case "Clocks/SM":
		s.ClockMHz = toolout.Megahertz(value)
	case "Clocks/Memory":
		s.MemoryClockMHz = toolout.Megahertz(value)
	case "PCI/Replays Since Reset":
		s.PCIeReplays = toolout.Count(value)
	case "Retired Pages/Single Bit ECC", "Retired Pages/Double Bit ECC":
		s.RetiredPages = sum(s.RetiredPages, toolout.Count(value))
	case "Retired Pages/Pending Page Blacklist", "Remapped Rows/Pending":
		s.RepairPending = either(s.RepairPending, toolout.YesNo(value))
	case "Remapped Rows/Correctable Error", "Remapped Rows/Uncorrectable Error":
		s.RemappedRows = sum(s.RemappedRows, toolout.Count(value))
	case "Volatile/SRAM Correctable", "Volatile/DRAM Correctable":
		s.ECCCorrected = sum(s.ECCCorrected, toolout.Count(value))
	case "Volatile/SRAM Uncorrectable", "Volatile/SRAM Uncorrectable Parity", "Volatile/SRAM Uncorrectable SEC-DED", "Volatile/DRAM Uncorrectable":
		s.ECCUncorrected = sum(s.ECCUncorrected, toolout.Count(value))
	case "HW Slowdown/HW Thermal Slowdown", "Clocks Event Reasons/SW Thermal Slowdown", "Clocks Throttle Reasons/SW Thermal Slowdown":
		s.ThermalSlowdown = either(s.ThermalSlowdown, toolout.YesNo(value))
	case "HW Slowdown/HW Power Brake Slowdown":
		s.PowerBrake = toolout.YesNo(value)
	}
}

func (m *mig) queryValue(tail, value string) {
	switch tail {
	case "MIG Device/Index":
		if n := whole(value); n != nil {
			m.device = *n
		}
	case "MIG Device/GPU Instance ID":
		m.gi = whole(value)
	case "MIG Device/Compute Instance ID":
		m.ci = whole(value)
	case "Shared/Multiprocessor count":
		m.sms = whole(value)
	case "Shared FB Memory Usage/Total", "FB Memory Usage/Total":
		m.memory = mib(value)
	case "Shared FB Memory Usage/Used", "FB Memory Usage/Used":
		m.memoryUsed = mib(value)
	}
}
