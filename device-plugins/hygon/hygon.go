// Package hygon reads Hygon DCU cards by hy-smi, or by the rocm-smi that its older drivers brought. What all brands do
// alike, and forms and device groups, do not belong here.
package hygon

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// amd is the PCI vendor whose tool prints the same text.
const amd = "1002"

// Spec describes the brand.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Hygon, PCI: "1d94", Rival: amd, Signs: []string{"sys/module/hycu", "sys/module/hydcu", "dev/mkfd"}, Prefix: "DCU-",
		Tools: []string{"/opt/hyhal/bin/hy-smi", "hy-smi", "rocm-smi"}, Parse: Parse, Setup: setup(), Read: read, Links: links, Kernel: kernel,
		Seldom: func(args []string) bool { return len(args) > 0 && args[0] == "virtual" },
	}
}

// kernel reads the version of the driver, whose module was renamed.
func kernel(files hostfs.FS) brand.Reading {
	var r brand.Reading
	for _, module := range []string{"hycu", "hydcu"} {
		if version, err := files.Text("sys/module", module, "version"); err == nil {
			r.Driver = cmp.Or(r.Driver, version)
		}
	}
	return r
}

// asked are the facts asked for in one call, and one by one where a tool does not know one of them.
var asked = [][]string{
	{"--showproductname"},
	{"--showmeminfo", "vram"},
	{"--showbus"},
	{"--showuniqueid"},
}

