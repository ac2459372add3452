package amd

import (
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
func parseSMI(list toolout.Value) brand.Reading {
	var r brand.Reading
	for one := range list.Items() {
		index := toolout.Whole(one.Text("gpu"))
		if index == nil {
			continue
		}
		c := r.At(*index)
		fill(&r, c, one.Text)
	}
	return r
}

// parseStatic reads the same as text. Blocks of processors stand before those of cards, and a key such as VERSION under
// more than one title.
func parseStatic(out string) brand.Reading {
	var r brand.Reading
	var card *int
	values := pathValues{at: map[string]int{}} // of the card
	fill(&r, &brand.Card{}, values.want)
	done := func() {
		if card != nil && values.known {
			fill(&r, r.At(*card), values.get)
		}
		card, values.known = nil, false
		clear(values.values)
	}
	for p := range toolout.Pairs(out) {
		switch {
		case len(p.Section) == 0:
			done()
			if p.Key == "GPU" {
				card = toolout.Whole(p.Value)
			}
		case card != nil && p.Value != "":
			values.set(p)
		}
	}
	done()
	return r
}

// pathValues are the values of one card by their paths in small letters. Only those that were wanted have room.
type pathValues struct {
	at     map[string]int
	values []string
	known  bool // there is one, wanted or not
	key    []byte
}

// path makes the key of a path.
func (v *pathValues) path(words ...string) {
	for i, word := range words {
		if i > 0 {
			v.key = append(v.key, '/')
		}
		v.key = append(v.key, word...)
	}
	for i, c := range v.key {
		if c >= 'A' && c <= 'Z' {
			v.key[i] += 'a' - 'A'
		}
	}
}

func (v *pathValues) want(path ...string) string {
	v.key = v.key[:0]
	v.path(path...)
	if _, known := v.at[string(v.key)]; !known {
		v.at[string(v.key)] = len(v.values)
		v.values = append(v.values, "")
	}
	return ""
}

func (v *pathValues) get(path ...string) string {
	v.key = v.key[:0]
	v.path(path...)
	return v.values[v.at[string(v.key)]]
}

func (v *pathValues) set(p toolout.Pair) {
	v.known, v.key = true, v.key[:0]
	if v.path(p.Section[1:]...); len(v.key) > 0 {
		v.key = append(v.key, '/')
	}
	v.path(p.Key)
	if i, wanted := v.at[string(v.key)]; wanted {
		v.values[i] = toolout.Text(p.Value)
	}
}

// parseMonitor reads the table of `amd-smi monitor`, and the processes below it when they were asked for.
func parseMonitor(out string) brand.Reading {
	r := brand.Reading{ProcessesKnown: strings.Contains(out, "PROCESS INFO")}
	for row := range toolout.Aligned(out, "GPU") {
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
