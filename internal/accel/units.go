package accel

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DefaultSliceMiB is the memory of one slice of a shared card unless the plugin's config says otherwise.
const DefaultSliceMiB = 1024

var memoryUnits = map[string]float64{
	"mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// ParseMemoryMiB reads a memory size with its unit, such as "20GiB", "20480 MiB" or "20GB", as MiB rounded up.
// Decimal units (MB, GB, TB) are powers of ten and are converted. A number without a unit is refused, because
// half of its readers would take it for MB and half for GiB.
func ParseMemoryMiB(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	cut := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if text == "" || cut == 0 {
		return 0, fmt.Errorf(`memory %q is not a size: write a number with a unit, for example "20GiB"`, s)
	}
	if cut < 0 {
		return 0, fmt.Errorf(`memory %q has no unit: write %q or %q`, s, text+"GiB", text+"MiB")
	}
	number, err := strconv.ParseFloat(text[:cut], 64)
	if err != nil {
		return 0, fmt.Errorf(`memory %q is not a size: write a number with a unit, for example "20GiB"`, s)
	}
	scale, ok := memoryUnits[strings.ToLower(strings.TrimSpace(text[cut:]))]
	if !ok {
		return 0, fmt.Errorf("memory %q has an unknown unit %q: write MiB, GiB, TiB, MB, GB or TB", s, strings.TrimSpace(text[cut:]))
	}
	mib := math.Ceil(number * scale / (1 << 20))
	if mib < 1 {
		return 0, fmt.Errorf("memory %q is less than 1 MiB: leave memory out to ask for whole cards", s)
	}
	if mib > 1<<40 {
		return 0, fmt.Errorf("memory %q is more than any card has", s)
	}
	return uint64(mib), nil
}

// FormatMiB prints a memory size for people: GiB with at most one decimal from 1 GiB on, MiB below.
func FormatMiB(mib uint64) string {
	if mib < 1024 {
		return strconv.FormatUint(mib, 10) + " MiB"
	}
	return strconv.FormatFloat(math.Round(float64(mib)/1024*10)/10, 'f', -1, 64) + " GiB"
}
