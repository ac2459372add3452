package toolout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A Pair is one line "key : value" and the titles that it stands under, outermost first. A title has no value.
type Pair struct {
	Section    []string
	Key, Value string
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

var keyed = regexp.MustCompile(`^(\s*)(\S.*?)\s*(?::\s+|\s:|:$)(.*)$`)

// Pairs reads lines of keys and values. A line without a value is a title, of what is indented under it; where a text
// has lost its blanks, of all that follows until the next title. A pair with nested pairs is a title too.
func Pairs(out string) []Pair {
	type title struct {
		indent int
		name   string
	}
	lines := strings.Split(strings.ReplaceAll(out, "\r", ""), "\n")
	flat := true
	for _, line := range lines {
		if t := strings.TrimSpace(line); t != "" && line[0] <= ' ' {
			flat = false
		}
	}
	var pairs []Pair
	var titles []title
	for n, line := range lines {
		text := strings.TrimSpace(line)
		if text == "" {
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " \t"))
		for len(titles) > 0 && titles[len(titles)-1].indent >= indent && !flat {
			titles = titles[:len(titles)-1]
		}
		key, value := text, ""
		if m := keyed.FindStringSubmatch(line); m != nil {
			key, value = m[2], strings.TrimSpace(m[3])
		}
		section := make([]string, len(titles))
		for i, t := range titles {
			section[i] = t.name
		}
		pairs = append(pairs, Pair{Section: section, Key: key, Value: value})
		if flat && value == "" {
			titles = []title{{0, key}}
		} else if !flat && (value == "" || nested(lines[n+1:], indent)) && len(titles) < 16 {
			name := key
			if value != "" {
				name = key + " " + value
			}
			titles = append(titles, title{indent, name})
		}
	}
	return pairs
}

// nested tells whether the next line that is not blank is indented deeper.
func nested(lines []string, indent int) bool {
	for _, line := range lines {
		if strings.TrimSpace(line) != "" {
			return len(line)-len(strings.TrimLeft(line, " \t")) > indent
		}
	}
	return false
}

// JSON reads the first JSON value that starts a line: tools print banners before it and warnings behind it.
func JSON(out string) (any, bool) {
	tries := 0
	for at := 0; at < len(out) && tries < 64; {
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
