package amd

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// fill takes what amd-smi says of one card in JSON and in text alike; the path is written as in JSON.
func fill(r *brand.Reading, c *brand.Card, get func(path ...string) string) {
	c.Name = get("asic", "market_name")
	c.ID = unique(get("asic", "asic_serial"))
	if c.PCI = toolout.PCI(get("bus", "bdf")); c.PCI == "" {
		c.PCI = toolout.PCI(get("bdf"))
	}
	c.MemoryMiB = toolout.MiB(get("vram", "size"), "")
	if c.PowerLimitW = limit(get("limit", "socket_power")); c.PowerLimitW == nil {
		c.PowerLimitW = limit(get("limit", "max_power"))
	}
	if r.Driver == "" {
		r.Driver = get("driver", "version")
	}
	c.Fact(factCompute, get("partition", "compute_partition"))
	c.Fact(factMemory, get("partition", "memory_partition"))
	c.Fact(factPart, get("partition", "partition_id"))
	c.Fact(factPart, get("partition_id"))
	c.Fact("uuid", get("uuid"))
	c.Fact("kfd_id", get("kfd_id"))
	c.Fact("node_id", get("node_id"))
	c.Fact("device_id", get("asic", "device_id"))
	c.Fact("compute_units", get("asic", "num_compute_units"))
	c.Fact("gfx_version", get("asic", "target_graphics_version"))
	c.Fact("oam", get("asic", "oam_id"))
}

// parseSMI reads the JSON of `amd-smi list` and `amd-smi static`.
func parseSMI(list []any) brand.Reading {
	var r brand.Reading
	for _, one := range list {
		index := toolout.Whole(toolout.String(one, "gpu"))
		if index == nil {
			continue
		}
		c := r.At(*index)
		fill(&r, c, func(path ...string) string { return toolout.String(one, path...) })
	}
	return r
}

var staticCard = regexp.MustCompile(`^GPU (\d+)(?:/(.+))?$`)

// parseStatic reads the same as text. Blocks of processors stand before those of cards, and a key such as VERSION under
// more than one title.
func parseStatic(out string) brand.Reading {
	var r brand.Reading
	var order []int
	values := map[int]map[string]string{}
	for _, p := range toolout.Pairs(out) {
		if p.Value == "" || len(p.Section) > 0 && !strings.HasPrefix(p.Section[0], "GPU ") {
			continue
		}
		m := staticCard.FindStringSubmatch(p.Path())
		if m == nil {
			continue
		}
		index := toolout.Whole(m[1])
		if index == nil {
			continue
		}
		if values[*index] == nil {
			values[*index] = map[string]string{}
			order = append(order, *index)
		}
		values[*index][strings.ToLower(m[2])] = toolout.Text(p.Value)
	}
	for _, index := range order {
		fill(&r, r.At(index), func(path ...string) string { return values[index][strings.Join(path, "/")] })
	}
	return r
}

// parseMonitor reads the table of `amd-smi monitor`, and the processes below it when they were asked for.
func parseMonitor(out string) brand.Reading {
	r := brand.Reading{ProcessesKnown: strings.Contains(out, "PROCESS INFO")}
	for _, row := range toolout.Aligned(out, "GPU") {
		index := toolout.Whole(row["GPU"])
		if index == nil {
			continue
		}
		if row.Has("PID") {
			if pid, err := strconv.Atoi(row["PID"]); err == nil {
				c := r.At(*index)
				c.Processes = append(c.Processes, brand.Process{PID: pid, Name: row.First("NAME"), MemoryMiB: toolout.MiB(row["VRAM_MEM"], "")})
			}
			continue
		}
		c := r.At(*index)
		c.PowerW, c.TemperatureC = toolout.Watts(row["POWER"]), toolout.Celsius(row["GPU_TEMP"])
		c.UtilizationPct = toolout.Percent(row["GFX_UTIL"])
		c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(row["VRAM_USED"], ""), toolout.MiB(row["VRAM_TOTAL"], "")
		c.More = device.Sample{
			MemoryTemperatureC: toolout.Celsius(row["MEM_TEMP"]), MemoryUtilizationPct: toolout.Percent(row["MEM_UTIL"]),
			ClockMHz: toolout.Megahertz(row["GFX_CLOCK"]), MemoryClockMHz: toolout.Megahertz(row["MEM_CLOCK"]),
			ECCCorrected: toolout.Count(row["SINGLE_ECC"]), ECCUncorrected: toolout.Count(row["DOUBLE_ECC"]),
			PCIeReplays: toolout.Count(row["PCIE_REPLAY"]),
		}
	}
	return r
}
