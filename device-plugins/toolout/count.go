package toolout

import "math"

// Megahertz reads a clock: MHz, GHz, or a bare number of MHz, also one in brackets such as "(1402Mhz)".
func Megahertz(s string) *float64 {
	return within(s, 0, 100000, map[string]float64{"": 1, "mhz": 1, "ghz": 1000})
}

// Count reads how often something happened or how many there are: a bare whole number.
func Count(s string) *float64 {
	n := within(s, 0, 1<<53, map[string]float64{"": 1})
	if n == nil || *n != math.Trunc(*n) {
		return nil
	}
	return n
}

// YesNo reads an answer: Yes or No, Active or Not Active.
func YesNo(s string) *bool {
	yes := false
	switch Text(s) {
	case "Yes", "Active":
		yes = true
	case "No", "Not Active":
	default:
		return nil
	}
	return &yes
}
