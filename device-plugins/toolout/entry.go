package toolout

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// An Entry is one value of one card, as rocm-smi and the tools made after it print them.
type Entry struct {
	Index      int
	Unit       string // the word before the index: "card" in JSON; "GPU", "DCU" or "HCU" in text
	Key, Value string
}

// Entries reads {"card0": {"key": "value"}}, ordered by index and key, and lines such as "GPU[0] : key: value" as they stand.
// What is not under a card, such as "system", is left out.
func Entries(out string) iter.Seq[Entry] {
	if v, ok := JSON(out); ok {
		return v.entries
	}
	return func(yield func(Entry) bool) {
		for p := range Pairs(out) {
			unit, number, found := strings.Cut(p.Key, "[")
			number, closed := strings.CutSuffix(number, "]")
			index, isNumber := cardNumber(number)
			if !found || !closed || !isNumber || !capitals(unit) {
				continue
			}
			key, value, _ := strings.Cut(p.Value, ":")
			if !yield(Entry{Index: index, Unit: unit, Key: strings.TrimSpace(key), Value: strings.TrimSpace(value)}) {
				return
			}
		}
	}
}

func cardNumber(s string) (int, bool) {
	index := Whole(s)
	if index == nil || !digit(s[0]) {
		return 0, false
	}
	return *index, true
}

// mostListed bounds the items of a list and the cards that are put in order: no node has so many.
const mostListed = 1024

func (v Value) entries(yield func(Entry) bool) {
	type card struct {
		index  int
		values Value
	}
	type field struct {
		key   string
		value Value
	}
	var cards []card
	for name, values := range v.Fields() {
		number, isCard := strings.CutPrefix(name, "card")
		if index, isNumber := cardNumber(number); isCard && isNumber && values.IsObject() && len(cards) < mostListed {
			cards = append(cards, card{index, values})
		}
	}
	slices.SortStableFunc(cards, func(a, b card) int { return cmp.Compare(a.index, b.index) })
	var fields []field
	for _, c := range cards {
		fields = fields[:0]
		for key, value := range c.values.Fields() {
			if len(fields) < mostValues {
				fields = append(fields, field{key, value})
			}
		}
		slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.key, b.key) })
		for _, f := range fields {
			if !yield(Entry{Index: c.index, Unit: "card", Key: strings.TrimSpace(f.key), Value: f.value.Text()}) {
				return
			}
		}
	}
}

func capitals(word string) bool {
	return word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
