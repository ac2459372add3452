package nvidia

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// parseCSV reads the answers to --query-gpu and --query-compute-apps, by the names in the header. Rows without a
// header give no more than index and name, and only where a row starts with them.
func parseCSV(out string) (report, bool) {
	var r report
	at := row{header: header{}}
	found := false
	for line := range lines(out) {
		at.cells = toolout.AppendCSV(at.cells[:0], line)
		if len(at.cells) == 0 {
			continue
		}
		if at.header.read(at.cells) {
			found = true
			r.processesKnown = r.processesKnown || at.header.has("pid")
			continue
		}
		switch {
		case len(at.header) == 0:
			if g, ok := bareRow(at.cells); ok {
				r.add(g)
				found = true
			}
		case at.header.has("pid"):
			r.addProcess(at)
		case len(r.gpus) < maxBoards:
			r.addGPU(at)
		}
	}
	return r, found
}

// A header is the columns of a CSV: name → place.
type header map[string]int

func (h header) has(name string) bool {
	_, ok := h[name]
	return ok
}

// read takes over the names of a header line. It tells whether the line is one.
func (h header) read(cells []string) bool {
	known := false
	for _, c := range cells {
		name, _, ok := toolout.Column(c)
		if !ok {
			return false
		}
		switch name {
		case "index", "uuid", "name", "pid", "gpu_uuid", "gpu_name", "pci.bus_id", "gpu_bus_id":
			known = true
		}
	}
	if !known {
		return false
	}
	clear(h)
	for i, c := range cells {
		if name, _, _ := toolout.Column(c); !h.has(name) {
			h[name] = i
		}
	}
	return true
}

// bareRow reads a row printed without a header. Nothing says what its columns are; the two that every recorded one
// starts with can be told by their shape.
func bareRow(cells []string) (gpu, bool) {
	if len(cells) < 2 {
		return gpu{}, false
	}
	index, name := whole(cells[0]), text(cells[1])
	if index == nil || *index >= maxBoards || name == "" || digits(name) || strings.ContainsFunc(name, unprintable) || !strings.ContainsFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' }) {
		return gpu{}, false
	}
	return gpu{index: index, name: name}, true
}

// unprintable tells bytes that are no text, as of a tool that dumps its memory.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// digits tells whether a cell begins with a number: it is no name then.
func digits(cell string) bool { return cell != "" && cell[0] >= '0' && cell[0] <= '9' }

// A row is the cells of a line under a header.
type row struct {
	header header
	cells  []string
}

// get is the value of the first of the named fields that the row has, empty when it says nothing.
func (r row) get(names ...string) string {
	for _, n := range names {
		if i, ok := r.header[n]; ok && i < len(r.cells) {
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
	r.add(g)
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
	if row.header.has("name") && g.name == "" {
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
	r.use(process{uuid: row.get("gpu_uuid"), pci: pciAddress(row.get("gpu_bus_id")), pid: pid, memory: mib(row.get("used_gpu_memory", "used_memory"))})
}
