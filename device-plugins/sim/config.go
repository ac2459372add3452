// Package sim invents cards of every brand from a small HCL file, with health, statistics, faults and delays that can be
// switched while it runs. Everything it says follows from its files, so that two runs agree. It says of every card that
// it is simulated; real cards do not belong here.
package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// file is the config file: which cards there are.
type file struct {
	Seed    int64       `hcl:"seed,optional"`
	Node    string      `hcl:"node,optional"`    // makes the UUIDs of one node differ from those of another
	Control string      `hcl:"control,optional"` // path of the control file, relative to this file
	Cards   []cardBlock `hcl:"card,block"`
	Links   []linkBlock `hcl:"link,block"`
	NICs    []nicBlock  `hcl:"nic,block"`
}

type cardBlock struct {
	Vendor   string   `hcl:"vendor,label"`
	Model    string   `hcl:"model"`
	Count    *int     `hcl:"count,optional"`
	Memory   string   `hcl:"memory,optional"` // absent: the cards do not tell their memory
	Modes    []string `hcl:"modes,optional"`
	NUMANode *int     `hcl:"numa_node,optional"`
	Driver   string   `hcl:"driver_version,optional"`
}

// linkBlock connects each two of its cards by the link that is its label, such as nv12, nvsw18, hccs or xgmi.
type linkBlock struct {
	Kind  string   `hcl:"kind,label"`
	Cards []string `hcl:"cards"` // UUID, vendor/index, or vendor for all its cards
}

// nicBlock is an RDMA device, named by its label, and the cards that are near it.
type nicBlock struct {
	Name  string   `hcl:"name,label"`
	Cards []string `hcl:"cards"`
	Link  string   `hcl:"link,optional"` // how they are connected to it; pix when absent
}

// control is the control file: what is wrong with them now.
type control struct {
	Faults    []faultBlock   `hcl:"fault,block"`
	Delay     []delayBlock   `hcl:"delay,block"`
	Processes []processBlock `hcl:"process,block"`
	Events    []eventBlock   `hcl:"event,block"`
}

// faultBlock is what is wrong with one card, named by UUID or vendor/index, or with a whole brand, named by vendor.
type faultBlock struct {
	Card   string `hcl:"card,label"`
	Health string `hcl:"health,optional"` // the card is listed and bad, for this reason
	Gone   bool   `hcl:"gone,optional"`   // the card is not listed
	Error  string `hcl:"error,optional"`  // the brand cannot be read at all
	Mute   bool   `hcl:"mute,optional"`   // the card reports no live numbers
	// LinkDown says that a link of the card to another one is down. Only a card with links tells.
	LinkDown bool `hcl:"link_down,optional"`
}

type delayBlock struct {
	Vendor      string `hcl:"vendor,optional"` // every brand when absent
	Fingerprint string `hcl:"fingerprint,optional"`
	Reserve     string `hcl:"reserve,optional"`
	Stats       string `hcl:"stats,optional"`
}

// eventBlock befalls a card once. The same text with another id befalls it again.
type eventBlock struct {
	Card  string `hcl:"card,label"`
	Text  string `hcl:"text"`
	Blame string `hcl:"blame,optional"` // card, job, or nobody when absent
	ID    int    `hcl:"id,optional"`
}

var blames = map[string]device.Blame{"": device.BlameNobody, "card": device.BlameCard, "job": device.BlameJob}

type processBlock struct {
	Card string `hcl:"card"`
	PID  int    `hcl:"pid"`
}

// decode reads HCL into out. The error names file, line and column.
func decode(name string, src []byte, out any) error {
	parsed, diags := hclparse.NewParser().ParseHCL(src, name)
	if diags.HasErrors() {
		return diags
	}
	if diags := gohcl.DecodeBody(parsed.Body, nil, out); diags.HasErrors() {
		return diags
	}
	return nil
}

// Load reads a config file and returns one detector for each brand in it, in the order of the brands.
func Load(path string) ([]*Detector, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("sim_config: read simulated cards: %w: write the path of a file that the agent can read, or leave the option out", err)
	}
	var f file
	if err := decode(path, src, &f); err != nil {
		return nil, fmt.Errorf("sim_config: read simulated cards: %w", err)
	}
	cards, err := f.cards()
	if err != nil {
		return nil, fmt.Errorf("sim_config: read simulated cards in %s: %w", path, err)
	}
	if f.Control != "" && !filepath.IsAbs(f.Control) {
		f.Control = filepath.Join(filepath.Dir(path), f.Control)
	}
	graph, err := f.graph(cards)
	if err != nil {
		return nil, fmt.Errorf("sim_config: read simulated cards in %s: %w", path, err)
	}
	switches := &switches{path: f.Control}
	var detectors []*Detector
	for _, v := range accel.Vendors() {
		own := slices.DeleteFunc(slices.Clone(cards), func(c accel.Card) bool { return c.Vendor != v })
		if len(own) > 0 {
			detectors = append(detectors, &Detector{vendor: v, cards: own, switches: switches, graph: graph})
		}
	}
	return detectors, nil
}

// check reads the delays and finds what does not fit together.
func (c control) check() error {
	var problems []error
	for _, d := range c.Delay {
		for _, text := range []string{d.Fingerprint, d.Reserve, d.Stats} {
			if _, err := duration(text); err != nil {
				problems = append(problems, err)
			}
		}
	}
	for _, e := range c.Events {
		if _, ok := blames[e.Blame]; !ok {
			problems = append(problems, fmt.Errorf(`event: nobody is called %q: write blame = "card" or "job", or leave it out`, e.Blame))
		}
	}
	return errors.Join(problems...)
}

func duration(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf(`delay %q is not a time: write for example "3s"`, text)
	}
	return d, nil
}
