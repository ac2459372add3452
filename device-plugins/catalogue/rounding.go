package catalogue

import (
	"regexp"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// steps are the rules of modes that give shares in steps, on all cards of a brand.
//
// MPS limits threads in percent and pinned memory in MiB, HAMi both alike (Project-HAMi/HAMi server.go). A Hygon card holds 4
// virtual cards, of MiB; of how many compute units it has, its tool tells (hy-smi virtual). Cambricon's plugin counts in 256 MiB
// and percent (its min-dsmlu-unit and CAMBRICON_DSMLU_PROFILE). MetaX takes GiB and percent (Project-HAMi/HAMi
// docs/metax-support.md), Enflame percent of the whole (its docs/enflame-gcu-share-support).
var steps = map[accel.Vendor]map[accel.Mode]accel.Rounding{
	accel.NVIDIA:    {accel.ModeMPS: {StepMiB: 1, Parts: 100}, accel.ModeHAMi: {StepMiB: 1, Parts: 100}},
	accel.Hygon:     {accel.ModeVDCU: {StepMiB: 1, Max: 4}},
	accel.Cambricon: {accel.ModeSMLU: {StepMiB: 256, Parts: 100}},
	accel.MetaX:     {accel.ModeSGPU: {StepMiB: 1024, Parts: 100}},
	accel.Enflame:   {accel.ModeVGCU: {Parts: 100}},
	accel.MThreads:  {accel.ModeSGPU: sgpu()},
}

// sgpu is Moore Threads' rule: 16 cores a card, and memory only in these numbers of 512 MiB (Project-HAMi/HAMi
// pkg/device/mthreads/device.go). A template bears its number; of its cores as many may be asked as there are.
func sgpu() accel.Rounding {
	r := accel.Rounding{Parts: 16}
	for _, units := range []uint64{2, 4, 8, 16, 32, 64, 96} {
		r.Templates = append(r.Templates, accel.Template{Name: strconv.FormatUint(units, 10), MemoryMiB: units * 512})
	}
	return r
}

// cores are the AI cores of a card that its templates are parts of (Project-HAMi/HAMi device-configmap.yaml).
var cores = map[string]int{"310P3": 8, "910A": 30, "910B2": 24, "910B3": 20, "910B4": 20, "910B4-1": 20}

// Rounding is what a mode makes of an ask for a share of a card of this product and brand, as far as it is published. The
// product may be empty, for a card that is not in the catalogue.
func (p Product) Rounding(v accel.Vendor, mode accel.Mode) (accel.Rounding, bool) {
	if r, ok := steps[v][mode]; ok {
		r.Mode = mode
		return r, true
	}
	r := accel.Rounding{Mode: mode, Parts: cores[p.Model]}
	for _, t := range p.Templates {
		size, parts, ok := p.size(t)
		if t.Kind != mode || !ok {
			continue
		}
		if mode == accel.ModeMIG {
			r.Parts = max(r.Parts, parts)
		}
		r.Templates = append(r.Templates, accel.Template{Name: t.Name, MemoryMiB: size, Parts: parts, Max: t.Max})
	}
	if r.Parts == 0 {
		for i := range r.Templates {
			r.Templates[i].Parts = 0
		}
	}
	accel.SortTemplates(r.Templates)
	return r, len(r.Templates) > 0
}

var migName = regexp.MustCompile(`^(\d)g\.(\d+)gb$`)

// size is the memory and the parts of a template. Of MIG the parts are in the name, and profiles of one size have the same
// memory. Where no output told it, at least 7/8 of the size in the name are there: no known profile has less. Profiles with
// something more, such as media engines, are for those who ask for them by name.
func (p Product) size(t Template) (uint64, int, bool) {
	if t.Kind != accel.ModeMIG {
		if t.MemoryMiB == nil {
			return 0, 0, false
		}
		return *t.MemoryMiB, t.Cores, true
	}
	m := migName.FindStringSubmatch(t.Name)
	if m == nil {
		return 0, 0, false
	}
	parts, err := strconv.Atoi(m[1])
	gib, sizeErr := strconv.ParseUint(m[2], 10, 16)
	if err != nil || sizeErr != nil {
		return 0, 0, false
	}
	for _, o := range p.Templates {
		if n := migName.FindStringSubmatch(o.Name); n != nil && n[2] == m[2] && o.MemoryMiB != nil {
			return *o.MemoryMiB, parts, true
		}
	}
	return gib * 1024 * 7 / 8, parts, true
}
