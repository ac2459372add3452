package ascend

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Chip is one chip as `npu-smi info` lists it.
type Chip struct {
	NPU, Number int    // the tool's numbers of the board and of the chip on it
	Device      int    // number of its node, /dev/davinciN
	Name        string // 910B3
	Bus         string // PCI address in lower case; the chips of one board may share it; empty when it is masked
	PIDs        []int  // processes on it
}

var (
	busText = regexp.MustCompile(`^[0-9A-Fa-f]{4}:[0-9A-Fa-fxX]{2}:[0-9A-Fa-fxX]{2}\.[0-9A-Fa-f]$`)
	blanks  = regexp.MustCompile(`\s+`)
)

// cells are the texts between the bars of a line of a table.
func cells(line string) []string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") {
		return nil
	}
	parts := strings.Split(strings.Trim(line, "|"), "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// whole reads a number of at most 9 digits; ok is false for everything else.
func whole(text string) (int, bool) {
	if len(text) > 9 || strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// ParseChips reads the table of `npu-smi info`: two lines for each chip, and the processes below. Where it has no column for
// the device's number, that is the board's, as with boards of one chip.
func ParseChips(out string) []Chip {
	var chips []Chip
	var npu int
	var name string
	processes := false
	for line := range strings.Lines(out) {
		row := cells(line)
		if len(row) < 3 {
			continue
		}
		processes = processes || strings.EqualFold(row[1], "Process id")
		first := blanks.Split(row[0], -1)
		n, ok := whole(first[0])
		switch {
		case !ok:
		case processes && len(first) == 2:
			if number, isNumber := whole(first[1]); isNumber {
				addProcess(chips, n, number, row[1])
			}
		case busText.MatchString(row[1]) && name != "":
			c := Chip{NPU: npu, Number: n, Device: npu, Name: name}
			if len(first) > 1 {
				device, isNumber := whole(first[1])
				if !isNumber {
					continue
				}
				c.Device = device
			} else if n != 0 {
				continue // which node it has is not told
			}
			if !strings.ContainsAny(row[1], "xX") {
				c.Bus = strings.ToLower(row[1])
			}
			chips = append(chips, c)
		case len(first) > 1:
			npu, name = n, strings.TrimPrefix(strings.Join(first[1:], " "), "Ascend ")
		}
	}
	return chips
}

func addProcess(chips []Chip, npu, number int, pid string) {
	p, ok := whole(pid)
	if !ok {
		return
	}
	for i := range chips {
		if chips[i].NPU == npu && chips[i].Number == number {
			chips[i].PIDs = append(chips[i].PIDs, p)
		}
	}
}

// VNPU is one virtual NPU of a chip.
type VNPU struct {
	ID       int
	Template string
}

// Division is how one chip is divided, as `npu-smi info -t info-vnpu` tells it.
type Division struct {
	FreeCores, Cores int // AI cores; Cores is 0 when they are not told
	VNPUs            []VNPU
	Total            int // how many virtual NPUs it says there are; -1 when it does not
}

// IDs are the numbers of the virtual NPUs.
func (d Division) IDs() []int {
	var ids []int
	for _, v := range d.VNPUs {
		ids = append(ids, v.ID)
	}
	return ids
}

// Complete reports whether what is listed is all that there is: nothing may be made or removed by half a list.
func (d Division) Complete() bool { return d.Total == len(d.VNPUs) }

// ParseDivision reads what the tool says of the virtual NPUs of one chip.
func ParseDivision(out string) Division {
	d := Division{Total: -1}
	cores := -1
	for line := range strings.Lines(out) {
		line = strings.Trim(strings.TrimSpace(line), "| ")
		fields := blanks.Split(line, -1)
		if count, ok := strings.CutPrefix(line, "Total number of vnpu:"); ok {
			if n, isNumber := whole(strings.TrimSpace(count)); isNumber {
				d.Total = n
			}
		}
		if at := slices.Index(fields, "AICORE"); at >= 0 {
			cores = at
			continue
		}
		if cores >= 0 && d.Cores == 0 && len(fields) > cores {
			free, all, _ := strings.Cut(fields[cores], "/")
			f, isFree := whole(free)
			a, isAll := whole(all)
			if isFree && isAll {
				d.FreeCores, d.Cores = f, a
			}
		}
		if row := strings.Split(line, "|"); len(row) == 5 {
			if id, ok := whole(strings.TrimSpace(row[0])); ok {
				d.VNPUs = append(d.VNPUs, VNPU{ID: id, Template: strings.TrimSpace(row[4])})
			}
		}
	}
	return d
}

// Size is one template as the tool lists it.
type Size struct {
	Name  string
	Cores int
	GB    int
}

var sizeLine = regexp.MustCompile(`^[\s|]*(vir[0-9a-z_]{1,30})\s+(\d{1,4})\s+(\d{1,4})\s`)

// ParseSizes reads `npu-smi info -t template-info`.
func ParseSizes(out string) []Size {
	var sizes []Size
	for line := range strings.Lines(out) {
		m := sizeLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cores, _ := whole(m[2])
		gb, _ := whole(m[3])
		if cores > 0 && gb > 0 && !slices.ContainsFunc(sizes, func(s Size) bool { return s.Name == m[1] }) {
			sizes = append(sizes, Size{Name: m[1], Cores: cores, GB: gb})
		}
	}
	return sizes
}

// Result is what `npu-smi set` answers.
type Result struct {
	OK      bool
	Message string
	// VNPU is the number of the virtual NPU that the message names, 0 when it names none: creating one does not tell it.
	VNPU int
}

var vnpuInMessage = regexp.MustCompile(`(?i)\bvnpu (\d{1,9})\b`)

// ParseResult reads the answer of `npu-smi set`.
func ParseResult(out string) Result {
	var r Result
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "Status":
			r.OK = value == "OK"
		case "Message":
			r.Message = value
			if m := vnpuInMessage.FindStringSubmatch(value); m != nil {
				r.VNPU, _ = whole(m[1])
			}
		}
	}
	return r
}
