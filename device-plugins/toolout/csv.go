package toolout

import (
	"iter"
	"slices"
	"strings"
)

// maxColumns bounds what is taken of one line. A query for every field that a tool knows has some 250.
const maxColumns = 1024

// CSV reads comma-separated lines by the names in their header, of which one must be known by the caller's keys. A unit
// in the header, as in "memory.used [MiB]", is added to values that are bare numbers. Lines before a header are read
// with the fallback names, in the order in which they were asked for; nil leaves them out.
func CSV(out string, fallback []string, keys ...string) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		header, units := slices.Clone(fallback), make([]string, len(fallback))
		var cells []string
		record, records := Record{}, 0
		for line := range strings.Lines(out) {
			cells = AppendCSV(cells[:0], line)
			if csvHeader(cells, keys) {
				header, units = header[:0], units[:0]
				for _, c := range cells {
					name, unit, _ := Column(c)
					header, units = append(header, name), append(units, unit)
				}
				continue
			}
			if len(cells) != len(header) || len(cells) == 0 {
				continue
			}
			clear(record)
			for i, name := range header {
				value := cells[i]
				if _, unit, ok := Quantity(value); ok && unit == "" && units[i] != "" {
					value += " " + units[i]
				}
				record[name] = value
			}
			if records++; !yield(record) || records == maxRecords {
				return
			}
		}
	}
}

// AppendCSV appends the cells of one line of comma-separated values, without the blanks around them; none of a line without
// any. A comma in a cell that begins with a quote parts nothing; a quote that nobody closes is closed by the line's end.
func AppendCSV(cells []string, line string) []string {
	line = strings.TrimSpace(line)
	if line == "" {
		return cells
	}
	for more := true; more && len(cells) < maxColumns; {
		var cell string
		if line = strings.TrimLeft(line, " \t"); strings.HasPrefix(line, `"`) {
			cell, line, more = quoted(line[1:])
		} else {
			cell, line, more = strings.Cut(line, ",")
		}
		cells = append(cells, strings.TrimSpace(cell))
	}
	return cells
}

// quoted reads a cell behind its opening quote up to the quote before a comma or the end of the line. A quote within the
// cell is printed twice, or as it is by careless tools.
func quoted(line string) (cell, rest string, more bool) {
	for i := 0; i < len(line); i++ {
		if line[i] != '"' {
			continue
		}
		if i+1 < len(line) && line[i+1] == '"' {
			i++
			continue
		}
		behind := strings.TrimLeft(line[i+1:], " \t")
		if behind == "" || behind[0] == ',' {
			rest, more = strings.CutPrefix(behind, ",")
			return strings.ReplaceAll(line[:i], `""`, `"`), rest, more
		}
	}
	return strings.ReplaceAll(line, `""`, `"`), "", false
}

func csvHeader(cells, keys []string) (ok bool) {
	for _, c := range cells {
		name, _, isName := Column(c)
		if !isName {
			return false
		}
		ok = ok || slices.Contains(keys, name)
	}
	return ok
}

// Column reads one cell of a header: the name of a field, such as memory.used, and in brackets its unit. ok is false for what
// is no name.
func Column(cell string) (name, unit string, ok bool) {
	end := 0
	for end < len(cell) && (letter(cell[end]) || end > 0 && (digit(cell[end]) || cell[end] == '_' || cell[end] == '.')) {
		end++
	}
	name, rest := cell[:end], strings.TrimLeft(cell[end:], " \t")
	if name == "" || rest == "" {
		return name, "", name != "" && end == len(cell)
	}
	unit, closed := strings.CutSuffix(rest[1:], "]")
	return name, unit, closed && rest[0] == '[' && !strings.Contains(unit, "]")
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
