// Package access works out how a container gets to the cards its task was granted, and to no others: device nodes,
// mounts, an OCI runtime or CDI names, and groups. It reckons from the granted cards and from what the host has; nothing
// that a job, a template or an image says comes in. What a share needs beside the card, and how a container is made, do
// not belong here.
package access

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Card is one card a task was granted.
type Card struct {
	Vendor accel.Vendor
	UUID   string
	Index  int
	PCI    string
	// Part says that it is a part of a card, such as a MIG device: the nodes of its board do not tell which.
	Part bool
	// Nodes are device nodes of the card on the host, as the device plugin names them; none when it does not know them.
	Nodes []string
	// Visible is what stands for the card in the brand's variables and in CDI, such as the UUID of a MIG device; empty: the
	// card itself.
	Visible string
	// Extra are nodes that the card's share needs, "host" or "host:container". Instead says that they stand in place of the
	// card's own.
	Extra   []string
	Instead bool
	// Runtime is the OCI runtime the card's share needs; empty: the brand's usual way.
	Runtime string
}

// Simulated reports whether there is no such card: nothing of the host belongs to it.
func (c Card) Simulated() bool { return accel.IsSimulated(c.UUID) }

// Method is a way a container gets to the cards of one brand.
type Method string

// The methods, in the order of preference.
const (
	ByCDI     Method = "cdi"     // the daemon asks the maker's specification, device nodes and libraries are in it
	ByRuntime Method = "runtime" // the maker's OCI runtime puts libraries in, beside the nodes we name
	ByNodes   Method = "nodes"   // nodes and mounts that we name
)

// Node is one device node inside a container.
type Node struct{ Host, Inside, Permissions string }

// Mount is a file or folder of the host that a container sees read-only at the same path.
type Mount struct{ Path string }

// Access is how a container gets to its cards. The zero value is no card.
type Access struct {
	Nodes   []Node
	CDI     []string // qualified names, such as nvidia.com/gpu=0
	Mounts  []Mount
	Runtime string   // OCI runtime; empty: the daemon's default, or the job's
	Groups  []string // numeric ids of groups that may use the nodes
	How     map[accel.Vendor]Method
}

// Plan works out the access to the cards. wish is the OCI runtime the job asks for, which must already be allowed; empty
// for none. An error says what is missing on the node and what to do, one sentence for each brand.
func Plan(h Host, cards []Card, wish string) (Access, error) {
	var needs []need
	var problems []error
	for _, v := range accel.Vendors() {
		var own []Card
		for _, c := range cards {
			if c.Vendor == v && !c.Simulated() {
				own = append(own, c)
			}
		}
		if len(own) == 0 {
			continue
		}
		n, err := needOf(h, brands[v], v, own)
		problems = append(problems, err)
		needs = append(needs, n)
	}
	if err := errors.Join(problems...); err != nil {
		return Access{}, err
	}
	return join(h, needs, wish)
}

// need is what the cards of one brand ask for, by each way that the host offers.
type need struct {
	vendor  accel.Vendor
	brand   brand
	card    []Node // of the cards
	extra   []Node // of their shares
	control []Node // of the driver, for every task
	cdi     []string
	mounts  []Mount
	runtime string // "" when the daemon has none, or none is known
	forced  bool   // a share asks for this runtime
	nodesOK bool   // nodes and mounts alone are enough
	why     error  // why they are not
}

func needOf(h Host, b brand, v accel.Vendor, cards []Card) (need, error) {
	n := need{vendor: v, brand: b}
	unknown := ""
	for _, c := range cards {
		own, extra, err := cardNodes(h, b, c)
		if err != nil {
			return n, err
		}
		if len(own)+len(extra) == 0 && !c.Instead {
			unknown = c.UUID
		}
		n.card, n.extra = append(n.card, own...), append(n.extra, extra...)
		if c.Runtime != "" && n.runtime != "" && c.Runtime != n.runtime {
			return n, fmt.Errorf("two shares of brand %s need the runtimes %q and %q, a container has one: put them into two tasks", v, n.runtime, c.Runtime)
		}
		if c.Runtime != "" {
			n.runtime, n.forced = c.Runtime, true
		}
	}
	if n.forced && !slices.Contains(h.Runtimes, n.runtime) {
		return n, fmt.Errorf("the share of brand %s needs the runtime %q, which the Docker daemon does not have: %s", v, n.runtime, b.fixRuntime)
	}
	if !n.forced && b.runtime != "" && slices.Contains(h.Runtimes, h.runtimeOf(v, b)) {
		n.runtime = h.runtimeOf(v, b)
	}
	if !n.forced {
		n.cdi = h.cdiOf(b, cards)
	}
	n.control, n.mounts, n.why = b.control(h)
	switch {
	case b.needsRuntime:
		n.why = fmt.Errorf("its libraries come into a container by the runtime %q, which the Docker daemon does not have: %s", h.runtimeOf(v, b), b.fixRuntime)
	case unknown != "":
		n.why = fmt.Errorf("no device node of card %s is known: %s", unknown, b.fixNode)
	}
	n.nodesOK = n.why == nil
	if !n.nodesOK && n.runtime == "" && len(n.cdi) == 0 {
		return n, fmt.Errorf("cards of brand %s cannot be given to a container on this node: %w", v, n.why)
	}
	return n, nil
}

