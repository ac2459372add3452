package ascend

import (
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// published are the templates by chip, in exact sizes where the tool rounds them to GB, and the cores they are parts of.
// Source: Project-HAMi/HAMi charts/hami/templates/scheduler/device-configmap.yaml.
var published = map[string]struct {
	cores     int
	templates []accel.Template
}{
	"910A":    {30, []accel.Template{{Name: "vir02", MemoryMiB: 2184, Parts: 2}, {Name: "vir04", MemoryMiB: 4369, Parts: 4}, {Name: "vir08", MemoryMiB: 8738, Parts: 8}, {Name: "vir16", MemoryMiB: 17476, Parts: 16}}},
	"910B2":   {24, []accel.Template{{Name: "vir03_1c_8g", MemoryMiB: 8192, Parts: 3}, {Name: "vir06_1c_16g", MemoryMiB: 16384, Parts: 6}, {Name: "vir12_3c_32g", MemoryMiB: 32768, Parts: 12}}},
	"910B3":   {20, []accel.Template{{Name: "vir05_1c_16g", MemoryMiB: 16384, Parts: 5}, {Name: "vir10_3c_32g", MemoryMiB: 32768, Parts: 10}}},
	"910B4-1": {20, []accel.Template{{Name: "vir05_1c_16g", MemoryMiB: 16384, Parts: 5}, {Name: "vir10_3c_32g", MemoryMiB: 32768, Parts: 10}}},
	"910B4":   {20, []accel.Template{{Name: "vir05_1c_8g", MemoryMiB: 8192, Parts: 5}, {Name: "vir10_3c_16g", MemoryMiB: 16384, Parts: 10}}},
	"310P3":   {8, []accel.Template{{Name: "vir01", MemoryMiB: 3072, Parts: 1}, {Name: "vir02", MemoryMiB: 6144, Parts: 2}, {Name: "vir04", MemoryMiB: 12288, Parts: 4}}},
}

// firstGeneration are the bare names of chips that are not of the later ones whose names begin alike.
var firstGeneration = []string{"910", "910A", "910B", "910PremiumA", "910ProA", "910ProB"}

// sameAs are chips that have the templates of another.
var sameAs = map[string]string{"910PremiumA": "910A"}

// model is the name by which templates are kept.
func model(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "Ascend"), "-")
	if other, ok := sameAs[name]; ok {
		return other
	}
	return name
}

// ofLater reports whether a template is one of 910B1 to 910B4, whose names end in their memory.
func ofLater(template string) bool {
	return strings.HasSuffix(template, "g") || strings.Contains(template, "g_")
}

// menu is what a chip can be divided in. least is a template's memory where the tool's GB and the published size differ: a
// grant of the smaller of the two is enough for it.
type menu struct {
	rule  accel.Rounding
	least map[string]uint64
}

// menuOf brings together what the tool lists and what is published. The tool decides which templates there are; of a chip of
// the first generation those of later ones are left out, whatever says that they fit. It is empty when nothing is known.
func menuOf(chip string, cores int, listed []Size) menu {
	name := model(chip)
	known := published[name]
	m := menu{rule: accel.Rounding{Mode: accel.ModeVNPU, Parts: cores}, least: map[string]uint64{}}
	if m.rule.Parts == 0 {
		m.rule.Parts = known.cores
	}
	exact := func(template string) uint64 {
		if i := slices.IndexFunc(known.templates, func(t accel.Template) bool { return t.Name == template }); i >= 0 {
			return known.templates[i].MemoryMiB
		}
		return 0
	}
	var all []accel.Template
	for _, s := range listed {
		mib := uint64(s.GB) * 1024
		all = append(all, accel.Template{Name: s.Name, MemoryMiB: max(mib, exact(s.Name)), Parts: s.Cores})
		m.least[s.Name] = mib
	}
	if len(listed) == 0 {
		all = slices.Clone(known.templates)
	}
	for _, t := range all {
		if m.rule.Parts > 0 && t.Parts > m.rule.Parts || slices.Contains(firstGeneration, name) && ofLater(t.Name) {
			continue
		}
		if least, told := m.least[t.Name]; !told || t.MemoryMiB < least {
			m.least[t.Name] = t.MemoryMiB
		}
		if e := exact(t.Name); e > 0 {
			m.least[t.Name] = min(m.least[t.Name], e)
		}
		m.rule.Templates = append(m.rule.Templates, t)
	}
	accel.SortTemplates(m.rule.Templates)
	return m
}

// choose is the template for an ask. The error is a *maker.SizeError when none is as large, or when the smallest that is
// takes more memory than was granted.
func (m menu) choose(a share.Ask) (accel.Template, error) {
	refused := &maker.SizeError{Mode: accel.ModeVNPU, Ask: a, Sizes: maker.Sizes(m.rule)}
	s, ok := m.rule.Round(a.MemoryMiB, a.ComputePct, 0)
	if !ok || s.Template == "" || a.MemoryMiB == 0 || m.least[s.Template] > a.MemoryMiB {
		return accel.Template{}, refused
	}
	i := slices.IndexFunc(m.rule.Templates, func(t accel.Template) bool { return t.Name == s.Template })
	return m.rule.Templates[i], nil
}
