// Package kunlunxin reads Kunlunxin cards by xpu_smi or xpu-smi. Intel's tool of the same name is told apart. What all
// brands do alike, and forms and device groups, do not belong here.
package kunlunxin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Spec describes the brand. Intel's tool of the same name is often first on PATH.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Kunlunxin, PCI: "1d22", Signs: []string{"dev/xpuctrl"}, Prefix: "XPU-",
		Tools: []string{"xpu_smi", "/usr/local/bin/xpu_smi", "/usr/local/xpu/bin/xpu_smi", "xpu-smi", "/usr/local/bin/xpu-smi", "/usr/local/xpu/bin/xpu-smi"},
		Parse: Parse, Setup: setup(), Read: read, Links: links, Nodes: nodes,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/xpu%d", *c.Index)}
}

// read asks for the table, which shows whose tool it is, and for the lines for machines, which have the serial numbers.
func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call()
	if err != nil {
		return brand.Reading{}, err
	}
	r := Parse(out)
	if r.Foreign {
		return r, nil
	}
	if out, err := call("-m"); err == nil {
		r.Merge(Parse(out))
	}
	return r, nil
}

// isIntel tells Intel's tool by words that only it prints.
func isIntel(out string) bool {
	return slices.ContainsFunc([]string{"Intel XPU-SMI", "Intel(R)", "Level Zero", "XPU Manager"}, func(word string) bool { return strings.Contains(out, word) })
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading {
	switch {
	case isIntel(out):
		return brand.Reading{Foreign: true}
	case strings.Contains(out, "| XPU-SMI"):
		return parseTable(out)
	case strings.Contains(out, "| DevID |"):
		return parseOldTable(out)
	}
	return parseMachine(out)
}

var tableDriver = regexp.MustCompile(`Driver Version:\s*([0-9]\S*)`)

// parseTable reads the table of newer versions: three lines for each card.
func parseTable(out string) brand.Reading {
	var r brand.Reading
	if m := tableDriver.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	cards, _, _ := strings.Cut(out, "Processes:")
	r.Table(cards, "XPU", func(c *brand.Card, row toolout.Record) {
		c.More.ECCUncorrected = toolout.Count(row["Volatile Uncorr. ECC"])
		for _, fact := range []string{"L3-Usage", "SR-IOV M.", "Volatile Uncorr. ECC"} {
			c.Fact(fact, row[fact])
		}
		if row.First("SR-IOV M.") == "Enabled" {
			c.Mode(accel.ModeVXPU, "cli")
		}
	})
	list, known := toolout.Processes(out, "Processes:", 3)
	r.List(list, known, "")
	return r
}

// parseOldTable reads the tables of older versions. Only the first of them has addresses; the others repeat the cards.
func parseOldTable(out string) brand.Reading {
	var r brand.Reading
	if m := tableDriver.FindStringSubmatch(out); m != nil {
		r.Driver = m[1]
	}
	for row := range toolout.Boxed(out, "DevID") {
		index := toolout.Whole(row["DevID"])
		switch {
		case index == nil:
		case row.Has("PCI Addr"):
			c := r.At(*index)
			c.Name, c.PCI, c.ID = row.First("Model"), toolout.PCI(row["PCI Addr"]), row.First("SN")
			used, total := toolout.Usage(row["Memory"])
			c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(used, ""), toolout.MiB(total, "")
			c.UtilizationPct = toolout.Percent(row["UseRate"])
			c.Fact("node", row["INODE"])
			c.Fact("L3-Usage", row["L3"])
		case row.Has("PID"):
			if pid := toolout.Whole(row["PID"]); pid != nil {
				used, _ := toolout.Usage(row["Memory"])
				r.List([]toolout.Process{{Index: *index, PID: *pid, Name: row.First("Command"), Memory: used}}, true, "")
			}
		}
	}
	r.ProcessesKnown = strings.Contains(out, "PROCESSES")
	return r
}

// Fields of a line for machines. The model is quoted, because it has blanks in it.
const (
	fieldBus, fieldBoard, fieldDevice, fieldSerial, fieldHeat, fieldPower = 0, 1, 2, 3, 4, 8
	fieldL3Used, fieldL3, fieldUsed, fieldTotal, fieldUtil                = 15, 16, 17, 18, 19
	fieldFirmware, fieldModel                                             = 20, 21
)

// parseMachine reads the lines for machines: they have no header, and one that does not begin with an address is not
// one of them.
func parseMachine(out string) brand.Reading {
	var r brand.Reading
	var fields []string
	for line := range strings.Lines(out) {
		fields = words(fields[:0], line)
		if len(fields) <= fieldModel || strings.Contains(line, `"`) && !strings.Contains(line, `"`+fields[fieldModel]+`"`) {
			continue // one with a blank in place of a value: nothing tells which
		}
		address, index := toolout.PCI(fields[fieldBus]), toolout.Whole(fields[fieldDevice])
		if address == "" || index == nil {
			continue
		}
		c := r.At(*index)
		c.PCI, c.ID, c.Name = address, toolout.Text(fields[fieldSerial]), toolout.Text(fields[fieldModel])
		c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(fields[fieldUsed], "MiB"), toolout.MiB(fields[fieldTotal], "MiB")
		c.UtilizationPct, c.TemperatureC = toolout.Percent(fields[fieldUtil]), toolout.Celsius(fields[fieldHeat])
		c.PowerW = toolout.Watts(fields[fieldPower])
		if strings.HasPrefix(c.Name, "K") { // the K series counts in milliwatts, later ones in watts
			c.PowerW = toolout.Milliwatts(fields[fieldPower])
		}
		c.Fact("board", fields[fieldBoard])
		c.Fact("L3-Usage", fields[fieldL3Used]+" / "+fields[fieldL3])
		c.Fact("firmware", fields[fieldFirmware])
	}
	return r
}

// words appends the words of a line, which blanks part, but for those in quotes. A real line has fewer than mostWords.
func words(all []string, line string) []string {
	for quoted, more := false, true; more && len(all) < mostWords; quoted = !quoted {
		var part string
		if part, line, more = strings.Cut(line, `"`); quoted {
			all = append(all, part)
		} else {
			all = toolout.AppendWords(all, part)
		}
	}
	return all
}

const mostWords = 256
