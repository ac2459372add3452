package toolout

import (
	"slices"
	"strings"
)

// maxRecords bounds what is taken of one table. No node has so many cards and processes on them.
const maxRecords = 8192

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
	dashes := 0
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case '-', '=':
			dashes++
		case '+', '|', '*', ' ', '\t', '\r', '\n':
		default:
			return false
		}
	}
	return dashes > 2
}

// Boxed reads every boxed table whose header begins with one of the keys, such as "GPU". A header may have several
// lines; an entry has as many lines, and its n-th is read by the n-th line of the header. A line between borders that
// has another number of cells than its header is left out.
func Boxed(out string, keys ...string) []Record {
	var header [][][]string // line → cell → names
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
		if len(records) >= maxRecords {
			break
		}
		cells := Cells(line)
		switch {
		case Border(line):
			flush()
			inHeader = false
		case cells == nil:
		case startsWith(cells[0], keys):
			flush()
			header, inHeader = [][][]string{names(cells)}, true
		case inHeader:
			header = append(header, names(cells))
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

func names(cells []string) [][]string {
	all := make([][]string, len(cells))
	for i, cell := range cells {
		all[i] = Names(cell)
	}
	return all
}

func startsWith(cell string, keys []string) bool {
	first, _, _ := strings.Cut(cell, " ")
	return slices.Contains(keys, first) || slices.Contains(keys, cell)
}

// Names are the column names in one cell or line of a header: words that one blank parts belong together.
func Names(header string) []string {
	var names []string
	header = strings.TrimSpace(header)
	for header != "" {
		at := strings.Index(header, "  ")
		if tab := strings.IndexByte(header, '\t'); tab >= 0 && (at < 0 || tab < at) {
			at = tab
		}
		if at < 0 {
			return append(names, header)
		}
		names, header = append(names, header[:at]), strings.TrimSpace(header[at:])
	}
	return names
}

// add reads one cell by its header. Several values stand in the order of the names. Values too many belong to the
// name of the product, the only one with blanks in it; where some are missing, nothing tells which, and none is taken
// but the index that leads the line.
func (r Record) add(names []string, cell string, leads bool) {
	if len(names) == 0 {
		return
	}
	if len(names) == 1 {
		r[names[0]] = cell
		return
	}
	values := Values(cell)
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

// units that some tools print apart from their numbers.
var units = map[string]bool{
	"W": true, "mW": true, "KiB": true, "KB": true, "MiB": true, "MB": true, "GiB": true, "GB": true, "B": true, "C": true, "°C": true,
	"%": true, "MHz": true, "Mhz": true, "Mb/s": true, "ns": true,
}

// isUnit tells whether a word is a unit, or one with "/ total" behind it.
func isUnit(word string) bool {
	unit, _, _ := strings.Cut(word, "/")
	return units[word] || units[unit]
}

// numeric tells whether a word is a number, or stands for one that is not known.
func numeric(word string) bool {
	if word == "" {
		return false
	}
	return word[0] >= '0' && word[0] <= '9' || word[0] == '-' || word[0] == '[' || strings.Trim(word, "xX") == "" || strings.HasPrefix(word, "N/A") || strings.HasPrefix(word, "NA") || strings.HasPrefix(word, "ERR!")
}

// Words are the words of a line, with those in brackets, such as "[Not Supported]", taken as one.
func Words(line string) []string {
	words := strings.Fields(line)
	for i := 0; i < len(words); i++ {
		end := i
		for strings.Contains(words[i], "[") && end+1 < len(words) && end-i < 3 && !strings.Contains(words[end], "]") {
			end++
		}
		if end > i && strings.Contains(words[end], "]") {
			words = slices.Replace(words, i, end+1, strings.Join(words[i:end+1], " "))
		}
	}
	return words
}

// Values splits the text of a cell at its blanks, but keeps a number with its unit, and "used / total", together, also where
// one of the two is blank.
func Values(cell string) []string {
	words := Words(cell)
	values := make([]string, 0, len(words))
	for i, w := range words {
		last := len(values) - 1
		switch {
		case last < 0:
			values = append(values, w)
		case strings.HasSuffix(values[last], "/") && (len(values[last]) > 1 || numeric(w)),
			numeric(values[last]) && (isUnit(w) || w == "/" && (i+1 == len(words) || numeric(words[i+1])) || len(w) > 1 && w[0] == '/' && numeric(w[1:])):
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
		if len(records) >= maxRecords {
			break
		}
		if Border(line) || strings.TrimSpace(line) == "" {
			continue
		}
		if startsWith(strings.TrimSpace(line), keys) {
			if names := Names(line); len(names) > 1 {
				header = names
				continue
			}
		}
		if header == nil {
			continue
		}
		values := Values(line)
		if len(values) == 0 || Whole(values[0]) == nil {
			continue
		}
		if len(values) != len(header) {
			values = Names(line)
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
