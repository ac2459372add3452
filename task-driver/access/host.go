package access

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// NodeInfo is what the host says of a path below /dev.
type NodeInfo struct {
	Device bool   // it is there and is a device
	Group  string // numeric id of the group a user must be in to use it; empty when none helps or none is needed
}

// Host is what a node offers. Node, Exists and Names look at it; they are functions so that tests can be any host.
type Host struct {
	Runtimes []string                // OCI runtimes of the Docker daemon
	Names    map[accel.Vendor]string // names of makers' runtimes where the administrator gave them others
	Specs    []Spec                  // CDI specifications that the daemon reads; none when it does not resolve CDI names

	Node   func(path string) NodeInfo
	Exists func(path string) bool
	List   func(dir string) []string // names in a folder; none when it is not there
}

// Probe looks at the host whose file system begins at root ("/" but for tests). cdiDirs are the folders in which the
// daemon looks for CDI specifications, in its order; none when it does not resolve CDI names. A specification that
// does not parse is left out: the error names it, and the Host is usable all the same.
func Probe(root string, runtimes, cdiDirs []string) (Host, error) {
	at := func(path string) string { return filepath.Join(root, path) }
	h := Host{Runtimes: runtimes, Node: func(path string) NodeInfo { return lookAt(at(path)) }}
	h.Exists = func(path string) bool {
		_, err := os.Stat(at(path))
		return err == nil
	}
	h.List = func(dir string) []string {
		entries, err := os.ReadDir(at(dir))
		if err != nil {
			return nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	var err error
	h.Specs, err = readSpecs(root, cdiDirs)
	return h, err
}

// lookAt reads a device node. A link below /dev is followed, as by the daemon.
func lookAt(path string) NodeInfo {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeDevice == 0 {
		return NodeInfo{}
	}
	n := NodeInfo{Device: true}
	const everyone, group = 0o006, 0o060
	if mode := info.Mode().Perm(); mode&everyone != everyone && mode&group == group {
		if id := groupOf(info); id > 0 {
			n.Group = strconv.Itoa(id)
		}
	}
	return n
}

var driName = regexp.MustCompile(`^renderD\d+$`)

// own are the nodes of a card: those the device plugin names, the render node that follows from its PCI address where it
// names none, and those that go with them.
func (h Host) own(b brand, c Card) []string {
	out := slices.Clone(c.Nodes)
	if !slices.ContainsFunc(out, func(path string) bool { return strings.HasPrefix(path, "/dev/dri/") || match(b.parts, path) }) {
		out = append(out, h.dri(b, c)...)
	}
	for _, path := range c.Nodes {
		for _, beside := range b.besides(path) {
			if h.Node(beside).Device {
				out = append(out, beside)
			}
		}
	}
	return out
}

// dri are the nodes below /dev/dri of a card whose brand is used by them. A part of a card has its board's address: its
// nodes are the device plugin's to name.
func (h Host) dri(b brand, c Card) []string {
	if !b.dri || c.PCI == "" {
		return nil
	}
	var out []string
	for _, name := range h.List("/sys/bus/pci/devices/" + strings.ToLower(c.PCI) + "/drm") {
		path := "/dev/dri/" + name
		if (driName.MatchString(name) || b.driCard && strings.HasPrefix(name, "card")) && h.Node(path).Device {
			out = append(out, path)
		}
	}
	return out
}

func (h Host) runtimeOf(v accel.Vendor, b brand) string {
	if name := h.Names[v]; name != "" {
		return name
	}
	return b.runtime
}
