package brandtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
)

// nothings are what tools print in place of a value that they do not have.
var nothings = []string{"ERR!", "N/A", "NA", "[N/A]", "[Not Supported]", "[Unknown Error]", "-", "xxxxx", "4294967295", "18446744073709551615"}

// value is a number with what belongs to it, as tools print it: "36.0", "248 W", "(1402Mhz)", "48.0°C", "65536MiB".
var value = regexp.MustCompile(`\(?[0-9]+(?:\.[0-9]+)?(?: ?(?:mW|W|MiB|MB|GiB|GB|KiB|B|MHz|Mhz|MHZ|°C|C|c|%)\b\)?|%|°C|\))?`)

// Unknowns puts in place of every number of every recorded output, one after another, each word by which tools say that
// they have no value, and wants that the field for which the number stood becomes unknown and that nothing else changes.
// A number that names a card, in the words of named, may take that card away, and no other. The other fields have a second
// source on the same card that stands in.
func Unknowns(t *testing.T, parse func(string) brand.Reading, named func(c brand.Card) []string, other ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".md") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			UnknownsIn(t, Recorded(t, filepath.Base(file)), parse, named, other...)
		})
	}
}

// UnknownsIn is Unknowns for one output.
func UnknownsIn(t *testing.T, text string, parse func(string) brand.Reading, named func(c brand.Card) []string, other ...string) {
	t.Helper()
	want, shown := fieldsOf(parse(text), named), 0
	for _, at := range places(text) {
		old := text[at[0]:at[1]]
		for _, word := range nothings {
			if json.Valid([]byte(text)) && strings.Count(line(text[:at[0]], at[0]), `"`)%2 == 0 && strings.Trim(word, "0123456789") != "" {
				word = `"` + word + `"` // a bare one would be no JSON
			}
			changed := text[:at[0]] + fit(word, len(old)) + rest(word, text, at)
			wrong := compare(want, fieldsOf(parse(changed), named), old, word, other)
			if wrong == "" {
				continue
			}
			t.Errorf("%q in place of %q in %q: %s", word, old, line(text, at[0]), wrong)
			if shown++; shown == 5 {
				return
			}
		}
	}
}

// total is a total whose unit is that of what is used, too.
var total = regexp.MustCompile(`\d\s*/\s*(\d+) ?[A-Za-z]+$`)

// most bounds the places of one output: long ones repeat the same lines for every card.
const most = 60

func places(text string) [][]int {
	var all [][]int
	for _, at := range value.FindAllStringIndex(text, -1) {
		if at[0] > 0 && !strings.ContainsRune(" \t|\"/,>", rune(text[at[0]-1])) {
			continue // a part of a word, such as an address
		}
		if end := at[1]; end < len(text) && !strings.ContainsRune(" \t|\"/,<\r\n", rune(text[end])) {
			continue
		}
		// The unit behind a total is that of what is used, too.
		if m := total.FindStringSubmatchIndex(text[max(0, at[0]-20):at[1]]); m != nil {
			at[1] = max(0, at[0]-20) + m[3]
		}
		all = append(all, at)
	}
	if len(all) > most {
		step := float64(len(all)) / most
		var some [][]int
		for i := range most {
			some = append(some, all[int(float64(i)*step)])
		}
		return some
	}
	return all
}

// fit pads a word to the width of what it stands for, as a tool would.
func fit(word string, width int) string {
	if pad := width - len(word); pad > 0 {
		return word + strings.Repeat(" ", pad)
	}
	return word
}

// rest is what follows a place. A longer word takes the blanks behind it, as long as one stays.
func rest(word, text string, at []int) string {
	after := text[at[1]:]
	for over := len(word) - (at[1] - at[0]); over > 0 && strings.HasPrefix(after, "  "); over-- {
		after = after[1:]
	}
	return after
}

func line(text string, at int) string {
	start := strings.LastIndexByte(text[:at], '\n') + 1
	end := strings.IndexByte(text[at:], '\n')
	if end < 0 {
		end = len(text) - at
	}
	return text[start : at+end]
}

