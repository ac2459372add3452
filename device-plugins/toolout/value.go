// Package toolout reads the forms of text that card makers' tools print: boxed tables by their headers, keys with
// values under sections, JSON behind banners, and the values in them with their units. What a column or a key means
// belongs to the package of the brand.
package toolout

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Text is a printed value without its blanks, empty when it says nothing: N/A, dashes, errors, remarks in brackets,
// masks of x.
func Text(s string) string {
	s = strings.TrimSpace(strings.Trim(strings.TrimSpace(s), `"`))
	switch strings.ToUpper(s) {
	case "", "-", "--", "N/A", "NA", "NONE", "NULL", "ERR!", "ERR", "ERROR", "UNKNOWN", "UNKNOWN ERROR", "NOT SUPPORTED", "NOT AVAILABLE":
		return ""
	}
	if strings.HasPrefix(s, "[") || strings.HasPrefix(s, "<") || strings.HasPrefix(s, "AMDSMI_STATUS_") || strings.Trim(s, "xX*?") == "" {
		return ""
	}
	return s
}

// Quantity splits a printed value, such as "34.6 W" or "(1402Mhz)", in its number and its unit. ok is false when it says
// nothing, and for the numbers that tools print in place of one that they do not have.
func Quantity(s string) (n float64, unit string, ok bool) {
	digits, rest := leadingNumber(strings.TrimPrefix(Text(s), "("))
	if digits == "" {
		return 0, "", false
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsInf(n, 0) || sentinel(digits) {
		return 0, "", false
	}
	if end := strings.IndexAny(rest, "0123456789"); end >= 0 {
		rest = rest[:end]
	}
	return n, strings.TrimRight(strings.TrimSpace(rest), ")"), true
}

// leadingNumber splits a text behind the number that it begins with: digits, perhaps with a sign before and a fraction
// behind. It is empty when there is none.
func leadingNumber(s string) (digits, rest string) {
	end := 0
	if s != "" && (s[0] == '+' || s[0] == '-') {
		end = 1
	}
	start := end
	for end < len(s) && digit(s[end]) {
		end++
	}
	if end == start {
		return "", s
	}
	if end+1 < len(s) && s[end] == '.' && digit(s[end+1]) {
		for end++; end < len(s) && digit(s[end]); end++ {
		}
	}
	return s[:end], s[end:]
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// sentinel tells whether a number stands for "not known": all bits set, in 32 or 64 bits, signed or not.
func sentinel(digits string) bool {
	whole, _, _ := strings.Cut(digits, ".")
	switch whole {
	case "-1", "2147483647", "4294967295", "9223372036854775807", "18446744073709551615":
		return true
	}
	return false
}

// within is the number of a value when it has one of the units and lies in the range. A value outside of it is one that
// no card can have: it is not known.
func within(s string, low, high float64, units map[string]float64) *float64 {
	n, unit, ok := Quantity(s)
	scale, known := units[strings.ToLower(unit)]
	if !ok || !known {
		return nil
	}
	if n *= scale; n < low || n > high {
		return nil
	}
	return &n
}

// Percent reads a share from 0 to 100, with or without its sign.
func Percent(s string) *float64 { return within(s, 0, 100, map[string]float64{"": 1, "%": 1}) }

// Celsius reads a temperature.
func Celsius(s string) *float64 {
	return within(s, -55, 200, map[string]float64{"": 1, "c": 1, "°c": 1, "℃": 1})
}

// Watts reads a power: W, mW, or a bare number of watts.
func Watts(s string) *float64 {
	return within(s, 0, 5000, map[string]float64{"": 1, "w": 1, "mw": 0.001})
}

// Milliwatts reads a bare number of milliwatts as watts.
func Milliwatts(s string) *float64 { return within(s, 0, 5000, map[string]float64{"": 0.001}) }

var sizes = map[string]float64{
	"b": 1, "bytes": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30, "gib": 1 << 30,
}

// MiB reads a size of memory with its unit, rounded down; a bare number has the unit given. Every maker whose output
// was recorded prints MB for 2^20 bytes: a module of 64 GiB is "65536 MB", one of 192 GiB "196300 MB" less what the
// firmware keeps.
func MiB(s, bare string) *uint64 {
	n, unit, ok := Quantity(s)
	if unit == "" {
		unit = bare
	}
	scale, known := sizes[strings.ToLower(unit)]
	if !ok || !known || n < 0 {
		return nil
	}
	mib := n * scale / (1 << 20)
	if mib > 1<<32 {
		return nil
	}
	u := uint64(mib)
	return &u
}

// Whole reads a number of things, such as an index.
func Whole(s string) *int {
	if s = strings.TrimSpace(s); s == "" || !digit(s[0]) && s[0] != '+' {
		return nil // most text is none: an error would be made for each
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= math.MaxInt32 {
		return nil
	}
	return &n
}

var trailingUnit = regexp.MustCompile(`(?:mW|W|[KMG]i?B)$`)

// Usage splits "used / total"; a unit that only the total carries holds for both.
func Usage(s string) (used, total string) {
	s = strings.TrimSpace(s)
	used, total = s, ""
	from := 0
	switch end := strings.IndexByte(s, ']'); {
	case len(s) >= 3 && strings.EqualFold(s[:3], "n/a"):
		from = 3
	case strings.HasPrefix(s, "[") && end > 0:
		from = end
	}
	if i := strings.IndexByte(s[from:], '/'); i >= 0 {
		used, total = strings.TrimSpace(s[:from+i]), strings.TrimSpace(s[from+i+1:])
	}
	if _, unit, ok := Quantity(used); ok && unit == "" {
		if _, unit, ok = Quantity(total); ok {
			used += unit
		} else if m := trailingUnit.FindString(total); m != "" { // the total says nothing, its unit still does
			used += m
		}
	}
	return used, total
}

// PCI brings an address to the kernel's form: 4 digits of domain where they suffice, lower case. It is empty for what
// is no address, a masked one included.
func PCI(s string) string {
	const place = "00:00.0"
	s = Text(s)
	if len(s) < len(place) {
		return ""
	}
	domain, at := s[:len(s)-len(place)], s[len(s)-len(place):]
	if !hex(at[:2]) || at[2] != ':' || !hex(at[3:5]) || at[5] != '.' || !hex(at[6:]) {
		return ""
	}
	if domain != "" {
		digits, parted := strings.CutSuffix(domain, ":")
		if !parted || digits == "" || len(digits) > 8 || !hex(digits) {
			return ""
		}
		domain = strings.TrimLeft(digits, "0")
	}
	return strings.ToLower("0000"[min(len(domain), 4):] + domain + ":" + at)
}

func hex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }
