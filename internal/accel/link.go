package accel

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// LinkKind is how two cards, or a card and a network card, are connected, in the word that attributes show.
type LinkKind string

// The kinds of links: what lies within one package, the makers' own fabrics, then the levels of PCIe, nearest first.
const (
	LinkPackage    LinkKind = "sio"     // two dies of one package
	LinkNVLink     LinkKind = "nv"      // NVLink between two cards, or through switches where the tool does not tell
	LinkNVSwitch   LinkKind = "nvsw"    // NVLink through an NVSwitch
	LinkHCCS       LinkKind = "hccs"    // Ascend, direct
	LinkHCCSSwitch LinkKind = "hccs-sw" // Ascend, through a switch
	LinkXGMI       LinkKind = "xgmi"    // AMD, Hygon
	LinkMLULink    LinkKind = "mlulink" // Cambricon
	LinkMTLink     LinkKind = "mtlink"  // Moore Threads
	LinkXPULink    LinkKind = "xpulink" // Kunlunxin
	LinkPIX        LinkKind = "pix"     // one PCIe switch
	LinkPXB        LinkKind = "pxb"     // several PCIe switches, not the host bridge
	LinkPHB        LinkKind = "phb"     // the PCIe host bridge
	LinkNode       LinkKind = "node"    // several host bridges of one NUMA node
	LinkSystem     LinkKind = "sys"     // the interconnect between NUMA nodes
	LinkPCIe       LinkKind = "pcie"    // PCIe, the level is not known
)

// linkRanks orders the kinds, nearest first. One maker's fabric is not compared with another's: they are never in the
// same machine. PCIe of an unknown level counts as the farthest.
var linkRanks = map[LinkKind]int{
	LinkPackage: 0, LinkNVLink: 1, LinkNVSwitch: 1, LinkHCCS: 1, LinkHCCSSwitch: 1, LinkXGMI: 1, LinkMLULink: 1,
	LinkMTLink: 1, LinkXPULink: 1, LinkPIX: 2, LinkPXB: 3, LinkPHB: 4, LinkNode: 5, LinkSystem: 6, LinkPCIe: 7,
}

// Link is one connection.
type Link struct {
	Kind  LinkKind
	Count *int // parallel links, at least 1; nil when it is not told
}

// maxLinkCount is more than any card has; a greater number is no count.
const maxLinkCount = 1024

var linkText = regexp.MustCompile(`^([a-z][a-z-]*)(\d{1,4})?$`)

// ParseLink reads what String writes, such as nv18 or pix.
func ParseLink(text string) (Link, error) {
	parts := linkText.FindStringSubmatch(text)
	if parts == nil {
		return Link{}, fmt.Errorf("%q is no link", text)
	}
	l := Link{Kind: LinkKind(parts[1])}
	if _, known := linkRanks[l.Kind]; !known {
		return Link{}, fmt.Errorf("%q is no kind of link", parts[1])
	}
	if parts[2] == "" {
		return l, nil
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil || n < 1 || n > maxLinkCount {
		return Link{}, fmt.Errorf("%q is no number of links", parts[2])
	}
	l.Count = &n
	return l, nil
}

// String is the kind, followed by the number of links where it is known.
func (l Link) String() string {
	if l.Count == nil {
		return string(l.Kind)
	}
	return string(l.Kind) + strconv.Itoa(*l.Count)
}

// Compare is negative when l is nearer than m: by kind, then by the number of links.
func (l Link) Compare(m Link) int {
	count := func(k Link) int {
		if k.Count == nil {
			return 0
		}
		return *k.Count
	}
	return cmp.Or(cmp.Compare(linkRanks[l.Kind], linkRanks[m.Kind]), cmp.Compare(count(m), count(l)))
}

// PeerID is the name of a card in AttrLinks.
func PeerID(v Vendor, uuid string) string { return "c" + ShortID(v, uuid) }

// FormatLinks writes links by peer in the form of AttrLinks: "c1a2b3c4:nv18,c5d6e7f8:pix", ordered by peer.
func FormatLinks(links map[string]Link) string {
	parts := make([]string, 0, len(links))
	for peer, l := range links {
		parts = append(parts, peer+":"+l.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// ParseLinks reads what FormatLinks writes. Links that are not known to this version are left out and told in the error
// beside the others, so that an older reader understands a newer plugin.
func ParseLinks(text string) (map[string]Link, error) {
	links := map[string]Link{}
	var problems []error
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		peer, kind, _ := strings.Cut(part, ":")
		l, err := ParseLink(kind)
		switch {
		case peer == "":
			problems = append(problems, fmt.Errorf("%q names no card", part))
		case err != nil:
			problems = append(problems, fmt.Errorf("link to %s: %w", peer, err))
		default:
			links[peer] = l
		}
	}
	return links, errors.Join(problems...)
}
