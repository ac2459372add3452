package toolout

import (
	"slices"
	"strings"
)

// A Process is one line of a table of processes.
type Process struct {
	Index, PID int
	Name       string
	Memory     string // as printed
}

// Processes reads the table of processes that many tools print below their cards, from the title on. A line has the index
// of a card, the PID as its value number pid, perhaps a type, the name with blanks in it, and the memory. Known is false
// when there is no such table.
func Processes(out, title string, pid int) (list []Process, known bool) {
	_, rest, known := strings.Cut(out, title)
	var words []string
	for line := range strings.Lines(rest) {
		if len(list) >= maxRecords {
			break
		}
		words = appendFields(words[:0], strings.Trim(strings.TrimSpace(line), "|"))
		if last := len(words) - 1; last > 0 && units[words[last]] {
			words[last-1] += words[last]
			words = words[:last]
		}
		if len(words) < pid+3 {
			continue
		}
		index, n := Whole(words[0]), Whole(words[pid])
		if index == nil || n == nil {
			continue
		}
		name := words[pid+1 : len(words)-1]
		if len(name) > 1 && slices.Contains([]string{"C", "G", "C+G", "M+C"}, name[0]) {
			name = name[1:]
		}
		list = append(list, Process{Index: *index, PID: *n, Name: strings.Join(name, " "), Memory: words[len(words)-1]})
	}
	return list, known
}
