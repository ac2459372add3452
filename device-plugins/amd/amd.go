// Package amd reads AMD cards by amd-smi or rocm-smi, and from the kernel's KFD topology, which alone knows the memory of
// a partition. What all brands do alike, and forms and device groups, do not belong here.
package amd

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/kfd"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

const pciVendor = "1002"

// Names of facts from which partitions are told.
const (
	factCompute = "compute_partition"
	factMemory  = "memory_partition"
	factPart    = "partition_id"
)

// Spec describes the brand. AMD's processors have another PCI vendor.
func Spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.AMD, PCI: pciVendor, Prefix: "GPU-", Tools: []string{"amd-smi", "/opt/rocm/bin/amd-smi", "rocm-smi", "/opt/rocm/bin/rocm-smi"},
		Parse: Parse, Setup: setup(), Read: read, Model: model, Kernel: kernel, Links: links, Nodes: nodes,
	}
}

func nodes(c brand.Card) []string {
	if c.Minor == nil {
		return nil
	}
	return []string{"/dev/kfd", fmt.Sprintf("/dev/dri/renderD%d", *c.Minor)}
}

var inBrackets = regexp.MustCompile(`\[([^\]]+)\]`)

// model is the product's name of "Arcturus GL-XL [Instinct MI100]" and "AMD INSTINCT MI200 …": the one in brackets,
// without the name of the family.
func model(printed string) string {
	if m := inBrackets.FindStringSubmatch(printed); m != nil {
		printed = m[1]
	}
	words := strings.Fields(printed)
	for len(words) > 1 && (strings.EqualFold(words[0], "AMD") || strings.EqualFold(words[0], "Instinct")) {
		words = words[1:]
	}
	return strings.Join(words, " ")
}

// facts are what rocm-smi is asked for in one call.
var facts = []string{
	"-i", "--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--showuse", "--showtemp", "--showpower",
	"--showmaxpower", "--showdriverversion",
}

// read asks either tool for all that it knows.
func read(tool string, call brand.Call) (brand.Reading, error) {
	asked := [][][]string{ // of each group the first that is answered with cards
		{
			slices.Concat(facts, []string{"--showmemuse", "--showclocks", "--showfan", "--showreplaycount", "--json"}),
			slices.Concat(facts, []string{"--json"}), // a version that does not know one of them refuses them all
			{"--showproductname", "--json"},
		},
		{{"--showhw"}},
		{nil},
	}
	if strings.HasPrefix(tool, "amd-smi") {
		asked = [][][]string{{{"static", "--json"}, {"static"}}, {{"list", "--json"}, {"list"}}, {{"monitor", "-q"}, {"monitor", "-p", "-t", "-v"}}}
	}
	var r brand.Reading
	var first error
	for i, group := range asked {
		for _, args := range group {
			out, err := call(args...)
			if err != nil {
				if i == 0 {
					first = err
				}
				break
			}
			part := Parse(out)
			if slices.Contains(args, "monitor") { // it does not tell cards from parts, and shows the board's memory: it makes no cards
				part.Cards = slices.DeleteFunc(part.Cards, func(c brand.Card) bool { return !r.Has(*c.Index) })
			}
			r.Merge(part)
			if len(part.Cards) > 0 {
				break
			}
		}
		if first != nil || r.Foreign {
			return r, first
		}
	}
	return finish(r), nil
}

// kernel reads the KFD topology.
func kernel(files hostfs.FS) brand.Reading {
	r := brand.Reading{Cards: kfd.Cards(files, pciVendor)}
	if version, err := files.Text("sys/module/amdgpu/version"); err == nil {
		r.Driver = version
	}
	for i := range r.Cards {
		c := &r.Cards[i]
		c.Skip = c.Partition == "" && c.MemoryMiB != nil && *c.MemoryMiB < smallest
	}
	return r
}

// smallest is the memory below which a card is the graphics of a processor and no accelerator. The smallest card that
// computes has 2 GiB; a processor's share of main memory is 512 MiB unless its owner gave it more on purpose.
const smallest = 2048

// finish tells partitions and accelerators from what all calls together said. Partitions show the address of their board,
// or are functions of it.
func finish(r brand.Reading) brand.Reading {
	parts := map[string]int{}
	for _, c := range r.Cards {
		board, _, _ := strings.Cut(c.PCI, ".")
		parts[board]++
	}
	for i := range r.Cards {
		c := &r.Cards[i]
		board, function, hasPlace := strings.Cut(c.PCI, ".")
		kind := toolout.Text(c.Facts[factCompute])
		split := kind != "" && kind != "SPX"
		if split || hasPlace && parts[board] > 1 {
			c.Partition, c.Part = "partition", cmp.Or(c.Facts[factPart], function)
			if split {
				c.Partition = kind
			}
			if hasPlace {
				c.PCI = board + ".0"
			}
			// The tools print the board's with each of its parts.
			c.MemoryMiB, c.MemoryUsedMiB, c.PowerW, c.PowerLimitW = nil, nil, nil, nil
			c.More.ECCCorrected, c.More.ECCUncorrected, c.More.PCIeReplays = nil, nil, nil
		}
		if kind == "SPX" && c.Partition == "" {
			c.Mode(accel.ModeCPX, "cli")
		}
		c.Skip = c.Partition == "" && c.MemoryMiB != nil && *c.MemoryMiB < smallest
	}
	return r
}

// Parse reads any of the forms in which the two tools answer, by its content.
func Parse(out string) brand.Reading {
	if v, ok := toolout.JSON(out); ok {
		if list := v.Get("gpu_data"); list.IsList() {
			return parseSMI(list)
		}
		if v.IsList() {
			return parseSMI(v)
		}
		return parseROCm(out)
	}
	switch {
	case isHygon(out):
		return brand.Reading{Foreign: true}
	case strings.Contains(out, "No JSON data to report"):
		return brand.Reading{Trouble: "the driver reports no card: is the module amdgpu loaded?"}
	case strings.Contains(out, "VRAM_TOTAL"):
		return parseMonitor(out)
	case strings.Contains(out, "GPU: "):
		return parseStatic(out)
	}
	return parseROCm(out)
}

// isHygon tells the older tool of Hygon, of the same name, by its columns, its makers, and a title without ROCm.
func isHygon(out string) bool {
	for line := range strings.Lines(out) {
		rest, found := strings.CutPrefix(line, "DCU")
		if !found {
			rest, found = strings.CutPrefix(line, "HCU")
		}
		if found && rest != "" && strings.ContainsRune(" \t\r\n[", rune(rest[0])) {
			return true
		}
	}
	return hygonMaker(out) || strings.Contains(out, "System Management Interface") && !strings.Contains(out, "ROCm")
}

func hygonMaker(vendor string) bool {
	return strings.Contains(vendor, "Haiguang") || strings.Contains(vendor, "C-3000 IC Design")
}

// unique brings a maker's number to the form of the kernel: tools print it with a prefix, and some without leading zeros.
func unique(printed string) string {
	printed = toolout.Text(printed)
	if printed == "" {
		return ""
	}
	n, err := strconv.ParseUint(printed, 0, 64)
	if err != nil {
		return ""
	}
	return kfd.ID(n)
}

// limit is a power limit; 0 W, as a second die prints, is none.
func limit(printed string) *float64 {
	if w := toolout.Watts(printed); w != nil && *w > 0 {
		return w
	}
	return nil
}
