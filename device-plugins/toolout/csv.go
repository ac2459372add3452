package toolout

import (
	"regexp"
	"slices"
	"strings"
)

var columnName = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.]*)(?:\s*\[([^\]]*)\])?$`)

// CSV reads comma-separated lines by the names in their header, of which one must be known by the caller's keys. A unit
// in the header, as in "memory.used [MiB]", is added to values that are bare numbers. Lines before a header are read
// with the fallback names, in the order in which they were asked for; nil leaves them out.
func CSV(out string, fallback []string, keys ...string) []Record {
	header, units := fallback, make([]string, len(fallback))
	var records []Record
	for line := range strings.Lines(out) {
		if len(records) >= maxRecords {
			break
		}
		cells := CSVCells(line)
		if names, inBrackets, ok := csvHeader(cells, keys); ok {
			header, units = names, inBrackets
			continue
		}
		if len(cells) != len(header) || len(cells) == 0 {
			continue
		}
		r := Record{}
		for i, name := range header {
			value := cells[i]
			if _, unit, ok := Quantity(value); ok && unit == "" && units[i] != "" {
				value += " " + units[i]
			}
			r[name] = value
		}
		records = append(records, r)
	}
	return records
}

// CSVCells are the cells of one line of comma-separated values, without the blanks around them; nil for a line without
// any. A comma in a cell that begins with a quote parts nothing; a quote that nobody closes is closed by the line's end.
func CSVCells(line string) []string {
	line = strings.TrimSpace(line)
	if line == "" {
		return nil
	}
	cells := make([]string, 0, strings.Count(line, ",")+1)
	for more := true; more; {
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

func csvHeader(cells, keys []string) (names, units []string, ok bool) {
	for _, c := range cells {
		m := columnName.FindStringSubmatch(c)
		if m == nil {
			return nil, nil, false
		}
		names, units = append(names, m[1]), append(units, m[2])
		ok = ok || slices.Contains(keys, m[1])
	}
	return names, units, ok
}