// read asks for the facts as JSON, and for the table, which has the live numbers under all versions.
func read(_ string, call brand.Call) (brand.Reading, error) {
	var r brand.Reading
	out, err := call(slices.Concat(slices.Concat(asked...), []string{"--json"})...)
	if err == nil {
		r = Parse(out)
	}
	if len(r.Cards) == 0 {
		for _, args := range asked {
			if out, err = call(append(slices.Clone(args), "--json")...); err == nil {
				r.Merge(Parse(out))
			}
		}
	}
	more := [][]string{nil, {"--showdriverversion"}, {"virtual", "-show-device-info"}, {"virtual", "-show-vdevice-info"}}
	if !slices.ContainsFunc(r.Cards, func(c brand.Card) bool { return c.MemoryMiB != nil }) {
		more = append([][]string{{"--showmeminfo", "vram"}}, more...)
	}
	for _, args := range more {
		if out, callErr := call(args...); callErr == nil {
			r.Merge(Parse(out))
			err = nil
		}
	}
	return r, err
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading {
	if strings.Contains(out, "Actual Device") {
		return parseVirtual(out)
	}
	r := parseTable(out)
	for e := range toolout.Entries(out) {
		r.Doubtful = r.Doubtful || e.Unit == "GPU"
		note(&r, r.At(e.Index), e.Key, e.Value)
	}
	return r
}

// memoryKey reads a key such as "VRAM Total Used Memory (B)", also in small letters: whether it is of the memory in use,
// and the unit, which is part of the key.
func memoryKey(key string) (used bool, unit string, ok bool) {
	const start = "vram total "
	if len(key) < len(start) || !strings.EqualFold(key[:len(start)], start) {
		return false, "", false
	}
	rest := key[len(start):]
	if len(rest) > 5 && strings.EqualFold(rest[:5], "used ") {
		used, rest = true, rest[5:]
	}
	if len(rest) < 10 || !strings.EqualFold(rest[:8], "memory (") || !strings.HasSuffix(rest, ")") {
		return false, "", false
	}
	return used, rest[8 : len(rest)-1], true
}

// note takes one value by its key, as JSON and text have it.
func note(r *brand.Reading, c *brand.Card, key, value string) {
	if used, unit, ok := memoryKey(key); ok {
		if used {
			c.MemoryUsedMiB = toolout.MiB(value, unit)
		} else {
			c.MemoryMiB = toolout.MiB(value, unit)
		}
		return
	}
	switch key {
	case "Card Series":
		c.Name = toolout.Text(value)
	case "Unique ID":
		c.ID = toolout.Text(value)
	case "PCI Bus":
		address, more, _ := strings.Cut(value, " --> ")
		c.PCI = toolout.PCI(address)
		c.Fact("slot", more)
	case "Temperature (Sensor edge) (C)":
		c.TemperatureC = toolout.Celsius(value)
	case "Temperature (Sensor mem) (C)":
		c.More.MemoryTemperatureC = toolout.Celsius(value)
	case "Average Graphics Package Power (W)":
		c.PowerW = toolout.Watts(value)
	case "Max Graphics Package Power (W)":
		c.PowerLimitW = toolout.Watts(value)
	case "DCU use (%)", "HCU use (%)", "GPU use (%)":
		c.UtilizationPct = cmp.Or(c.UtilizationPct, toolout.Percent(value))
	case "Card Vendor", "Card vendor":
		c.Fact("vendor", value)
		r.Foreign = r.Foreign || strings.Contains(value, "Advanced Micro Devices")
	case "Device ID":
		c.Fact("device_id", value)
	}
}

// driverOf is the version of the driver that a line of its own tells.
func driverOf(out string) string {
	for line := range strings.Lines(out) {
		if version, ok := strings.CutPrefix(line, "Driver Version:"); ok && len(strings.Fields(version)) == 1 {
			return toolout.Text(version)
		}
	}
	return ""
}

// parseTable reads the table, and the version of the driver.
func parseTable(out string) brand.Reading {
	r := brand.Reading{Doubtful: strings.Contains(out, "ROCm System Management"), Driver: driverOf(out)}
	for row := range toolout.Aligned(out, "DCU", "HCU", "GPU") {
		unit := ""
		for _, name := range []string{"DCU", "HCU", "GPU"} {
			if row.Has(name) {
				unit = name
			}
		}
		index := toolout.Whole(row[unit])
		if index == nil || !row.Has("AvgPwr") {
			continue
		}
		r.Doubtful = r.Doubtful || unit == "GPU"
		c := r.At(*index)
		c.TemperatureC, c.UtilizationPct = toolout.Celsius(row["Temp"]), toolout.Percent(row[unit+"%"])
		c.PowerW, c.PowerLimitW = toolout.Watts(row["AvgPwr"]), toolout.Watts(row["PwrCap"])
		c.More.ClockMHz, c.More.MemoryClockMHz = toolout.Megahertz(row["SCLK"]), toolout.Megahertz(row["MCLK"])
		c.More.FanPct = toolout.Percent(row["Fan"])
		for _, fact := range []string{"VRAM%", "Fan", "Perf", "Mode", "Dec%", "Enc%", "SCLK", "MCLK"} {
			c.Fact(fact, row[fact])
		}
	}
	return r
}

var virtualTitle = regexp.MustCompile(`^(?:Virtual )?Device \d+$`)

// parseVirtual reads what `hy-smi virtual` says of cards and of the virtual cards made of them. That it says anything
// shows that the driver can share cards.
func parseVirtual(out string) brand.Reading {
	var r brand.Reading
	values := toolout.Block{}
	done := func() {
		name, actual := values["name"], toolout.Whole(values["Actual Device"])
		if actual == nil {
			return
		}
		c := r.At(*actual)
		c.Mode(accel.ModeVDCU, "cli")
		units, memory := toolout.Whole(values["Compute units"]), toolout.MiB(values["Global memory"], "bytes")
		if number, ok := strings.CutPrefix(name, "Virtual Device "); ok {
			if n := toolout.Whole(number); n != nil {
				c.Split(virtual(*n, units, memory))
			}
			return
		}
		c.MemoryMiB = memory
		c.Fact("compute_units", values["Compute units"])
		if units != nil && *units > 0 && *units < 1<<16 {
			c.Rounding = []accel.Rounding{{Mode: accel.ModeVDCU, StepMiB: 1, Parts: *units, Max: maxVirtual}}
		}
	}
	for p := range toolout.Pairs(out) {
		if p.Value == "" && virtualTitle.MatchString(p.Key) {
			done()
			clear(values)
			values.Set("name", p.Key)
			continue
		}
		values.Set(p.Key, p.Value)
	}
	done()
	return r
}

// maxVirtual is how many virtual cards the driver makes of one.
const maxVirtual = 4

// virtual is a virtual card. Its number is the node's, as in the name of its file under /etc/vdev; for the runtime, which
// would take it for the index of a whole card, it has none.
func virtual(number int, units *int, memory *uint64) brand.Part {
	kind := "vDCU"
	if units != nil {
		kind += fmt.Sprintf("-%dCU", *units)
	}
	if memory != nil {
		kind += fmt.Sprintf("-%dMiB", *memory)
	}
	return brand.Part{ID: fmt.Sprintf("vdev%d", number), Kind: kind, MemoryMiB: memory, From: "cli"}
}
