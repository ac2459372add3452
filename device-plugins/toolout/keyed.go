package toolout

import (
	"iter"
	"strings"
)

// A Pair is one line "key : value" and the titles that it stands under, outermost first. A title has no value, and neither
// has a key whose value is not known.
type Pair struct {
	Section    []string // only until the next pair
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
func Pairs(out string) iter.Seq[Pair] {
	out = strings.ReplaceAll(out, "\r", "")
	flat := true
	for line := range strings.Lines(out) {
		flat = flat && indent(line) <= 0
	}
	return func(yield func(Pair) bool) {
		var titles []string
		var depths []int // of the titles
		for n, rest := 0, out; rest != "" && n < maxPairs; {
			var line string
			line, rest, _ = strings.Cut(rest, "\n")
			depth := indent(line)
			if depth < 0 {
				continue
			}
			n++
			for !flat && len(titles) > 0 && depths[len(depths)-1] >= depth {
				titles, depths = titles[:len(titles)-1], depths[:len(depths)-1]
			}
			key, value, parted := cut(strings.TrimSpace(line))
			over := !flat && nested(rest, depth)
			title := value == "" && (!parted || over)
			if !yield(Pair{Section: titles, Key: key, Value: value, Title: title}) {
				return
			}
			switch {
			case flat && title:
				titles = append(titles[:0], key)
			case !flat && (title || over) && len(titles) < deepest:
				if value != "" {
					key += " " + value
				}
				titles, depths = append(titles, key), append(depths, depth)
			}
		}
	}
}

// nested tells whether the next line that is not blank is indented deeper.
func nested(rest string, depth int) bool {
	for line := range strings.Lines(rest) {
		if next := indent(line); next >= 0 {
			return next > depth
		}
	}
	return false
}

// A Block is what a tool says of one card: key → value.
type Block map[string]string

// mostValues bounds what is taken of one card: a full query of a real card has some 400 lines.
const mostValues = 1024

// Set notes a value, unless there are too many.
func (b Block) Set(key, value string) {
	if len(b) < mostValues {
		b[key] = value
	}
}
