package constraint

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// A unit converts to the base of its dimension by an exact factor, so that 1 GiB equals 1024 MiB whatever the
// numbers are.
type unit struct {
	base   string
	factor *big.Rat
}

// units lists every unit that Nomad accepts in a device attribute.
var units = makeUnits()

func makeUnits() map[string]unit {
	table := map[string]unit{}
	add := func(name, base string, factor *big.Rat) { table[name] = unit{base, factor} }
	power := func(of, exponent int64) *big.Rat {
		return new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(of), big.NewInt(exponent), nil))
	}
	for i, prefix := range []string{"K", "M", "G", "T", "P", "E"} {
		binary, decimal := power(1024, int64(i+1)), power(1000, int64(i+1))
		add(prefix+"iB", "byte", binary)
		add(prefix+"iB/s", "byte/s", binary)
		add(prefix+"B", "byte", decimal)
		add(prefix+"B/s", "byte/s", decimal)
	}
	add("kB", "byte", power(1000, 1))
	add("kB/s", "byte/s", power(1000, 1))
	add("MHz", "hertz", power(1000, 2))
	add("GHz", "hertz", power(1000, 3))
	add("mW", "watt", big.NewRat(1, 1000))
	add("W", "watt", big.NewRat(1, 1))
	add("kW", "watt", power(1000, 1))
	add("MW", "watt", power(1000, 2))
	add("GW", "watt", power(1000, 3))
	return table
}

// ParseAttribute reads a literal of a device constraint: a number with a unit, an integer, a float, a boolean, and
// otherwise text, in this order. It is nil for the empty literal.
func ParseAttribute(literal string) *api.Attribute {
	if literal == "" {
		return nil
	}
	number, name := splitUnit(literal)
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return &api.Attribute{IntVal: &i, Unit: name}
	}
	if f, err := strconv.ParseFloat(number, 64); err == nil {
		return &api.Attribute{FloatVal: &f, Unit: name}
	}
	if b, err := strconv.ParseBool(literal); err == nil {
		return &api.Attribute{BoolVal: &b}
	}
	return text(literal)
}

// splitUnit cuts a known unit off the end of a literal that begins with a number. It returns the literal as it is
// when there is none.
func splitUnit(literal string) (number, name string) {
	cut := strings.LastIndexAny(literal, "0123456789.") + 1
	number, name = literal[:cut], strings.TrimSpace(literal[cut:])
	if _, known := units[name]; !known {
		return literal, ""
	}
	if _, err := strconv.ParseFloat(number, 64); err != nil {
		return literal, ""
	}
	return number, name
}

// measure gives a number in the base of its unit. It reports false for what is not a number.
func measure(a *api.Attribute) (value *big.Rat, base string, ok bool) {
	value = new(big.Rat)
	switch {
	case a.IntVal != nil:
		value.SetInt64(*a.IntVal)
	case a.FloatVal != nil:
		if math.IsNaN(*a.FloatVal) || math.IsInf(*a.FloatVal, 0) {
			return nil, "", false
		}
		value.SetFloat64(*a.FloatVal)
	default:
		return nil, "", false
	}
	if a.Unit == "" {
		return value, "", true
	}
	u, known := units[a.Unit]
	if !known {
		return nil, "", false
	}
	return value.Mul(value, u.factor), u.base, true
}
