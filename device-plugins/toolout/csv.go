package toolout

import (
	"encoding/csv"
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

// CSVCells are the cells of one line of comma-separated values, without the blanks around them; nil for a line without any
// and for one that is broken.
func CSVCells(line string) []string {
	if strings.TrimSpace(line) == "" {
		return nil
	}
	if !strings.Contains(line, `"`) {
		cells := strings.Split(line, ",")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		return cells
	}
	rd := csv.NewReader(strings.NewReader(line))
	rd.LazyQuotes, rd.TrimLeadingSpace, rd.FieldsPerRecord = true, true, -1
	cells, err := rd.Read()
	if err != nil {
		return nil // one broken line is not worth more than itself
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
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
