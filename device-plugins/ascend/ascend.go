// Package ascend reads Ascend cards by npu-smi. What all brands do alike, and forms and device groups, do not belong
// here.
package ascend

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Names of facts: the tool's numbers of a board and of a chip on it. They need not be contiguous.
const (
	factNPU  = "npu"
	factChip = "chip"
)

// reasonDCMI is the trouble of a tool that cannot reach the driver.
const reasonDCMI = "the driver is not initialised, or this process may not use it: run the agent as root or in the group HwHiAiUser"

// Spec describes the brand. The maker's management controllers and bridges share its PCI vendor.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Ascend, PCI: "19e5", NotPCI: []string{"1710", "1711"}, Signs: []string{"dev/davinci_manager"}, Prefix: "NPU-",
		Tools: []string{"npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi"}, Parse: Parse, Setup: setup(), Read: read, Links: links, Kernel: kernel, Nodes: nodes,
		Seldom: seldom,
	}
}

func nodes(c brand.Card) []string {
	if c.Index == nil {
		return nil
	}
	return []string{fmt.Sprintf("/dev/davinci%d", *c.Index)}
}

// kernel reads the version that the driver's installer wrote down.
func kernel(files hostfs.FS) brand.Reading {
	var r brand.Reading
	body, err := files.Text("usr/local/Ascend/driver/version.info")
	if err != nil {
		return r
	}
	for line := range strings.Lines(body) {
		if key, value, ok := strings.Cut(line, "="); ok && strings.EqualFold(strings.TrimSpace(key), "Version") {
			r.Driver = strings.TrimSpace(value)
		}
	}
	return r
}

// read asks for the table, and where it cannot be read for the list of chips and the pages of each board.
func read(_ string, call brand.Call) (brand.Reading, error) {
	out, err := call("info")
	if err != nil {
		return brand.Reading{}, err
	}
	r := parse(out)
	if len(r.Cards) > 0 || r.Trouble != "" {
		virtual(&r.Reading, call)
		return r.Reading, nil
	}
	if out, err = call("info", "-m"); err != nil {
		return r.Reading, err
	}
	r = parse(out)
	asked := map[string]bool{}
	for _, c := range slices.Clone(r.Cards) {
		npu := c.Facts[factNPU]
		if asked[npu] {
			continue
		}
		asked[npu] = true
		for _, page := range []string{"usages", "common", "board"} {
			if out, err := call("info", "-t", page, "-i", npu); err == nil {
				r.page(parse(out))
			}
		}
	}
	virtual(&r.Reading, call)
	return r.Reading, nil
}

// reading is a reading whose cards are found by the numbers of board and chip.
type reading struct{ brand.Reading }

// page adds the pages of a board to the list of chips.
func (r *reading) page(page reading) {
	for _, theirs := range page.Cards {
		for i := range r.Cards {
			mine := &r.Cards[i]
			// A page without a chip, such as that of the board, holds for all its chips.
			if mine.Facts[factNPU] == theirs.Facts[factNPU] && (theirs.Part == "" || mine.Part == theirs.Part) {
				theirs.Index, theirs.Part = mine.Index, mine.Part
				one := brand.Reading{Cards: []brand.Card{*mine}}
				one.Merge(brand.Reading{Cards: []brand.Card{theirs}})
				*mine = one.Cards[0]
			}
		}
	}
}

// chip makes the card of a chip. The tool's own index is that of the device, where it prints one.
func chip(npu, number, device string) (brand.Card, bool) {
	board, n := toolout.Whole(npu), toolout.Whole(number)
	if board == nil || n == nil {
		return brand.Card{}, false
	}
	c := brand.Card{Index: toolout.Whole(device), Part: strconv.Itoa(*n)}
	c.Fact(factNPU, strconv.Itoa(*board))
	c.Fact(factChip, c.Part)
	return c, true
}

// Parse reads any of the forms in which the tool answers, by its content.
func Parse(out string) brand.Reading { return parse(out).Reading }

func parse(out string) reading {
	switch {
	case strings.Contains(out, "dcmi module initialize failed"):
		return reading{brand.Reading{Trouble: reasonDCMI}}
	case strings.Contains(out, "| NPU"):
		return parseTable(out)
	case strings.Contains(out, "Chip Logic ID"):
		return parseMapping(out)
	}
	return parsePage(out)
}

var title = regexp.MustCompile(`npu-smi\s+(\S+)\s+Version:\s*(\S+)`)

// firstGeneration are the bare names of chips that are not of the later ones whose names begin alike.
var firstGeneration = []string{"910", "910A", "910B", "910PremiumA", "910ProA", "910ProB"}

