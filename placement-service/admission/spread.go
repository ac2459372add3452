package admission

import (
	"fmt"
	"strconv"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// rules are what a job says of all of its groups.
type rules struct {
	constraints []engine.Constraint
	apart       []engine.Apart
	spread      []engine.Spread
}

// defaultSpread is the weight of a spread block that gives none, as Nomad has it.
const defaultSpread = 50

// apart reads the distinct_property constraints of a job, group or task: at most so many allocations for each value of a
// node's property, one when no number is given.
func (r *reader) apart(path string, m map[string]any, ofJob bool) []engine.Apart {
	var out []engine.Apart
	for i, c := range objects(m, "Constraints") {
		if getString(c, "Operand") != "distinct_property" {
			continue
		}
		most := int64(1)
		if text := getString(c, "RTarget"); text != "" {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 1 {
				r.bad(fmt.Sprintf("%sConstraints[%d].RTarget", path, i),
					"distinct_property takes a number from 1, not %q: write how many allocations may share a value of %s", text, getString(c, "LTarget"))
				continue
			}
			most = n
		}
		out = append(out, engine.Apart{Attribute: getString(c, "LTarget"), Most: int(most), OfJob: ofJob})
	}
	return out
}

// spread reads the spread blocks of a job or group. They are spread evenly: the shares of single values, which a block may
// give, are left to Nomad.
func (r *reader) spread(path string, m map[string]any) []engine.Spread {
	var out []engine.Spread
	for i, s := range objects(m, "Spreads") {
		weight := r.number(fmt.Sprintf("%sSpreads[%d].Weight", path, i), get(s, "Weight"), defaultSpread)
		attribute := getString(s, "Attribute")
		if attribute == "" || weight <= 0 {
			continue // Nomad says what is wrong with it
		}
		out = append(out, engine.Spread{Attribute: attribute, Weight: int(min(weight, 100))})
	}
	return out
}
