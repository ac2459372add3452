package toolout

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// An Entry is one value of one card, as rocm-smi and the tools made after it print them.
type Entry struct {
	Index      int
	Unit       string // the word before the index: "card" in JSON; "GPU", "DCU" or "HCU" in text
	Key, Value string
}

// Entries reads {"card0": {"key": "value"}} and lines such as "GPU[0] : key: value", ordered by index; JSON is ordered
// by key too. What is not under a card, such as "system", is left out.
func Entries(out string) []Entry {
	var entries []Entry
	add := func(unit, number, key, value string) {
		if index := Whole(number); index != nil && digit(number[0]) {
			entries = append(entries, Entry{Index: *index, Unit: unit, Key: strings.TrimSpace(key), Value: strings.TrimSpace(value)})
		}
	}
	if v, ok := JSON(out); ok {
		cards, _ := v.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(cards)) {
			values, isObject := cards[name].(map[string]any)
			number, isCard := strings.CutPrefix(name, "card")
			if !isObject || !isCard {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				add("card", number, key, String(values, key))
			}
		}
	} else {
		for _, p := range Pairs(out) {
			unit, number, found := strings.Cut(p.Key, "[")
			if number, closed := strings.CutSuffix(number, "]"); found && closed && capitals(unit) {
				key, value, _ := strings.Cut(p.Value, ":")
				add(unit, number, key, value)
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Index, b.Index) })
	return entries
}

func capitals(word string) bool {
	return word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
