// Package enflame reads Enflame cards by efsmi. What all brands do alike, and forms and device groups, do not belong
// here.
package enflame

import (
	"fmt"
	"regexp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Enflame, PCI: "1e36", Signs: []string{"dev/gcu[0-9]*"}, Prefix: "GCU-", Tools: []string{"efsmi"}, Parse: Parse, Setup: setup(), Read: read, Nodes: nodes,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/gcu%d", *c.Index)}
}

func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call()
	if err != nil {
		return brand.Reading{}, err
	}
	return Parse(out), nil
}

var driver = regexp.MustCompile(`Driver Ver:\s*([0-9][0-9.]*)`)

// Parse reads the table. Its memory is the total, smaller with error correction on; of the memory in use it knows only a
// share with one decimal.
func Parse(out string) brand.Reading {
	var r brand.Reading
	if m := driver.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	for row := range toolout.Boxed(out, "DEV") {
		index := toolout.Whole(row["DEV"])
		if index == nil || !row.Has("BUS-ID") {
			continue
		}
		c := r.At(*index)
		c.Name, c.PCI, c.ID = row.First("NAME"), toolout.PCI(row["BUS-ID"]), row.First("SN")
		c.MemoryMiB, c.TemperatureC = toolout.MiB(row["Mem"], ""), toolout.Celsius(row["TEMP"])
		if power := toolout.Values(row["Pwr(Usage/Cap)"]); len(power) == 2 {
			c.PowerW, c.PowerLimitW = toolout.Watts(power[0]), toolout.Watts(power[1])
		}
		for _, fact := range []string{"FW VER", "ECC", "Dpm", "GCU Virt", "DUsed"} {
			c.Fact(fact, row[fact])
		}
		if row.First("GCU Virt") == "Enable" {
			c.Mode(accel.ModeVGCU, "cli")
		}
	}
	return r
}
