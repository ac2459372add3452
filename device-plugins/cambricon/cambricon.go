// Package cambricon reads Cambricon cards by cnmon. What all brands do alike, and forms and device groups, do not belong
// here.
package cambricon

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Cambricon, PCI: "cabc", Signs: []string{"dev/cambricon_dev*"}, Prefix: "MLU-",
		Tools: []string{"cnmon", "/usr/bin/cnmon"}, Parse: Parse, Setup: setup(), Read: read, Links: links, Nodes: nodes, Parts: instances,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/cambricon_dev%d", *c.Index)}
}

var capability = regexp.MustCompile(`^cap_dev(\d+)_mi(\d+)$`)

// instances are those that the driver made device nodes for. Of their size the nodes tell nothing.
func instances(files hostfs.FS, c brand.Card) []brand.Part {
	const dir = "dev/cambricon-caps"
	names, err := files.Names(dir)
	if err != nil || c.Index == nil {
		return nil // no card of the machine is divided, or nothing tells which
	}
	slices.Sort(names)
	var parts []brand.Part
	for _, name := range names {
		if m := capability.FindStringSubmatch(name); m != nil && m[1] == fmt.Sprint(*c.Index) {
			parts = append(parts, brand.Part{ID: "mi" + m[2], Kind: "MI", Nodes: []string{"/" + dir + "/" + name}})
		}
	}
	return parts
}

// read asks for the table and for the pages of the cards, which alone have their UUIDs. JSON is not asked for: the tool
// writes it into a file of the folder that it runs in.
func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call()
	if err != nil {
		return brand.Reading{}, err
	}
	r := Parse(out)
	if out, err := call("info"); err == nil {
		r.Merge(Parse(out))
	}
	return r, nil
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading {
	if strings.Contains(out, "| CNMON") || strings.Contains(out, "| Card ") {
		return parseTable(out)
	}
	return parseInfo(out)
}

var tableDriver = regexp.MustCompile(`Driver\s+v([0-9]\S*)`)

// parseTable reads the table for people. Older ones have no address, name the driver with each card, and show virtual
// memory, which is not the card's.
func parseTable(out string) brand.Reading {
	var r brand.Reading
	if m := tableDriver.FindStringSubmatch(out); m != nil {
		r.Driver = toolout.Text(m[1])
	}
	cards, _, _ := strings.Cut(out, "Processes:")
	r.Table(cards, "Card", func(c *brand.Card, row toolout.Record) {
		if driver := row.First("Driver"); r.Driver == "" {
			r.Driver = strings.TrimPrefix(driver, "v")
		}
		for _, fact := range []string{"Firmware", "Ecc-Error", "Compute-Mode", "SR-IOV", "Mode", "vMemory-Usage"} {
			c.Fact(fact, row[fact])
		}
		if strings.EqualFold(row.First("Mode"), "smlu") {
			c.Mode(accel.ModeSMLU, "cli")
		}
	})
	list, known := toolout.Processes(out, "Processes:", 2)
	r.List(list, known, "")
	return r
}

var infoCard = regexp.MustCompile(`^Card\s+(\d+)$`)

// parseInfo reads the pages of the cards: a title "Card 0", keys, and titles above keys that occur more than once.
func parseInfo(out string) brand.Reading {
	var r brand.Reading
	var c *brand.Card
	section := ""
	for p := range toolout.Pairs(out) {
		key := p.Key
		if p.Value != "" && key == "Card" {
			key = "Card " + p.Value
		}
		if m := infoCard.FindStringSubmatch(key); m != nil {
			if index := toolout.Whole(m[1]); index != nil {
				c, section = r.At(*index), ""
			}
			continue
		}
		if c == nil {
			continue
		}
		if p.Title {
			section = p.Key
			continue
		}
		switch p.Key {
		case "Product Name":
			c.Name = toolout.Text(p.Value)
		case "UUID":
			c.ID = toolout.Text(p.Value)
		case "Driver":
			r.Driver = strings.TrimPrefix(toolout.Text(p.Value), "v")
		case "Total", "Used":
			if section != "Physical Memory Usage" {
				continue
			}
			if mib := toolout.MiB(p.Value, ""); p.Key == "Total" {
				c.MemoryMiB = mib
			} else {
				c.MemoryUsedMiB = mib
			}
		}
	}
	return r
}