// cardNodes are the device nodes of one card and those of its share. A node that is named but not there is a refusal.
func cardNodes(h Host, b brand, c Card) (own, extra []Node, err error) {
	var problems []error
	read := func(texts []string) (out []Node) {
		for _, text := range texts {
			host, inside, two := strings.Cut(text, ":")
			if !two {
				inside = b.inside(host)
			}
			switch {
			case filepath.Clean(host) != host || !strings.HasPrefix(host, "/dev/") || !strings.HasPrefix(inside, "/dev/"):
				problems = append(problems, fmt.Errorf("card %s is said to have the device node %q, which is no path below /dev", c.UUID, text))
			case !h.Node(host).Device:
				problems = append(problems, fmt.Errorf("device node %s of card %s is not there: %s", host, c.UUID, b.fixNode))
			default:
				out = append(out, Node{Host: host, Inside: inside, Permissions: "rw"})
			}
		}
		return out
	}
	if !c.Instead {
		own = read(h.own(b, c))
	}
	extra = read(c.Extra)
	return own, extra, errors.Join(problems...)
}

// control is what every container of the brand needs beside its cards, and why nodes alone do not do when something is
// missing.
func (b brand) control(h Host) ([]Node, []Mount, error) {
	var nodes []Node
	var mounts []Mount
	var missing []string
	for _, path := range b.nodes {
		path, optional := strings.CutSuffix(path, "?")
		if h.Node(path).Device {
			nodes = append(nodes, Node{Host: path, Inside: path, Permissions: "rw"})
		} else if !optional {
			missing = append(missing, path)
		}
	}
	fix := b.fixNode
	for _, path := range b.mounts {
		path, optional := strings.CutSuffix(path, "?")
		if h.Exists(path) {
			mounts = append(mounts, Mount{Path: path})
		} else if !optional {
			missing, fix = append(missing, path), b.fixDriver
		}
	}
	if len(missing) > 0 {
		return nodes, mounts, fmt.Errorf("%s is not there: %s", strings.Join(missing, ", "), fix)
	}
	return nodes, mounts, nil
}

// join chooses one way for each brand so that a container needs one OCI runtime at most.
func join(h Host, needs []need, wish string) (Access, error) {
	a := Access{How: map[accel.Vendor]Method{}}
	slot, holder := wish, "the job's oci_runtime"
	if wish == "" {
		holder = ""
	}
	take := func(n need) error {
		if slot != "" && slot != n.runtime {
			return fmt.Errorf("cards of brand %s need the runtime %q, but %s has %q already, and a container has one: %s", n.vendor, n.runtime, holder, slot, n.otherwise(wish))
		}
		slot, holder = n.runtime, "brand "+string(n.vendor)
		a.How[n.vendor] = ByRuntime
		return nil
	}
	var problems []error
	for _, n := range needs { // those without a choice first
		if n.forced || len(n.cdi) == 0 && !n.nodesOK {
			problems = append(problems, take(n))
		}
	}
	for _, n := range needs {
		switch _, done := a.How[n.vendor]; {
		case done || n.forced || len(n.cdi) == 0 && !n.nodesOK:
		case len(n.cdi) > 0:
			a.How[n.vendor] = ByCDI
		case n.runtime != "" && (slot == "" || slot == n.runtime):
			problems = append(problems, take(n))
		default:
			a.How[n.vendor] = ByNodes
		}
	}
	if err := errors.Join(problems...); err != nil {
		return Access{}, err
	}
	if wish == "" {
		a.Runtime = slot
	} else {
		a.Runtime = wish
	}
	for _, n := range needs {
		a.add(h, n)
	}
	return a, nil
}

// otherwise says what would let two brands into one container.
func (n need) otherwise(wish string) string {
	if wish != "" {
		return "leave oci_runtime out"
	}
	if n.brand.fixCDI != "" {
		return n.brand.fixCDI + ", or put the brands into two tasks"
	}
	return "put the brands into two tasks"
}

// add puts in what a brand needs by the way that was chosen. A runtime that puts nodes in by itself gets them named too:
// only nodes that the daemon knows survive a reload of systemd (NVIDIA/nvidia-docker issue 1730).
func (a *Access) add(h Host, n need) {
	nodes := slices.Concat(n.card, n.extra, n.control)
	switch a.How[n.vendor] {
	case ByCDI:
		a.CDI = append(a.CDI, n.cdi...)
		nodes = n.extra // the specification names the others
	case ByNodes:
		a.Mounts = append(a.Mounts, n.mounts...)
	case ByRuntime:
	}
	for _, node := range nodes {
		if slices.ContainsFunc(a.Nodes, func(have Node) bool { return have.Inside == node.Inside }) {
			continue
		}
		a.Nodes = append(a.Nodes, node)
		if group := h.Node(node.Host).Group; group != "" && !slices.Contains(a.Groups, group) {
			a.Groups = append(a.Groups, group)
		}
	}
}

// match reports whether a path is one of the patterns' whole.
func match(patterns []*regexp.Regexp, path string) bool {
	return slices.ContainsFunc(patterns, func(re *regexp.Regexp) bool { return re.MatchString(path) })
}
