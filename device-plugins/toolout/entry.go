package toolout

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// An Entry is one value of one card, as rocm-smi and the tools made after it print them.
type Entry struct {
	Index      int
	Unit       string // the word before the index: "card" in JSON; "GPU", "DCU" or "HCU" in text
	Key, Value string
}

var (
	jsonCard = regexp.MustCompile(`^(card)(\d+)$`)
	textCard = regexp.MustCompile(`^([A-Z]+)\[(\d+)\]$`)
)

// Entries reads {"card0": {"key": "value"}} and lines such as "GPU[0] : key: value", ordered by index; JSON is ordered
// by key too. What is not under a card, such as "system", is left out.
func Entries(out string) []Entry {
	var entries []Entry
	add := func(m []string, key, value string) {
		if index := Whole(m[2]); index != nil {
			entries = append(entries, Entry{Index: *index, Unit: m[1], Key: strings.TrimSpace(key), Value: strings.TrimSpace(value)})
		}
	}
	if v, ok := JSON(out); ok {
		cards, _ := v.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(cards)) {
			values, isObject := cards[name].(map[string]any)
			m := jsonCard.FindStringSubmatch(name)
			if !isObject || m == nil {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				add(m, key, String(values, key))
			}
		}
	} else {
		for _, p := range Pairs(out) {
			if m := textCard.FindStringSubmatch(p.Key); m != nil {
				key, value, _ := strings.Cut(p.Value, ":")
				add(m, key, value)
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Index, b.Index) })
	return entries
}
