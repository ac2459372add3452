package device

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/version"
)

// Diagnosis is what one look at the machine gave, with the reasons. The same machine gives the same text.
type Diagnosis struct {
	Version string `json:"version"` // of the plugin
	Found
	Brands []diagnose.Brand `json:"brands"` // in the order of the registry, without the simulated ones
	// Unclaimed are accelerators on the PCI bus that are of no brand.
	Unclaimed []diagnose.Function `json:"unclaimed,omitempty"`
}

// processing are the PCI classes that are nothing but accelerators: 3D controllers and processing accelerators.
var processing = []string{"0302", "1200"}

// Diagnose looks at the machine once, as the plugin would, and says of every brand how it fared and what is missing. It
// changes nothing, and it ends even when a detector does not.
func Diagnose(ctx context.Context, cfg Config, build Build, files hostfs.FS, log hclog.Logger) (Diagnosis, error) {
	p := New(build, log)
	if err := p.Use(cfg); err != nil {
		return Diagnosis{}, err
	}
	brands := make([]*diagnose.Brand, len(p.sources))
	found, err := p.once(ctx, func(i int, s *source) { brands[i] = p.diagnose(ctx, s) })
	if err != nil {
		return Diagnosis{}, err
	}
	d := Diagnosis{Version: version.Version, Found: found, Brands: []diagnose.Brand{}}
	claimed := map[string]bool{}
	for _, b := range brands {
		if b == nil {
			continue
		}
		d.Brands = append(d.Brands, *b)
		for _, f := range b.Bus {
			claimed[f.Address] = true
		}
	}
	all, err := files.PCIDevices()
	if err != nil {
		log.Debug("some pci devices cannot be read", "error", err)
	}
	d.Unclaimed = diagnose.Bus(slices.DeleteFunc(all, func(f hostfs.PCIDevice) bool {
		return claimed[f.Address] || !slices.Contains(processing, f.Class)
	}))
	return d, nil
}

// diagnose asks one source; nil when it is a simulated one.
func (p *Plugin) diagnose(ctx context.Context, s *source) *diagnose.Brand {
	d, ok := s.Detector.(Diagnoser)
	if !ok {
		return nil
	}
	var busy atomic.Bool
	b, err := guarded(ctx, &busy, p.limit, d.Diagnose)
	if err != nil {
		return &diagnose.Brand{Vendor: s.Vendor(), Present: true, Lacks: []diagnose.Lack{{
			Kind: diagnose.ToolHangs, What: fmt.Sprintf("the machine does not answer within %s: a driver or a file of the kernel hangs", p.limit),
			Fix: diagnose.Fix{Do: "look at \"sudo dmesg\" for a card or driver that does not answer, and restart the machine"},
		}}}
	}
	return &b
}
