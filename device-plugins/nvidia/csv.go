package nvidia

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// fieldName is one cell of a CSV header: the name of a query field and, in brackets, its unit.
var fieldName = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.]*)(?: \[[^\]]*\])?$`)

// parseCSV reads the answers to --query-gpu and --query-compute-apps, by the names in the header. Rows without a
// header give no more than index and name, and only where a row starts with them.
func parseCSV(out string) (report, bool) {
	var r report
	var header []string
	found := false
	for _, line := range strings.Split(out, "\n") {
		cells := toolout.CSVCells(line)
		if len(cells) == 0 {
			continue
		}
		if names := headerNames(cells); names != nil {
			header, found = names, true
			if slices.Contains(names, "pid") {
				r.processesKnown = true
			}
			continue
		}
		switch {
		case header == nil:
			if g, ok := bareRow(cells); ok {
				r.gpus, found = append(r.gpus, g), true
			}
		case slices.Contains(header, "pid"):
			r.addProcess(row{header, cells})
		default:
			r.addGPU(row{header, cells})
		}
	}
	return r, found
}

// headerNames is the names of a header line, nil for any other line.
func headerNames(cells []string) []string {
	names := make([]string, len(cells))
	for i, c := range cells {
		m := fieldName.FindStringSubmatch(c)
		if m == nil {
			return nil
		}
		names[i] = m[1]
	}
	for _, n := range []string{"index", "uuid", "name", "pid", "gpu_uuid", "gpu_name", "pci.bus_id", "gpu_bus_id"} {
		if slices.Contains(names, n) {
			return names
		}
	}
	return nil
}

// bareRow reads a row printed without a header. Nothing says what its columns are; the two that every recorded one
// starts with can be told by their shape.
func bareRow(cells []string) (gpu, bool) {
	if len(cells) < 2 {
		return gpu{}, false
	}
	index, name := whole(cells[0]), text(cells[1])
	if index == nil || *index >= maxLost || name == "" || digits(name) || strings.ContainsFunc(name, unprintable) || !strings.ContainsFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' }) {
		return gpu{}, false
	}
	return gpu{index: index, name: name}, true
}

// unprintable tells bytes that are no text, as of a tool that dumps its memory.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// digits tells whether a cell begins with a number: it is no name then.
func digits(cell string) bool { return cell != "" && cell[0] >= '0' && cell[0] <= '9' }

type row struct{ header, cells []string }

// get is the value of the first of the named fields that the row has, empty when it says nothing.
func (r row) get(names ...string) string {
	for _, n := range names {
		if i := slices.Index(r.header, n); i >= 0 && i < len(r.cells) {
			if v := text(r.cells[i]); v != "" {
				return v
			}
		}
	}
	return ""
}

func (r *report) addGPU(row row) {
	g := gpu{
		index: whole(row.get("index")), uuid: row.get("uuid", "gpu_uuid"), name: row.get("name", "gpu_name"),
		pci:    pciAddress(row.get("pci.bus_id", "gpu_bus_id")),
		memory: mib(row.get("memory.total")), memoryUsed: mib(row.get("memory.used")),
		migMode:     onOff(row.get("mig.mode.current")),
		utilization: toolout.Percent(row.get("utilization.gpu")), temperature: toolout.Celsius(row.get("temperature.gpu")),
		power: toolout.Watts(row.get("power.draw", "power.draw.instant")), powerOf: toolout.Watts(row.get("power.limit", "enforced.power.limit")),
	}
	g.more = row.more()
	for _, name := range []string{"serial", "memory.reserved", "memory.free", "compute_cap", "ecc.mode.current"} {
		g.fact(name, row.get(name))
	}
	first(&r.driver, row.get("driver_version", "kmd_version"))
	if g.index == nil && g.uuid == "" && g.pci == "" {
		return // a row of errors: the line above it names the card
	}
	g.dead = deadRow(row, g)
	r.gpus = append(r.gpus, g)
}

// more is the numbers of a row besides those that every driver has.
func (r row) more() device.Sample {
	s := device.Sample{
		MemoryUtilizationPct: toolout.Percent(r.get("utilization.memory")), MemoryTemperatureC: toolout.Celsius(r.get("temperature.memory")),
		FanPct: toolout.Percent(r.get("fan.speed")), ClockMHz: toolout.Megahertz(r.get("clocks.current.sm", "clocks.sm")),
		MemoryClockMHz: toolout.Megahertz(r.get("clocks.current.memory", "clocks.mem")),
		ECCCorrected:   toolout.Count(r.get("ecc.errors.corrected.volatile.total")),
		ECCUncorrected: toolout.Count(r.get("ecc.errors.uncorrected.volatile.total")),
		RetiredPages:   sum(toolout.Count(r.get("retired_pages.single_bit_ecc.count")), toolout.Count(r.get("retired_pages.double_bit.count"))),
		RemappedRows:   sum(toolout.Count(r.get("remapped_rows.correctable")), toolout.Count(r.get("remapped_rows.uncorrectable"))),
		RepairPending:  either(toolout.YesNo(r.get("retired_pages.pending")), toolout.YesNo(r.get("remapped_rows.pending"))),
		PowerBrake:     toolout.YesNo(r.reason("hw_power_brake_slowdown")),
	}
	s.ThermalSlowdown = either(toolout.YesNo(r.reason("hw_thermal_slowdown")), toolout.YesNo(r.reason("sw_thermal_slowdown")))
	return s
}

// reason is whether the clocks are held down for a reason. Its name changed with driver 535.
func (r row) reason(name string) string {
	return r.get("clocks_event_reasons."+name, "clocks_throttle_reasons."+name)
}

// sum adds what is known; nil when nothing is.
func sum(numbers ...*float64) *float64 {
	var total *float64
	for _, n := range numbers {
		if n != nil && total != nil {
			*n += *total
		}
		known(&n, total)
		total = n
	}
	return total
}

// either tells whether one of two things is so, as far as they are known.
func either(a, b *bool) *bool {
	if a == nil || b != nil && *b {
		return b
	}
	return a
}

// deadRow says why a row that still names its card is of a card that cannot be used.
func deadRow(row row, g gpu) string {
	for _, c := range row.cells {
		if c == "[GPU is lost]" || c == "[GPU requires reset]" {
			return "nvidia-smi: " + strings.Trim(c, "[]")
		}
	}
	if slices.Contains(row.header, "name") && g.name == "" {
		return reasonERR
	}
	if action := row.get("gpu_recovery_action"); action != "" && action != "None" {
		return "nvidia-smi asks for recovery: " + action
	}
	return ""
}

func (r *report) addProcess(row row) {
	pid, err := strconv.Atoi(row.get("pid"))
	if err != nil {
		return
	}
	r.processes = append(r.processes, process{uuid: row.get("gpu_uuid"), pci: pciAddress(row.get("gpu_bus_id")), pid: pid, memory: mib(row.get("used_gpu_memory", "used_memory"))})
}
