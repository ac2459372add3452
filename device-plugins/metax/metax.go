// Package metax reads MetaX cards by mx-smi. What all brands do alike, and forms and device groups, do not belong here.
package metax

import (
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand. Another maker has a tool of the same name.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.MetaX, PCI: "9999", Signs: []string{"dev/mxcd"}, Prefix: "GPU-", Tools: []string{"mx-smi", "/opt/mxdriver/bin/mx-smi"},
		Parse: Parse, Setup: setup(), Read: read, Model: model,
	}
}

func model(printed string) string { return strings.TrimPrefix(printed, "MetaX ") }

func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call()
	if err != nil {
		return brand.Reading{}, err
	}
	return Parse(out), nil
}

var driver = regexp.MustCompile(`Kernel Mode Driver Version:\s*([0-9]\S*)`)

// Parse reads the table. Newer versions count boards and the cards on them, and show whether a card can be shared.
func Parse(out string) brand.Reading {
	if !strings.Contains(out, "MACA Version") {
		return brand.Reading{Foreign: strings.Contains(strings.ToLower(out), "moffett")}
	}
	var r brand.Reading
	if m := driver.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	cards, _, _ := strings.Cut(out, "Process:")
	for row := range toolout.Boxed(cards, "GPU", "Board") {
		index := toolout.Whole(row["GPU"])
		if index == nil || !row.Has("Bus-id") {
			continue
		}
		c := r.At(*index)
		c.Name, c.PCI = row.First("NAME", "Name"), toolout.PCI(row["Bus-id"])
		used, total := toolout.Usage(row["Memory-Usage"])
		c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(used, ""), toolout.MiB(total, "")
		power, limit := toolout.Usage(row["Pwr:Usage/Cap"])
		c.PowerW, c.PowerLimitW = toolout.Watts(power), toolout.Watts(limit)
		c.UtilizationPct, c.TemperatureC = toolout.Percent(row["GPU-Util"]), toolout.Celsius(row["Temp"])
		c.Fact("board", row["Board"])
		c.Fact("state", row["GPU-State"])
		c.Fact("sgpu", row["sGPU-M"])
		if row.First("sGPU-M") == "Enabled" {
			c.Mode(accel.ModeSGPU, "cli")
		}
		if state := row.First("GPU-State"); state != "" && state != "Available" {
			c.Dead = "mx-smi reports the state " + state
		}
	}
	list, known := toolout.Processes(out, "Process:", 1)
	r.List(list, known, "MiB")
	return r
}
