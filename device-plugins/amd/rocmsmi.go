package amd

import (
	"cmp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// note takes one value by its key. Versions differ in capitals.
func note(r *brand.Reading, c *brand.Card, key, value string) {
	switch strings.ToLower(key) {
	case "card series", "device name":
		if !strings.HasPrefix(value, "0x") && c.Name == "" { // a number says only who made it
			c.Name = toolout.Text(value)
		}
	case "unique id":
		c.ID = unique(value)
	case "pci bus":
		c.PCI = toolout.PCI(value)
	case "vram total memory (b)":
		c.MemoryMiB = toolout.MiB(value, "B")
	case "vram total used memory (b)":
		c.MemoryUsedMiB = toolout.MiB(value, "B")
	case "temperature (sensor edge) (c)":
		c.TemperatureC = toolout.Celsius(value)
	case "temperature (sensor junction) (c)":
		c.TemperatureC = cmp.Or(c.TemperatureC, toolout.Celsius(value)) // the edge stands before the junction
	case "temperature (sensor memory) (c)":
		c.More.MemoryTemperatureC = toolout.Celsius(value)
	case "sclk clock speed:":
		c.More.ClockMHz = toolout.Megahertz(value)
	case "mclk clock speed:":
		c.More.MemoryClockMHz = toolout.Megahertz(value)
	case "gpu memory use (%)", "gpu memory read/write activity (%)": // how busy it is, and not how full
		c.More.MemoryUtilizationPct = toolout.Percent(value)
	case "fan speed (%)":
		c.More.FanPct = toolout.Percent(value)
	case "pcie replay count":
		c.More.PCIeReplays = toolout.Count(value)
	case "average graphics package power (w)", "current socket graphics package power (w)":
		c.PowerW = cmp.Or(c.PowerW, toolout.Watts(value))
	case "max graphics package power (w)":
		c.PowerLimitW = limit(value)
	case "gpu use (%)":
		c.UtilizationPct = toolout.Percent(value)
	case "card vendor":
		r.Foreign = r.Foreign || hygonMaker(value)
	case "device id", "gpu id":
		c.Fact("device_id", value)
	case "card model", "card sku", "guid", "node id", "gfx version":
		c.Fact(strings.ReplaceAll(strings.ToLower(key), " ", "_"), value)
	}
}

// parseROCm reads the JSON of rocm-smi, its lines such as "GPU[0] : key: value", and its tables.
func parseROCm(out string) brand.Reading {
	var r brand.Reading
	if v, ok := toolout.JSON(out); ok {
		r.Driver = v.Text("system", "Driver version")
	}
	for e := range toolout.Entries(out) {
		note(&r, r.At(e.Index), e.Key, e.Value)
	}
	for row := range toolout.Aligned(out, "GPU", "Device") {
		index := toolout.Whole(row.First("GPU", "Device"))
		if index == nil {
			continue
		}
		c := r.At(*index)
		switch {
		case row.Has("PARTITION ID"):
			c.PCI = toolout.PCI(row["BUS"])
			c.Fact(factPart, row["PARTITION ID"])
			c.Fact("node_id", row["NODE"])
			c.Fact("device_id", row["DID"])
			c.Fact("guid", row["GUID"])
		case row.Has("PwrCap"):
			concise(c, row)
		}
	}
	return r
}

func concise(c *brand.Card, row toolout.Record) {
	c.TemperatureC = toolout.Celsius(row.First("Temp", "Temp (DieEdge)"))
	c.PowerW, c.PowerLimitW = toolout.Watts(row.First("Power", "AvgPwr")), limit(row["PwrCap"])
	c.UtilizationPct = toolout.Percent(row["GPU%"])
	c.More.ClockMHz, c.More.MemoryClockMHz = toolout.Megahertz(row["SCLK"]), toolout.Megahertz(row["MCLK"])
	c.More.FanPct = toolout.Percent(row["Fan"])
	c.Fact("vram", row["VRAM%"])
	c.Fact("power_cap", row["PwrCap"])
	c.Fact("node_id", row["Node"])
	if device, guid, ok := strings.Cut(row["IDs"], ","); ok {
		c.Fact("device_id", device)
		c.Fact("guid", guid)
	}
	if parts := strings.Split(row["Partitions"], ","); len(parts) == 3 {
		c.Fact(factMemory, toolout.Text(parts[0]))
		c.Fact(factCompute, toolout.Text(parts[1]))
		c.Fact(factPart, parts[2])
	}
}
