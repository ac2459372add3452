package toolout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Pair is one line "key : value" and the titles that it stands under, outermost first. A title has no value, and neither
// has a key whose value is not known.
type Pair struct {
	Section    []string
	Key, Value string
	Title      bool
}

// Under is the innermost title.
func (p Pair) Under() string {
	if len(p.Section) == 0 {
		return ""
	}
	return p.Section[len(p.Section)-1]
}

// Path is the titles and the key, parted by slashes.
func (p Pair) Path() string {
	return strings.Join(append(append([]string{}, p.Section...), p.Key), "/")
}

// cut parts a line at the first colon with a blank, or nothing, beside it: addresses and times have colons too. Parted is
// false when there is none.
func cut(line string) (key, value string, parted bool) {
	for i := 1; i < len(line); i++ {
		if line[i] == ':' && (i+1 == len(line) || blank(line[i+1]) || blank(line[i-1])) {
			return strings.TrimSpace(line[:i]), strings.TrimSpace(line[i+1:]), true
		}
	}
	return line, "", false
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

// indent is the number of blanks that a line begins with, -1 for a line of nothing else.
func indent(line string) int {
	for i := 0; i < len(line); i++ {
		if line[i] > ' ' {
			return i
		}
	}
	return -1
}

// deepest is how deep titles are followed. Real ones are four deep.
const deepest = 16

// maxPairs bounds what is taken of one text. A full query of a real card has some 400 lines.
const maxPairs = 1 << 15

// Pairs reads lines of keys and values. A line without a value is a title, of what is indented under it; where a text
// has lost its blanks, one without a colon is, of all that follows until the next title. A pair with nested pairs is a title
// too. A key with a colon, nothing behind it and nothing under it is one whose value is blank.
func Pairs(out string) []Pair {
	lines := strings.Split(strings.ReplaceAll(out, "\r", ""), "\n")
	flat := !slices.ContainsFunc(lines, func(line string) bool { return indent(line) > 0 })
	pairs := make([]Pair, 0, min(len(lines), maxPairs))
	var titles []string
	var depths []int // of the titles
	for n, line := range lines {
		depth := indent(line)
		if depth < 0 {
			continue
		}
		if len(pairs) == maxPairs {
			break
		}
		for !flat && len(titles) > 0 && depths[len(depths)-1] >= depth {
			titles, depths = titles[:len(titles)-1:len(titles)-1], depths[:len(depths)-1]
		}
		key, value, parted := cut(strings.TrimSpace(line))
		over := !flat && nested(lines[n+1:], depth)
		title := value == "" && (!parted || over)
		pairs = append(pairs, Pair{Section: titles[:len(titles):len(titles)], Key: key, Value: value, Title: title})
		switch {
		case flat && title:
			titles = []string{key}
		case !flat && (title || over) && len(titles) < deepest:
			titles, depths = append(titles, strings.TrimSpace(key+" "+value)), append(depths, depth)
		}
	}
	return pairs
}

// nested tells whether the next line that is not blank is indented deeper.
func nested(lines []string, depth int) bool {
	for _, line := range lines {
		if next := indent(line); next >= 0 {
			return next > depth
		}
	}
	return false
}

// maxTries bounds how often JSON is looked for: each try may read to the end.
const maxTries = 4

// JSON reads the first JSON value that starts a line: tools print banners before it and warnings behind it.
func JSON(out string) (any, bool) {
	tries := 0
	for at := 0; at < len(out) && tries < maxTries; {
		end := strings.IndexByte(out[at:], '\n')
		if end < 0 {
			end = len(out) - at
		}
		if line := strings.TrimSpace(out[at : at+end]); line != "" && (line[0] == '{' || line[0] == '[') {
			tries++
			dec := json.NewDecoder(bytes.NewReader([]byte(out[at:])))
			dec.UseNumber()
			var v any
			if dec.Decode(&v) == nil {
				return v, true
			}
		}
		at += end + 1
	}
	return nil, false
}

// Get walks into decoded JSON by keys; case and blanks around a key do not matter. It is nil for what is not there.
func Get(v any, path ...string) any {
	for _, want := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		found, ok := object[want]
		if !ok {
			for _, k := range slices.Sorted(maps.Keys(object)) {
				if strings.EqualFold(strings.TrimSpace(k), want) {
					found = object[k]
					break
				}
			}
		}
		v = found
	}
	return v
}

// String is what Get finds as text: {"value": 550, "unit": "W"} is "550 W"; lists and other objects say nothing.
func String(v any, path ...string) string {
	switch found := Get(v, path...).(type) {
	case string:
		return Text(found)
	case json.Number:
		return found.String()
	case map[string]any:
		if value := String(found, "value"); value != "" {
			return strings.TrimSpace(fmt.Sprint(value, " ", String(found, "unit")))
		}
	}
	return ""
}