// A snapshot is what a reading knows: card → field → value; the card "" is the machine.
type snapshot struct {
	cards map[string]map[string]string
	names map[string][]string // card → the words that name it
}

func fieldsOf(r brand.Reading, named func(brand.Card) []string) snapshot {
	s := snapshot{cards: map[string]map[string]string{"": {"driver": r.Driver}}, names: map[string][]string{"": {}}}
	for k, v := range r.Facts {
		s.cards[""]["fact "+k] = v
	}
	for _, c := range r.Cards {
		key := fmt.Sprint(show(c.Index), " ", c.Part, " ", strings.Join(named(c), " "))
		fields := map[string]string{}
		for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
			f, name := v.Field(i), v.Type().Field(i).Name
			switch {
			case !v.Type().Field(i).IsExported(), name == "Facts", name == "More":
			case f.Kind() == reflect.Pointer && !f.IsNil():
				fields[name] = fmt.Sprint(f.Elem())
			case f.Kind() != reflect.Pointer && !f.IsZero():
				fields[name] = fmt.Sprint(f)
			}
		}
		if more := More(c); more != "" {
			for _, pair := range strings.Fields(more) {
				name, v, _ := strings.Cut(pair, "=")
				fields[name] = v
			}
		}
		if len(c.Processes) > 0 {
			fields["Processes"] = fmt.Sprint(len(c.Processes))
		}
		if len(c.Parts) > 0 {
			fields["Parts"] = fmt.Sprint(len(c.Parts))
		}
		for k, v := range c.Facts {
			fields["fact "+k] = v
		}
		s.cards[key], s.names[key] = fields, append(named(c), show(c.Index), c.Part)
	}
	return s
}

// compare says what is wrong with a reading in which a word stands for an old value; empty when nothing is.
func compare(want, got snapshot, old, word string, other []string) string {
	wrong := differ(want, got, old, word, other)
	if wrong == "" {
		return ""
	}
	// It may be what names a card: then what is said of that card may be lost with it.
	named := false
	want.cards = maps.Clone(want.cards)
	for key, fields := range want.cards {
		if !contains(want.names[key], old) {
			continue
		}
		named = true
		for name, v := range got.cards[key] {
			if fields[name] != v && !text(name) {
				return wrong
			}
		}
		delete(want.cards, key)
		delete(got.cards, key)
	}
	if !named {
		return wrong
	}
	want.cards[""], got.cards[""] = nil, nil // the driver's version may stand with the card
	return differ(want, got, old, word, other)
}

// differ says what is wrong with a reading in which one value says nothing.
func differ(want, got snapshot, old, word string, other []string) string {
	var changed []string
	for key, fields := range want.cards {
		now, there := got.cards[key]
		if !there {
			return fmt.Sprintf("card %s is gone", key)
		}
		for name, v := range fields {
			switch {
			case now[name] == v, strings.HasPrefix(name, "fact "):
			case now[name] == "":
				changed = append(changed, key+"."+name)
			case text(name) && (strings.Contains(v, old) && v != old || strings.Contains(now[name], word)): // a number in a name is a part of it
			case name == "Processes", name == "Parts", contains(other, name):
				changed = append(changed, key+"."+name)
			default:
				return fmt.Sprintf("%s of card %s became %q", name, key, now[name])
			}
		}
		for name, v := range now {
			if _, had := fields[name]; !had && v != "" && !strings.HasPrefix(name, "fact ") {
				return fmt.Sprintf("%s of card %s is %q", name, key, v)
			}
		}
	}
	if len(changed) > 1 {
		sort.Strings(changed)
		return "changed: " + strings.Join(changed, ", ")
	}
	return ""
}

// text tells whether a field holds a text, of which a number may be a part.
func text(field string) bool {
	return field == "driver" || field == "Name" || field == "ID" || strings.HasPrefix(field, "fact ")
}

func contains(names []string, word string) bool {
	for _, n := range names {
		if n == word {
			return true
		}
	}
	return false
}
