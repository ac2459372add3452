package toolout

import (
	"regexp"
	"slices"
	"strings"
)

// A Record is one entry of a table: column name → value as printed.
type Record map[string]string

// First is the first of the named values that says something.
func (r Record) First(names ...string) string {
	for _, n := range names {
		if v := Text(r[n]); v != "" {
			return v
		}
	}
	return ""
}

// Has tells whether the table that the record is from has all these columns.
func (r Record) Has(names ...string) bool {
	for _, n := range names {
		if _, ok := r[n]; !ok {
			return false
		}
	}
	return true
}

// Cells are the cells of a line of a boxed table, trimmed; nil for any other line.
func Cells(line string) []string {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || Border(line) {
		return nil
	}
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// Border tells whether a line only separates: dashes, equals signs and their crossings.
func Border(line string) bool {
	line = strings.TrimSpace(line)
	return strings.Count(line, "-")+strings.Count(line, "=") > 2 && strings.Trim(line, "+-=|* ") == ""
}

// Boxed reads every boxed table whose header begins with one of the keys, such as "GPU". A header may have several
// lines; an entry has as many lines, and its n-th is read by the n-th line of the header. A line between borders that
// has another number of cells than its header is left out.
func Boxed(out string, keys ...string) []Record {
	var header [][]string
	var records []Record
	var current Record
	inHeader, row := false, 0
	flush := func() {
		if current != nil {
			records = append(records, current)
		}
		current, row = nil, 0
	}
	for line := range strings.Lines(out) {
		cells := Cells(line)
		switch {
		case Border(line):
			flush()
			inHeader = false
		case cells == nil:
		case startsWith(cells[0], keys):
			flush()
			header, inHeader = [][]string{cells}, true
		case inHeader:
			header = append(header, cells)
		case row < len(header) && len(cells) == len(header[row]):
			if current == nil {
				current = Record{}
			}
			for i, cell := range cells {
				current.add(header[row][i], cell, i == 0)
			}
			if row++; len(header) == 1 {
				flush() // entries of one line may follow each other without a border
			}
		default:
			row++
		}
	}
	flush()
	return records
}

func startsWith(cell string, keys []string) bool {
	first, _, _ := strings.Cut(cell, " ")
	return slices.Contains(keys, first) || slices.Contains(keys, cell)
}

var wide = regexp.MustCompile(`\s{2,}`)

// Names are the column names in one cell or line of a header: words that one blank parts belong together.
func Names(header string) []string {
	header = strings.TrimSpace(header)
	if header == "" {
		return nil
	}
	return wide.Split(header, -1)
}

// add reads one cell by its header. Several values stand in the order of the names. Values too many belong to the
// name of the product, the only one with blanks in it; where some are missing, nothing tells which, and none is taken
// but the index that leads the line.
func (r Record) add(header, cell string, leads bool) {
	names, values := Names(header), Values(cell)
	if len(names) == 0 {
		return
	}
	if len(names) == 1 {
		r[names[0]] = cell
		return
	}
	if more := len(values) - len(names); more > 0 {
		at := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, "name") })
		if at < 0 {
			at = len(names) - 1
		}
		values = slices.Concat(values[:at], []string{strings.Join(values[at:at+more+1], " ")}, values[at+more+1:])
	}
	for i, n := range names {
		r[n] = ""
		if len(values) == len(names) || leads && i == 0 && len(values) > 0 && Whole(values[0]) != nil {
			r[n] = values[i]
		}
	}
}

var (
	loneUnit = regexp.MustCompile(`^(?:W|mW|KiB|KB|MiB|MB|GiB|GB|B|C|°C|%|MHz|Mhz|Mb/s|ns)(?:/.*)?$`)
	number   = regexp.MustCompile(`^(?:[0-9]|N/A|NA|-|ERR!)`)
)

// Values splits the text of a cell at its blanks, but keeps a number with its unit, and "used / total", together.
func Values(cell string) []string {
	var values []string
	words := strings.Fields(cell)
	for i, w := range words {
		last := len(values) - 1
		slash := w == "/" && i+1 < len(words) && number.MatchString(words[i+1])
		switch {
		case last < 0:
			values = append(values, w)
		case (loneUnit.MatchString(w) || slash) && number.MatchString(values[last]):
			values[last] += w
		case len(values[last]) > 1 && strings.HasSuffix(values[last], "/"), len(w) > 1 && w[0] == '/' && number.MatchString(w[1:]) && number.MatchString(values[last]):
			values[last] += w
		default:
			values = append(values, w)
		}
	}
	return values
}

// Aligned reads a table without bars: a header line that begins with one of the keys, and lines of as many values
// that begin with an index. It ends at a line of another kind.
func Aligned(out string, keys ...string) []Record {
	var header []string
	var records []Record
	for line := range strings.Lines(out) {
		if Border(line) || strings.TrimSpace(line) == "" {
			continue
		}
		if names := Names(line); startsWith(strings.TrimSpace(line), keys) && len(names) > 1 {
			header = names
			continue
		}
		values := Values(line)
		if header == nil || len(values) == 0 || Whole(values[0]) == nil {
			continue
		}
		if len(values) != len(header) {
			values = wide.Split(strings.TrimSpace(line), -1)
		}
		if len(values) != len(header) {
			continue
		}
		r := Record{}
		for i, n := range header {
			r[n] = values[i]
		}
		records = append(records, r)
	}
	return records
}
