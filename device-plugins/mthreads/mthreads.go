// Package mthreads reads Moore Threads cards by mthreads-gmi. What all brands do alike, and forms and device groups, do
// not belong here.
package mthreads

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.MThreads, PCI: "1ed5", Signs: []string{"dev/mtgpu.*"}, Prefix: "GPU-", Tools: []string{"mthreads-gmi"},
		Parse: Parse, Setup: setup(), Read: read, Links: links, Nodes: nodes,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/mtgpu.%d", *c.Index)}
}

// read asks for JSON, and where the tool is too old for it for the same as text. The table alone lists processes.
func read(_ string, call brand.Call) (brand.Reading, error) {
	var r brand.Reading
	out, err := call("--query", "--json")
	if err == nil {
		r = Parse(out)
	}
	if len(r.Cards) == 0 {
		if out, err = call("-q"); err == nil {
			r.Merge(Parse(out))
		}
	}
	out, tableErr := call()
	if tableErr == nil {
		r.Merge(Parse(out))
		err = nil
	}
	return r, err
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading {
	if v, ok := toolout.JSON(out); ok {
		return parseJSON(v)
	}
	if strings.Contains(out, "%GPU") {
		return parseTable(out)
	}
	return parseQuery(out)
}

// values of one card by their place in the query, in JSON and in text alike.
func fill(c *brand.Card, get func(section, key string) string) {
	c.Name, c.ID = get("", "Product Name"), get("", "GPU UUID")
	c.PCI = toolout.PCI(get("PCI", "Bus ID"))
	c.MemoryMiB, c.MemoryUsedMiB = toolout.MiB(get("FB Memory Usage", "Total"), ""), toolout.MiB(get("FB Memory Usage", "Used"), "")
	c.UtilizationPct = toolout.Percent(get("Utilization", "Gpu"))
	c.TemperatureC = toolout.Celsius(get("Temperature", "GPU Current Temp"))
	c.PowerW, c.PowerLimitW = toolout.Watts(get("Power Readings", "Power Draw")), toolout.Watts(get("Power Readings", "Current Power Limit"))
	c.More = device.Sample{
		MemoryUtilizationPct: toolout.Percent(get("Utilization", "Memory")),
		ClockMHz:             toolout.Megahertz(get("Clocks", "Graphics")), MemoryClockMHz: toolout.Megahertz(get("Clocks", "Memory")),
		FanPct: toolout.Percent(get("Speed", "Fan0")), // of several fans the first: they turn alike
	}
	retired(c, get)
	c.Fact("serial", get("", "Serial Number"))
	c.Fact("ecc", get("Ecc Mode", "Current"))
	c.Fact("memory_utilization", get("Utilization", "Memory"))
	c.Fact("memory_clock", get("Clocks", "Memory"))
	c.Fact("link_width", get("Link Width", "Current"))
}

// retired reads which pages of memory are used no more, after one error of two bits or several of one.
func retired(c *brand.Card, get func(section, key string) string) {
	for _, kind := range []string{"Single Bit ECC", "Double Bit ECC"} {
		n := toolout.Count(get("Retired Pages", kind))
		if n != nil && c.More.RetiredPages != nil {
			*n += *c.More.RetiredPages
		}
		c.More.RetiredPages = cmp.Or(n, c.More.RetiredPages)
	}
	c.More.RepairPending = toolout.YesNo(get("Retired Pages", "Pending Page Blacklist"))
}

func parseJSON(v toolout.Value) brand.Reading {
	r := brand.Reading{Driver: v.Text("Driver Version")}
	r.Facts = map[string]string{"attached": v.Text("Attached GPUs")}
	for one := range v.Get("GPU").Items() {
		index := toolout.Whole(one.Text("Index"))
		if index == nil {
			continue
		}
		fill(r.At(*index), func(section, key string) string {
			if section == "" {
				return one.Text(key)
			}
			return one.Text(section, key)
		})
	}
	return r
}

var queried = regexp.MustCompile(`^GPU\s?(\d+)\s+(\S+)$`)

// parseQuery reads the query as text. The same key stands under several titles, and some texts have lost their
// indentation: a key is read by the title just above it.
func parseQuery(out string) brand.Reading {
	var r brand.Reading
	var index *int
	address, values := "", toolout.Block{} // of the card
	done := func() {
		if index != nil {
			c := r.At(*index)
			fill(c, func(section, key string) string { return values[section+"/"+key] })
			c.PCI = address
		}
		clear(values)
	}
	inCard := false
	for p := range toolout.Pairs(out) {
		if m := queried.FindStringSubmatch(p.Key); m != nil && p.Value == "" {
			done()
			index, address, inCard = toolout.Whole(m[1]), toolout.PCI(m[2]), true
			continue
		}
		switch {
		case p.Value == "":
		case p.Key == "Driver Version":
			r.Driver = toolout.Text(p.Value)
		case inCard:
			section := p.Under()
			if queried.MatchString(section) {
				section = ""
			}
			values.Set(section+"/"+p.Key, toolout.Text(p.Value))
		}
	}
	done()
	return r
}

var (
	tableVersion = regexp.MustCompile(`mthreads-gmi:(\S+)\s+Driver Version:(\S+)`)
	tableMemory  = regexp.MustCompile(`^([0-9.]+\s*[A-Za-z]+)\(([0-9.]+\s*[A-Za-z]+)\)$`)
)

// parseTable reads the table for people. Its cells are parted by bars but not framed by them.
func parseTable(out string) brand.Reading {
	var r brand.Reading
	if m := tableVersion.FindStringSubmatch(out); m != nil {
		r.Driver = toolout.Text(m[2])
	}
	cards, _, _ := strings.Cut(out, "Processes:")
	for row := range toolout.Barred(cards, "ID") {
		index := toolout.Whole(row["ID"])
		if index == nil || !row.Has("PCIe") {
			continue
		}
		c := r.At(*index)
		c.Name, c.PCI = row.First("Name"), toolout.PCI(row["PCIe"])
		if m := tableMemory.FindStringSubmatch(row["Mem"]); m != nil {
			c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(m[1], ""), toolout.MiB(m[2], "")
		}
		c.UtilizationPct, c.TemperatureC = toolout.Percent(row["%GPU"]), toolout.Celsius(row["Temp"])
		c.Fact("lanes", row["Pcie Lane Width"])
		c.Fact("ecc", row["ECC Mode"])
		c.Fact("perf", row["Perf"])
	}
	list, known := toolout.Processes(out, "Processes:", 1)
	r.List(list, known, "")
	return r
}
