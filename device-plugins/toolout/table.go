package toolout

import (
	"iter"
	"slices"
	"strings"
)

// maxRecords bounds what is taken of one table. No node has so many cards and processes on them.
const maxRecords = 4096

// A Record is one entry of a table: column name → value as printed. It is only valid until the next entry is read.
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

// AppendCells appends the cells of a line of a boxed table, trimmed; none of any other line.
func AppendCells(cells []string, line string) []string {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || Border(line) {
		return cells
	}
	return split(cells, strings.Trim(line, "|"))
}

// split appends what bars part.
func split(cells []string, line string) []string {
	for more := true; more && len(cells) < maxColumns; {
		var cell string
		cell, line, more = strings.Cut(line, "|")
		cells = append(cells, strings.TrimSpace(cell))
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

// mostLines is how many lines a header may have. Real ones have up to four.
const mostLines = 8

// Boxed reads every boxed table whose header begins with one of the keys, such as "GPU". A header may have several
// lines; an entry has as many lines, and its n-th is read by the n-th line of the header. A line between borders that
// has another number of cells than its header is left out.
func Boxed(out string, keys ...string) iter.Seq[Record] { return boxes(out, keys, AppendCells) }

// Barred reads tables as Boxed does whose bars part cells and do not frame them.
func Barred(out string, keys ...string) iter.Seq[Record] {
	return boxes(out, keys, func(cells []string, line string) []string {
		if !strings.Contains(line, "|") || Border(line) {
			return cells
		}
		return split(cells, strings.TrimRight(line, "\r\n"))
	})
}

func boxes(out string, keys []string, cells func([]string, string) []string) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		b := box{record: Record{}}
		for line := range strings.Lines(out) {
			b.cells = cells(b.cells[:0], line)
			if !b.line(line, keys, yield) || b.records == maxRecords {
				return
			}
		}
		b.flush(yield)
	}
}

// A box is what was read of a boxed table.
type box struct {
	header   [][][]string // line → cell → names
	inHeader bool
	record   Record // the present entry
	row      int    // lines of the present entry
	records  int
	cells    []string
	values   []string
}

// flush hands on the present entry. It tells whether more are wanted.
func (b *box) flush(yield func(Record) bool) bool {
	b.row = 0
	if len(b.record) == 0 {
		return true
	}
	b.records++
	more := yield(b.record)
	clear(b.record)
	return more
}

func (b *box) line(line string, keys []string, yield func(Record) bool) bool {
	switch {
	case Border(line):
		b.inHeader = false
		return b.flush(yield)
	case len(b.cells) == 0:
	case startsWith(b.cells[0], keys):
		more := b.flush(yield)
		b.header, b.inHeader = append(b.header[:0], names(b.cells)), true
		return more
	case b.inHeader:
		if len(b.header) < mostLines {
			b.header = append(b.header, names(b.cells))
		}
	case b.row < len(b.header) && len(b.cells) == len(b.header[b.row]):
		for i, cell := range b.cells {
			b.values = b.record.add(b.header[b.row][i], cell, i == 0, b.values)
		}
		if b.row++; len(b.header) == 1 {
			return b.flush(yield) // entries of one line may follow each other without a border
		}
	default:
		b.row++
	}
	return true
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

// Names are the column names in one cell or line of a header: words that one blank parts belong together, and what commas
// part.
func Names(header string) []string { return appendNames(nil, header) }

func appendNames(names []string, header string) []string {
	header = strings.TrimSpace(header)
	for header != "" && len(names) < maxColumns {
		at := strings.Index(header, "  ")
		if tab := strings.IndexByte(header, '\t'); tab >= 0 && (at < 0 || tab < at) {
			at = tab
		}
		if at < 0 {
			at = len(header)
		}
		if last := len(names) - 1; last >= 0 && strings.HasSuffix(names[last], ",") {
			names[last] += header[:at]
		} else {
			names = append(names, header[:at])
		}
		header = strings.TrimSpace(header[at:])
	}
	return names
}

// add reads one cell by its header. Several values stand in the order of the names. Values too many belong to the
// name of the product, the only one with blanks in it; where some are missing, nothing tells which, and none is taken
// but the index that leads the line. The room for the values is given and returned.
func (r Record) add(names []string, cell string, leads bool, room []string) []string {
	switch len(names) {
	case 0:
		return room
	case 1:
		r[names[0]] = cell
		return room
	}
	values := AppendValues(room[:0], cell)
	room = values
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
	return room
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

// appendFields appends the words of a line, up to a number that no real one has.
func appendFields(words []string, line string) []string {
	for w := range strings.FieldsSeq(line) {
		if len(words) >= maxColumns {
			break
		}
		words = append(words, w)
	}
	return words
}

// AppendWords appends the words of a line, with those in brackets, such as "[Not Supported]", taken as one.
func AppendWords(words []string, line string) []string {
	from := len(words)
	words = appendFields(words, line)
	if !strings.Contains(line, "[") {
		return words
	}
	kept := from
	for i := from; i < len(words); i++ {
		end := i
		for strings.Contains(words[i], "[") && end+1 < len(words) && end-i < 3 && !strings.Contains(words[end], "]") {
			end++
		}
		if words[kept] = words[i]; end > i && strings.Contains(words[end], "]") {
			words[kept] = strings.Join(words[i:end+1], " ")
			i = end
		}
		kept++
	}
	return words[:kept]
}

// AppendValues appends the values in the text of a cell, which blanks part, but keeps a number with its unit, "used /
// total", also where one of the two is blank, and what commas part, such as "NPS1, SPX, 0", together.
func AppendValues(values []string, cell string) []string {
	from := len(values)
	words := AppendWords(values, cell)
	kept := from
	for i := from; i < len(words); i++ {
		w, last := words[i], ""
		if kept > from {
			last = words[kept-1]
		}
		if last != "" && (strings.HasSuffix(last, ",") || strings.HasSuffix(last, "/") && (len(last) > 1 || numeric(w)) ||
			numeric(last) && (isUnit(w) || w == "/" && (i+1 == len(words) || numeric(words[i+1])) || len(w) > 1 && w[0] == '/' && numeric(w[1:]))) {
			words[kept-1] += w
			continue
		}
		words[kept] = w
		kept++
	}
	return words[:kept]
}

// Values are the values in the text of a cell, see AppendValues.
func Values(cell string) []string { return AppendValues(nil, cell) }

// Aligned reads a table without bars: a header line that begins with one of the keys, and lines of as many values
// that begin with an index. Lines of another kind are passed over.
func Aligned(out string, keys ...string) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		var header, values []string
		record, records := Record{}, 0
		for line := range strings.Lines(out) {
			trimmed := strings.TrimSpace(line)
			if trimmed == "" || Border(line) {
				continue
			}
			if startsWith(trimmed, keys) {
				if values = appendNames(values[:0], line); len(values) > 1 {
					header = append(header[:0], values...)
					continue
				}
			}
			if len(header) == 0 || !digit(trimmed[0]) {
				continue
			}
			if values = AppendValues(values[:0], line); Whole(values[0]) == nil {
				continue
			}
			if len(values) != len(header) {
				values = appendNames(values[:0], line)
			}
			if len(values) != len(header) {
				continue
			}
			clear(record)
			for i, n := range header {
				record[n] = values[i]
			}
			if records++; !yield(record) || records == maxRecords {
				return
			}
		}
	}
}