// parseTable reads the table: two lines for each chip. Its memory is the HBM where there is that column.
func parseTable(out string) reading {
	var r reading
	if m := title.FindStringSubmatch(out); m != nil {
		r.Driver = toolout.Text(m[2])
		r.Facts = map[string]string{"tool": m[1]}
	}
	for row := range toolout.Boxed(out, "NPU") {
		if row.Has("Process id") {
			r.process(row)
			continue
		}
		c, ok := chip(row["NPU"], row["Chip"], row.First("Device", "Phy-ID"))
		if !ok || !row.Has("Bus-Id", "Name") {
			continue
		}
		if c.Index == nil && !row.Has("Device") && !row.Has("Phy-ID") && c.Part == "0" {
			c.Index = toolout.Whole(row["NPU"])
		}
		c.Name, c.PCI = row.First("Name"), toolout.PCI(row["Bus-Id"])
		memory := "Memory-Usage(MB)"
		if row.Has("HBM-Usage(MB)") {
			memory = "HBM-Usage(MB)"
			c.Fact("ddr", row["Memory-Usage(MB)"])
		}
		used, total := toolout.Usage(row[memory])
		c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(used, "MB"), toolout.MiB(total, "MB")
		c.PowerW, c.TemperatureC = toolout.Watts(row["Power(W)"]), toolout.Celsius(row["Temp(C)"])
		c.UtilizationPct = toolout.Percent(row["AICore(%)"])
		c.Fact("health", row["Health"])
		if slices.Contains(firstGeneration, c.Name) {
			c.Fact("generation", "first")
		}
		switch row["Health"] {
		case "Alarm", "Critical", "UNKNOWN":
			c.Dead = "npu-smi reports the health " + row["Health"]
		}
		r.Add(c)
	}
	r.ProcessesKnown = strings.Contains(out, "Process id")
	return r
}

func (r *reading) process(row toolout.Record) {
	pid, err := strconv.Atoi(row["Process id"])
	if err != nil {
		return
	}
	for i := range r.Cards {
		if c := &r.Cards[i]; c.Facts[factNPU] == row["NPU"] && c.Part == row["Chip"] {
			memory := toolout.MiB(row["Process memory(MB)"], "MB")
			c.Processes = append(c.Processes, brand.Process{PID: pid, Name: row.First("Process name"), MemoryMiB: memory})
		}
	}
}

// parseMapping reads the list of chips. A row without a logic id is of a controller, not of a chip.
func parseMapping(out string) reading {
	var r reading
	for row := range toolout.Aligned(out, "NPU") {
		c, ok := chip(row["NPU ID"], row["Chip ID"], row["Chip Logic ID"])
		if !ok || c.Index == nil {
			continue
		}
		c.Name = row.First("Chip Name")
		r.Add(c)
	}
	return r
}

// parsePage reads the pages of one board. The number of a chip stands before its values on some pages and behind them
// on others, and the controller's block has no number at all.
func parsePage(out string) reading {
	var r reading
	values := toolout.Block{}
	npu, controllerPower := "", ""
	done := func() {
		if name := values["Chip Name"]; name != "" {
			controllerPower = toolout.Text(values["NPU Real-time Power(W)"])
		} else if c, ok := page(npu, values); ok {
			r.Add(c)
		}
		clear(values)
	}
	numberLast := strings.Contains(out, "Capacity(MB)")
	for p := range toolout.Pairs(out) {
		switch {
		case p.Key == "NPU ID":
			npu = p.Value
		case p.Title || p.Key == "Chip Count":
		case p.Key == "Chip ID" && numberLast:
			values.Set(p.Key, p.Value)
			done()
		case p.Key == "Chip ID", p.Key == "Chip Name":
			done()
			values.Set(p.Key, p.Value)
		default:
			values.Set(p.Key, p.Value)
		}
	}
	if !numberLast {
		done()
	}
	for i := range r.Cards {
		r.Cards[i].Fact("controller_power", controllerPower) // of some boards the power is known only so, for all chips together
	}
	return r
}

// pageFacts are facts of a page: name → key.
var pageFacts = map[string]string{
	"memory_rate": "Memory Usage Rate(%)", "hbm_rate": "HBM Usage Rate(%)", "cores": "Aicore Count", "ddr_rate": "DDR Usage Rate(%)",
	"ddr": "DDR Capacity(MB)", "product": "Product Name", "model": "Model", "firmware": "Firmware Version", "serial": "Serial Number",
}

// page turns the values of one block into what is known of a chip, or of the whole board.
func page(npu string, values toolout.Block) (brand.Card, bool) {
	if toolout.Whole(npu) == nil || len(values) == 0 {
		return brand.Card{}, false
	}
	var c brand.Card
	number, board := values["Chip ID"], values["PCIe Bus Info"]
	if number == "" && board == "" {
		return brand.Card{}, false
	}
	if number != "" {
		var ok bool
		if c, ok = chip(npu, number, ""); !ok {
			return brand.Card{}, false // nothing tells of which chip these are
		}
		c.TemperatureC, c.PowerW = toolout.Celsius(values["Temperature(C)"]), toolout.Watts(values["NPU Real-time Power(W)"])
		c.UtilizationPct = toolout.Percent(values["Aicore Usage Rate(%)"])
		c.More.ClockMHz = toolout.Megahertz(values["Aicore curFreq(MHZ)"])
		c.More.MemoryUtilizationPct = toolout.Percent(values["DDR Bandwidth Usage Rate(%)"])
		c.MemoryMiB = toolout.MiB(values["DDR Capacity(MB)"], "MB")
		if hbm, ok := values["HBM Capacity(MB)"]; ok {
			c.MemoryMiB = toolout.MiB(hbm, "MB")
			c.More.MemoryUtilizationPct = toolout.Percent(values["HBM Bandwidth Usage Rate(%)"])
		}
	}
	c.Fact(factNPU, npu)
	c.PCI = toolout.PCI(board)
	for name, key := range pageFacts {
		c.Fact(name, toolout.Text(values[key]))
	}
	return c, true
}
