package jobspec

import (
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// unknown notes an argument or block that is not expected where it stands, with the nearest name that is.
func (p *parser) unknown(kind, name string, at hcl.Range, expected []string) {
	if near := nearest(name, expected); near != "" {
		p.errorf(at, "unsupported "+kind, "%s %q is not expected here: did you mean %q?", article(kind), name, near)
		return
	}
	p.errorf(at, "unsupported "+kind, "%s %q is not expected here: expected are %s", article(kind), name, list(expected))
}

func article(kind string) string {
	if strings.HasPrefix(kind, "a") {
		return "an " + kind + " named"
	}
	return "a " + kind + " named"
}

// nearest finds the expected name that is a slip of the pen away, or nothing.
func nearest(name string, expected []string) string {
	best, distance := "", min(3, (len(name)+2)/3+1)
	for _, candidate := range expected {
		if d := levenshtein.Distance(name, candidate, nil); d < distance {
			best, distance = candidate, d
		}
	}
	return best
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// sortedAttrs lists the arguments of a body in the order of the file.
func sortedAttrs(body *hclsyntax.Body) []*hclsyntax.Attribute {
	attrs := make([]*hclsyntax.Attribute, 0, len(body.Attributes))
	for _, a := range body.Attributes {
		attrs = append(attrs, a)
	}
	slices.SortFunc(attrs, func(a, b *hclsyntax.Attribute) int {
		return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte
	})
	return attrs
}
