package nvidia

import (
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// reasonERR is the reason of a card of which the tool prints errors in place of values.
const reasonERR = "nvidia-smi prints errors in place of the card's values"

var (
	tableDriver  = regexp.MustCompile(`(?:Driver|KMD) Version:\s*([0-9][0-9.]*)`)
	tableCUDA    = regexp.MustCompile(`CUDA (?:UMD )?Version:\s*([0-9][0-9.]*)`)
	tableName    = regexp.MustCompile(`^\s*(\d+)\s+(.*?)\s+(?:On|Off|N/A|Enabled|Disabled)\s*$`)
	tablePCI     = regexp.MustCompile(`[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]`)
	tableFan     = regexp.MustCompile(`^\s*(\d+)%\s`)
	tableHeat    = regexp.MustCompile(`\b(\d+)C\b`)
	tableUtil    = regexp.MustCompile(`\b(\d+)%`)
	tableMIG     = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*$`)
	tableProcess = regexp.MustCompile(`^\|\s+(\d+)\s+(?:(\d+|N/A)\s+(\d+|N/A)\s+)?(\d+)\s+(C|G|C\+G|M\+C)\s.*?(\S*)\s*\|\s*$`)
)

// parseTable reads what plain `nvidia-smi` prints for people. A card is two or three lines of one box; which line it
// is shows by what stands in it, because the columns move between versions.
func parseTable(out string) (report, bool) {
	var r report
	if m := tableDriver.FindStringSubmatch(out); m != nil {
		r.driver = m[1]
	}
	if m := tableCUDA.FindStringSubmatch(out); m != nil {
		r.cuda = m[1]
	}
	section := "gpus"
	var current *gpu
	below := 0 // lines since that of the address
	for line := range lines(out) {
		switch {
		case strings.Contains(line, "MIG devices:"):
			section, current = "migs", nil
			continue
		case strings.Contains(line, "Processes:"):
			section, r.processesKnown = "processes", true
			continue
		}
		if section == "processes" {
			if m := tableProcess.FindStringSubmatch(line); m != nil && strings.Contains(m[5], "C") {
				if pid := whole(m[4]); pid != nil {
					r.use(process{index: whole(m[1]), gi: whole(m[2]), ci: whole(m[3]), pid: *pid, memory: mib(m[6])})
				}
			}
			continue
		}
		cells := strings.SplitN(strings.Trim(strings.TrimSpace(line), "|"), "|", 4)
		if len(cells) < 3 {
			continue
		}
		if section == "migs" {
			r.tableMIG(cells)
			continue
		}
		if pci := tablePCI.FindString(cells[1]); pci != "" {
			if current, below = nil, 0; len(r.gpus) < maxBoards {
				r.gpus = append(r.gpus, tableGPU(cells, pci))
				current = &r.gpus[len(r.gpus)-1]
			}
		} else if below++; current != nil && below <= mostBelow {
			current.tableValues(cells)
		}
	}
	return r, len(r.gpus) > 0
}

// mostBelow bounds the lines that are of one board: real ones have one or two below that of the address.
const mostBelow = 8

func tableGPU(cells []string, pci string) gpu {
	g := gpu{pci: pciAddress(pci)}
	g.fact("display_active", cells[1][strings.Index(cells[1], pci)+len(pci):])
	g.fact("ecc", cells[2])
	g.more.ECCUncorrected = toolout.Count(cells[2])
	if m := tableName.FindStringSubmatch(cells[0]); m != nil {
		g.index = whole(m[1])
		g.name = text(m[2])
		g.nameCut = strings.HasSuffix(g.name, "...")
		if g.name == "" {
			g.dead = reasonERR
		}
	}
	return g
}

func (g *gpu) tableValues(cells []string) {
	if values := toolout.Values(cells[1]); len(values) > 0 {
		used, total := toolout.Usage(values[0])
		g.memoryUsed, g.memory = mib(used), mib(total)
	}
	if values := toolout.Values(cells[0]); len(values) > 0 {
		power, limit := toolout.Usage(values[len(values)-1])
		g.power, g.powerOf = toolout.Watts(power), toolout.Watts(limit)
	}
	if m := tableFan.FindStringSubmatch(cells[0]); m != nil {
		g.more.FanPct = toolout.Percent(m[1])
	}
	if m := tableHeat.FindStringSubmatch(cells[0]); m != nil {
		g.temperature = toolout.Celsius(m[1])
	}
	if m := tableUtil.FindStringSubmatch(cells[2]); m != nil {
		g.utilization = toolout.Percent(m[1])
	}
	if mode := onOff(cells[2]); mode != nil {
		g.migMode = mode
	}
}

func (r *report) tableMIG(cells []string) {
	m, memory := tableMIG.FindStringSubmatch(cells[0]), toolout.Values(cells[1])
	if m == nil || len(memory) == 0 {
		return
	}
	used, total := toolout.Usage(memory[0])
	index, device := whole(m[1]), whole(m[4])
	for i := range r.gpus {
		if g := &r.gpus[i]; index != nil && device != nil && g.index != nil && *g.index == *index {
			sms, _, _ := strings.Cut(strings.TrimSpace(cells[2]), " ")
			g.split(mig{device: *device, gi: whole(m[2]), ci: whole(m[3]), memoryUsed: mib(used), memory: mib(total), sms: whole(sms)})
		}
	}
}
