package ascend

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Templates is what `npu-smi info -t info-vnpu` says of one chip.
type Templates struct {
	// Free and Total are how much of each kind is left and there: "AICORE", "Memory" (in GB), "VENC" and so on. A kind
	// of which the tool cannot tell is absent.
	Free, Total map[string]int
	Instances   []VNPU
}

// VNPU is one existing virtual NPU.
type VNPU struct {
	ID, Group int
	Container string // empty when none uses it
	Status    string
	Template  string
}

// noContainer is printed where no container uses a virtual NPU.
const noContainer = "000000000000"

var wide = regexp.MustCompile(`\s+`)

// ParseVNPU reads what the tool says of the virtual NPUs of one chip.
func ParseVNPU(out string) Templates {
	t := Templates{Free: map[string]int{}, Total: map[string]int{}}
	var kinds []string
	listing := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(strings.TrimRight(strings.TrimSpace(line), "|"))
		switch {
		case strings.HasPrefix(line, "AICORE"):
			kinds = wide.Split(line, -1)
		case strings.HasPrefix(line, "Vnpu ID"):
			listing = true
		case listing:
			t.instance(strings.Split(line, "|"))
		case kinds != nil && strings.Contains(line, "/"):
			t.amounts(kinds, toolout.Values(line))
		}
	}
	return t
}

func (t *Templates) amounts(kinds, values []string) {
	if len(values) != len(kinds) {
		return
	}
	for i, kind := range kinds {
		free, total := toolout.Usage(values[i])
		if f, all := toolout.Whole(free), toolout.Whole(total); f != nil && all != nil {
			t.Free[kind], t.Total[kind] = *f, *all
		}
	}
}

func (t *Templates) instance(cells []string) {
	if len(cells) != 5 {
		return
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	id, group := toolout.Whole(cells[0]), toolout.Whole(cells[1])
	if id == nil || group == nil {
		return
	}
	v := VNPU{ID: *id, Group: *group, Container: cells[2], Status: cells[3], Template: cells[4]}
	if v.Container == noContainer {
		v.Container = ""
	}
	t.Instances = append(t.Instances, v)
}

// Sizes reads `npu-smi info -t template-info`: each template's name, AI cores and memory in GB.
func Sizes(out string) []accel.Template {
	var sizes []accel.Template
	for line := range strings.Lines(out) {
		m := sizeLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cores, memory := toolout.Whole(m[2]), toolout.Whole(m[3])
		same := func(t accel.Template) bool { return t.Name == m[1] }
		if cores == nil || memory == nil || *cores < 1 || *memory < 1 || *cores > 1024 || *memory > 4096 || slices.ContainsFunc(sizes, same) {
			continue
		}
		sizes = append(sizes, accel.Template{Name: m[1], MemoryMiB: uint64(*memory) * 1024, Parts: *cores})
	}
	accel.SortTemplates(sizes)
	return sizes
}

var sizeLine = regexp.MustCompile(`^[\s|]*(vir[0-9a-z_]{1,30})\s+(\d{1,5})\s+(\d{1,5})\s`)

// seldom tells the calls about virtual NPUs, which are too many for every reading.
func seldom(args []string) bool {
	return len(args) > 2 && (args[2] == "info-vnpu" || args[2] == "template-info")
}

// virtual asks what each chip can be divided in, and is. A chip of which the tool tells no AI cores cannot be.
func virtual(r *brand.Reading, call brand.Call) {
	sizes := map[string][]accel.Template{}
	for i := range r.Cards {
		c := &r.Cards[i]
		npu, number := c.Facts[factNPU], c.Facts[factChip]
		if npu == "" || number == "" || c.Dead != "" {
			continue
		}
		out, err := call("info", "-t", "info-vnpu", "-i", npu, "-c", number)
		if err != nil {
			continue // it will be asked again, and nothing is said of the chip till then
		}
		t := ParseVNPU(out)
		if t.Total["AICORE"] < 1 && len(t.Instances) == 0 {
			continue
		}
		c.Mode(accel.ModeVNPU, "cli")
		if _, asked := sizes[npu]; !asked {
			sizes[npu] = nil
			if out, err := call("info", "-t", "template-info", "-i", npu); err == nil {
				sizes[npu] = Sizes(out)
			}
		}
		divide(c, t, sizes[npu])
	}
}

// firstVNPU and perChip number virtual NPUs: those of the n-th chip begin at firstVNPU + n × perChip.
const firstVNPU, perChip = 100, 16

// divide notes the sizes and the virtual NPUs of a chip. A virtual NPU is named by its place on the chip, since its number
// changes with the chip's.
func divide(c *brand.Card, t Templates, sizes []accel.Template) {
	cores := t.Total["AICORE"]
	if fits := slices.DeleteFunc(slices.Clone(sizes), func(s accel.Template) bool { return s.Parts > cores }); len(fits) > 0 {
		c.Rounding = []accel.Rounding{{Mode: accel.ModeVNPU, Parts: cores, Templates: fits}}
	}
	for _, v := range t.Instances {
		p := brand.Part{ID: "vnpu" + strconv.Itoa(v.ID), Number: &v.ID, Kind: v.Template, Nodes: []string{"/dev/vdavinci" + strconv.Itoa(v.ID)}}
		if v.ID >= firstVNPU {
			p.ID = "vnpu" + strconv.Itoa((v.ID-firstVNPU)%perChip)
		}
		p.MemoryMiB, p.From = memoryOf(v.Template, c.Name, sizes)
		c.Split(p)
	}
}

// memoryOf is the memory of a template as the tool lists it, else as it is published for the chip; nil when neither tells.
func memoryOf(template, chip string, sizes []accel.Template) (*uint64, string) {
	for _, s := range sizes {
		if s.Name == template {
			return &s.MemoryMiB, "cli"
		}
	}
	product, _ := catalogue.ByName(accel.Ascend, chip)
	for _, s := range product.Templates {
		if s.Name == template && s.MemoryMiB != nil {
			return s.MemoryMiB, "catalogue"
		}
	}
	return nil, ""
}
