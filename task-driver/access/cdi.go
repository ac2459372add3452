package access

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Spec is one CDI specification, as far as it tells which device nodes a name brings. Source: Container Device Interface
// specification 1.0, "CDI JSON Specification".
type Spec struct {
	Kind    string      `yaml:"kind"`
	Devices []CDIDevice `yaml:"devices"`
	Edits   Edits       `yaml:"containerEdits"`
}

// CDIDevice is one device of a specification.
type CDIDevice struct {
	Name  string `yaml:"name"`
	Edits Edits  `yaml:"containerEdits"`
}

// Edits are what a device changes in a container.
type Edits struct {
	Nodes []struct {
		Path     string `yaml:"path"`
		HostPath string `yaml:"hostPath"`
	} `yaml:"deviceNodes"`
}

// maxSpec bounds a specification; that of a machine with eight cards has about 100 KiB.
const maxSpec = 8 << 20

// ParseSpec reads a specification. JSON is YAML.
func ParseSpec(body []byte) (Spec, error) {
	var s Spec
	if err := yaml.Unmarshal(body, &s); err != nil {
		return Spec{}, fmt.Errorf("no CDI specification: %w", err)
	}
	if vendor, class, ok := strings.Cut(s.Kind, "/"); !ok || vendor == "" || class == "" {
		return Spec{}, fmt.Errorf("no CDI specification: kind %q is not vendor/class", s.Kind)
	}
	return s, nil
}

// readSpecs reads the folders. A device that a later folder names again is the later one's; one that a folder names
// twice is nobody's, as for the daemon.
func readSpecs(root string, dirs []string) ([]Spec, error) {
	var out []Spec
	var problems []error
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			continue // both usual folders are named whether they are there or not
		}
		var here []Spec
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); ext != ".json" && ext != ".yaml" {
				continue
			}
			s, err := readSpec(filepath.Join(root, dir, e.Name()))
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", filepath.Join(dir, e.Name()), err))
				continue
			}
			here = append(here, s)
		}
		out = override(out, unique(here))
	}
	return out, errors.Join(problems...)
}

func readSpec(path string) (Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return Spec{}, err
	}
	defer f.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(f, maxSpec))
	if err != nil {
		return Spec{}, err
	}
	return ParseSpec(body)
}

// unique leaves out the devices that two specifications of one folder name.
func unique(specs []Spec) []Spec {
	times := map[string]int{}
	for _, s := range specs {
		for _, d := range s.Devices {
			times[s.Kind+"="+d.Name]++
		}
	}
	for i, s := range specs {
		specs[i].Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d CDIDevice) bool { return times[s.Kind+"="+d.Name] > 1 })
	}
	return specs
}

func override(older, newer []Spec) []Spec {
	named := map[string]bool{}
	for _, s := range newer {
		for _, d := range s.Devices {
			named[s.Kind+"="+d.Name] = true
		}
	}
	for i, s := range older {
		older[i].Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d CDIDevice) bool { return named[s.Kind+"="+d.Name] })
	}
	return append(older, newer...)
}

// cdiOf finds a CDI name for every card, or none at all. A name is taken only when the specification brings exactly the
// card's own nodes with it: a stale one, or one that numbers cards in another way, would show a card that was not
// granted. Where the card's nodes are not known, only its UUID is a name.
func (h Host) cdiOf(b brand, cards []Card) []string {
	var out []string
	for _, c := range cards {
		name := h.cdiName(b, c)
		if name == "" {
			return nil
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (h Host) cdiName(b brand, c Card) string {
	want := c.Visible
	if want == "" {
		if want = c.UUID; c.Instead {
			return ""
		}
	}
	own := b.telling(h.own(b, c))
	part := c.Part || c.Visible != ""
	found := ""
	for _, s := range h.Specs {
		if vendor, _, _ := strings.Cut(s.Kind, "/"); !slices.Contains(b.cdi, vendor) || len(b.telling(s.Edits.hostNodes())) > 0 {
			continue
		}
		for _, d := range s.Devices {
			nodes := b.telling(d.Edits.hostNodes())
			same := len(nodes) > 0 && slices.Equal(nodes, own)
			switch {
			case d.Name == want && (same || len(own) == 0 || part && b.within(nodes, own)):
				return s.Kind + "=" + d.Name
			case !part && same && found == "":
				found = s.Kind + "=" + d.Name
			}
		}
	}
	return found
}

// within reports whether no card but the part's own board is among the nodes. Which nodes are the part's, its name says.
func (b brand) within(nodes, own []string) bool {
	return !slices.ContainsFunc(nodes, func(path string) bool { return !slices.Contains(own, path) && !match(b.parts, path) })
}

// telling are the nodes that tell one card, or part of one, from another: sorted, each once.
func (b brand) telling(nodes []string) []string {
	var out []string
	for _, path := range nodes {
		if match(b.cards, path) || match(b.parts, path) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hostNodes are the nodes of the host that the edits bring.
func (e Edits) hostNodes() []string {
	var out []string
	for _, n := range e.Nodes {
		if n.HostPath != "" {
			out = append(out, n.HostPath)
		} else {
			out = append(out, n.Path)
		}
	}
	return out
}
