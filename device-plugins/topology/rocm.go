package topology

import (
	"regexp"
	"slices"
	"strings"
)

var (
	rocmTitle = regexp.MustCompile(`^=+ (.+?) =+$`)
	rocmNUMA  = regexp.MustCompile(`^([A-Za-z]+)\[(\d+)\]\s*:\s*\(Topology\) Numa Node:?\s+(\d+)\s*$`)
	amdTitle  = regexp.MustCompile(`^([A-Z][A-Z0-9 /_-]*) TABLE:$`)
)

// ParseROCm reads what `rocm-smi --showtopo` and `amd-smi topology` print: one table after another, of which that of
// link types is the one of use, and the NUMA nodes. Weights and hops are not links, and are passed over. Cards are named
// by the tool's label: GPU0, or the PCI address.
func ParseROCm(text string) (Graph, error) {
	var links []string
	numa := map[string]*int{}
	title := ""
	for line := range lines(text) {
		line = strings.TrimSpace(line)
		if found := rocmTitle.FindStringSubmatch(line); found != nil {
			title = strings.ToLower(found[1])
			continue
		}
		if found := amdTitle.FindStringSubmatch(line); found != nil {
			title = strings.ToLower(found[1])
			continue
		}
		if strings.HasPrefix(title, "link type") && len(links) < 4*maxColumns {
			links = append(links, line)
		}
		if found := rocmNUMA.FindStringSubmatch(line); found != nil && len(numa) < maxColumns {
			numa[found[1]+found[2]] = numaNode(found[3])
		}
	}
	g, ok := matrix(slices.Values(links), "0", "SELF")
	if !ok {
		return Graph{}, ErrNoMatrix
	}
	for id, node := range numa {
		if _, known := g.vertices[id]; known {
			g.AddVertex(Vertex{ID: id, NUMA: node})
		}
	}
	return g, nil
}
