// Package intel reads Intel's discrete cards by xpu-smi. What all brands do alike, and forms and device groups, do not
// belong here.
package intel

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand. Graphics on bus 0 are part of the processor; another maker has a tool of the same name.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Intel, PCI: "8086", NotAt: "0000:00:", Prefix: "GPU-", Tools: []string{"xpu-smi", "/usr/bin/xpu-smi"}, Parse: Parse, Setup: setup(), Read: read, Model: model,
	}
}

// model drops the maker's name and its marks: "Intel(R) Arc(TM) B580 Graphics" is "Arc B580".
func model(printed string) string {
	name := strings.NewReplacer("(R)", "", "(TM)", "").Replace(printed)
	return strings.TrimSuffix(strings.TrimPrefix(strings.Join(strings.Fields(name), " "), "Intel "), " Graphics")
}

// read asks for the list of cards and the two pages of each, and for the table that newer versions have.
func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call("discovery", "-j")
	if err != nil {
		return brand.Reading{}, err
	}
	r := Parse(out)
	if len(r.Cards) == 0 && !r.Foreign {
		if out, err := call("discovery"); err == nil {
			r.Merge(Parse(out))
		}
	}
	if out, err := call(); err == nil {
		r.Merge(Parse(out))
	}
	if r.Foreign {
		return r, nil
	}
	for _, c := range r.Cards {
		for _, page := range []string{"discovery", "stats"} {
			if out, err := call(page, "-d", strconv.Itoa(*c.Index)); err == nil {
				r.Merge(Parse(out))
			}
		}
	}
	return r, nil
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading {
	if v, ok := toolout.JSON(out); ok {
		return parseJSON(v)
	}
	switch {
	case strings.Contains(out, "XPU-RT Version"):
		return brand.Reading{Foreign: true}
	case strings.Contains(out, "Intel XPU-SMI"):
		return parseTable(out)
	}
	return parsePages(out)
}

func parseJSON(v toolout.Value) brand.Reading {
	var r brand.Reading
	for one := range v.Get("device_list").Items() {
		if index := toolout.Whole(one.Text("device_id")); index != nil && one.Text("device_type") == "GPU" {
			c := r.At(*index)
			c.Name, c.PCI = one.Text("device_name"), toolout.PCI(one.Text("pci_bdf_address"))
			c.Fact("uuid", one.Text("uuid"))
		}
	}
	return r
}

// parsePages reads the pages of cards: on those of discovery the first cell is the index and the second "key: value", on
// those of statistics the first is the key.
func parsePages(out string) brand.Reading {
	var r brand.Reading
	var c *brand.Card
	statistics := false
	var cells []string
	for line := range strings.Lines(out) {
		cells = toolout.AppendCells(cells[:0], line)
		if len(cells) != 2 {
			continue
		}
		if index := toolout.Whole(cells[0]); index != nil {
			c = r.At(*index)
		} else if index := toolout.Whole(cells[1]); index != nil && cells[0] == "Device ID" {
			c, statistics = r.At(*index), true
			continue
		}
		if c == nil {
			continue
		}
		key, value := cells[0], cells[1]
		if !statistics {
			key, value, _ = strings.Cut(cells[1], ": ")
		}
		note(&r, c, key, strings.TrimSpace(value))
	}
	return r
}

// note takes one value by its key. The UUID is made of the model's numbers and the place: it names no card.
func note(r *brand.Reading, c *brand.Card, key, value string) {
	switch key {
	case "Device Name":
		c.Name = toolout.Text(value)
	case "PCI BDF Address":
		c.PCI = toolout.PCI(value)
	case "Serial Number":
		c.ID = toolout.Text(value)
	case "Driver Version":
		r.Driver = toolout.Text(value)
	case "Memory Physical Size":
		c.MemoryMiB = toolout.MiB(value, "")
	case "Device State":
		if state := toolout.Text(value); state != "" && state != "normal" {
			c.Dead = "xpu-smi reports the state " + state
		}
		c.Fact("state", value)
	case "GPU Utilization (%)":
		c.UtilizationPct = toolout.Percent(value)
	case "GPU Power (W)":
		c.PowerW = toolout.Watts(value)
	case "GPU Core Temperature (C)":
		c.TemperatureC = toolout.Celsius(value)
	case "GPU Memory Temperature (C)":
		c.More.MemoryTemperatureC = toolout.Celsius(value)
	case "GPU Memory Bandwidth (%)":
		c.More.MemoryUtilizationPct = toolout.Percent(value)
	case "GPU Frequency (MHz)":
		c.More.ClockMHz = toolout.Megahertz(value)
	case "Mem Errors Correctable":
		c.More.ECCCorrected = toolout.Count(value)
	case "Mem Errors Uncorrectable":
		c.More.ECCUncorrected = toolout.Count(value)
	case "GPU Memory Used (MiB)":
		c.MemoryUsedMiB = toolout.MiB(value, "MiB")
	case "UUID", "SOC UUID", "Number of Tiles", "ECC State", "PCI Device ID":
		c.Fact(strings.ToLower(strings.ReplaceAll(key, " ", "_")), value)
	}
}

var driver = regexp.MustCompile(`Driver:\s*(\S+)`)

// parseTable reads the table that newer versions print.
func parseTable(out string) brand.Reading {
	var r brand.Reading
	if m := driver.FindStringSubmatch(out); m != nil {
		r.Driver = toolout.Text(m[1])
	}
	cards, _, _ := strings.Cut(out, "Processes:")
	r.Table(cards, "GPU", func(c *brand.Card, row toolout.Record) {
		c.More.ECCUncorrected = toolout.Count(row["Volatile Uncorr. ECC"])
		c.Fact("ecc", row["Volatile Uncorr. ECC"])
	})
	list, known := toolout.Processes(out, "Processes:", 1)
	r.List(list, known, "")
	return r
}
