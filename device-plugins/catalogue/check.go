package catalogue

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A size in GiB or bytes, a performance in GFLOPS and most figures with sparsity are outside of these.
const (
	minMiB, maxMiB   = 2 << 10, 512 << 10
	minGBps, maxGBps = 10, 2000
	minPeak          = 0.1
)

var maxPeak = map[string]float64{
	"fp64": 100, "fp32": 300, "tf32": 1500, "fp16": 3000, "bf16": 3000, "fp8": 6000, "int16": 1500, "int8": 6000,
}

// maxGen is the fabrics that products have between each other, with their last generation; 0 where the maker counts none.
var maxGen = map[accel.LinkKind]int{
	accel.LinkNVLink: 5, accel.LinkHCCS: 0, accel.LinkXGMI: 0, accel.LinkMLULink: 0, accel.LinkMTLink: 2, accel.LinkXPULink: 0, accel.LinkPCIe: 6,
}

var pciVendor = map[accel.Vendor]string{
	accel.NVIDIA: "10de", accel.MThreads: "1ed5", accel.Hygon: "1d94", accel.Cambricon: "cabc", accel.Biren: "1ee0", accel.Ascend: "19e5",
	accel.Kunlunxin: "1d22", accel.AMD: "1002", accel.MetaX: "9999", accel.Iluvatar: "1e3e", accel.Enflame: "1e36", accel.Intel: "8086",
}

var (
	pciDevice = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)
	kinds     = []string{"mig", "vnpu", "svi", "vxpu", "partition"}
)

// check says what cannot be of a product.
func check(p Product) error {
	var problems []error
	wrong := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: "+format, append([]any{p.Model}, args...)...))
	}
	if p.Model == "" || strings.ContainsAny(p.Model, " /") || accel.ModelName(p.Vendor, p.Model) != p.Model {
		wrong("model %q is not as it is offered", p.Model)
	}
	if p.MemoryMiB != nil && (*p.MemoryMiB < minMiB || *p.MemoryMiB > maxMiB) {
		wrong("memory of %d MiB", *p.MemoryMiB)
	}
	for _, id := range p.PCI {
		if !pciDevice.MatchString(id) || !strings.HasPrefix(id, pciVendor[p.Vendor]+":") {
			wrong("PCI id %q", id)
		}
	}
	if p.Link != "" {
		last, ok := maxGen[p.Link]
		switch {
		case !ok:
			wrong("link %q is not between products", p.Link)
		case p.LinkGen > last:
			wrong("link %s of generation %d", p.Link, p.LinkGen)
		case p.LinkGBps != 0 && (p.LinkGBps < minGBps || p.LinkGBps > maxGBps || p.Link == accel.LinkPCIe):
			wrong("link %s of %v GB/s", p.Link, p.LinkGBps)
		}
	}
	for precision, n := range p.TFLOPS {
		if most := maxPeak[precision]; n < minPeak || n > most {
			wrong("performance of %v at %s", n, precision)
		}
	}
	for _, one := range p.Templates {
		if !slices.Contains(kinds, one.Kind) {
			wrong("template of the kind %q", one.Kind)
		}
		if one.MemoryMiB != nil && p.MemoryMiB != nil && *one.MemoryMiB*uint64(max(1, one.Max)) > *p.MemoryMiB {
			wrong("%d of the template %s do not fit", max(1, one.Max), one.Name)
		}
	}
	names := make([]string, len(p.Templates))
	for i, one := range p.Templates {
		names[i] = one.Name
	}
	for _, all := range [][]string{p.Names, p.PCI, p.Modes, p.Sources, names} {
		for i, one := range all {
			if slices.Contains(all[:i], one) {
				wrong("%q comes twice", one)
			}
		}
	}
	return errors.Join(problems...)
}

// known is the models by the names that are given away.
type known map[string]string

// add refuses a name that an earlier product has.
func (k known) add(p Product) error {
	var problems []error
	keys := map[string]bool{}
	for _, name := range append([]string{p.Model}, p.Names...) {
		keys[key(p.Vendor, name)] = true
	}
	for one := range keys {
		if other, ok := k[one]; ok {
			problems = append(problems, fmt.Errorf("%s: %s has the name %q too", p.Model, other, one))
		}
		k[one] = p.Model
	}
	return errors.Join(problems...)
}
