package nvidia

import (
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// handle is what the line says by which the tool names a card it cannot talk to. It stands alone or between valid rows.
const handle = "device handle for GPU"

// lostCard reads that line; none is false for any other. Behind the handle stands the address, in three spellings:
// "GPU 0000:05:00.0", "GPU0000:02:00.0", "GPU0: 0000:24:00.0". Only the address names the card: the number before it counts
// calls, not cards, in some versions.
func lostCard(line string) (lost gpu, ok bool) {
	_, rest, named := strings.Cut(line, handle)
	if !named {
		return gpu{}, false
	}
	rest = strings.TrimSpace(rest)
	if number, behind, parted := strings.Cut(rest, ": "); parted && number != "" && strings.Trim(number, "0123456789") == "" {
		lost.index, rest = whole(number), strings.TrimSpace(behind)
	}
	const place = ":00:00.0" // behind the domain
	end := strings.IndexByte(rest, ':') + len(place)
	if end < len("0000")+len(place) || end > len(rest) {
		return gpu{}, false
	}
	why, told := strings.CutPrefix(strings.TrimSpace(rest[end:]), ":")
	if lost.pci = toolout.PCI(rest[:end]); lost.pci == "" || !told {
		return gpu{}, false
	}
	why, _, _ = strings.Cut(why, ".")
	lost.dead = "nvidia-smi: " + strings.TrimSpace(why)
	return lost, true
}

// parse reads whatever nvidia-smi printed. It goes by the content and not by the arguments of the call, since an old
// or a wrapped tool may print another form than the one asked for. ok is false when nothing in it is known.
func parse(out string) (r report, ok bool) {
	var lost []gpu
	told := map[string]bool{}
	for line := range strings.Lines(out) {
		switch complaintOf(line) {
		case lostBoard:
			if l, _ := lostCard(line); !told[l.pci] && len(lost) < maxBoards {
				lost = append(lost, l)
				told[l.pci] = true
			}
		case noDriver:
			r.noDriver = true
		case noDevices:
			r.noDevices = true
		}
	}
	content := report{}
	switch {
	case strings.Contains(out, "<nvidia_smi_log"):
		content, ok = parseXML(out)
	case strings.Contains(out, "NVSMI LOG"):
		content, ok = parseQuery(out)
	case strings.Contains(out, "| NVIDIA-SMI"):
		content, ok = parseTable(out)
	case has(out, "# gpu", pmonHead):
		content, ok = parsePmon(out), true
	case has(out, "GPU ", listedGPU):
		content, ok = parseList(out)
	case has(out, "NVIDIA-SMI version", versionHead):
		content = parseVersion(out)
	default:
		content, ok = parseCSV(out)
	}
	content.noDriver, content.noDevices = r.noDriver, r.noDevices
	for _, l := range lost {
		content.markLost(l)
	}
	return content, ok || len(lost) > 0 || r.noDriver || r.noDevices
}

// A complaint is what a line says that may stand alone or within any form of output.
type complaint int

const (
	none complaint = iota
	lostBoard
	noDriver
	noDevices
)

func complaintOf(line string) complaint {
	if len(line) < len(handle) {
		return none
	}
	if _, lost := lostCard(line); lost {
		return lostBoard
	}
	switch {
	case strings.Contains(line, "couldn't communicate with the NVIDIA driver"), strings.Contains(line, "Failed to initialize NVML"):
		return noDriver
	case strings.Contains(line, "No devices were found"):
		return noDevices
	}
	return none
}

// lines are the lines of a text without their ends, and without those that complain.
func lines(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if complaintOf(line) == none && !yield(strings.TrimRight(line, "\r\n")) {
				return
			}
		}
	}
}

// has tells whether a line that starts so is of a form.
func has(text, start string, form *regexp.Regexp) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, start) && form.MatchString(line) {
			return true
		}
	}
	return false
}

var versionHead = regexp.MustCompile(`^NVIDIA-SMI version\s*:`)

// parseVersion reads `nvidia-smi --version`: it tells no card. Newer drivers call theirs the kernel mode driver's.
func parseVersion(out string) report {
	var r report
	for p := range toolout.Pairs(out) {
		value := text(p.Value)
		if value == "" || value[0] < '0' || value[0] > '9' { // deprecated, and where to look instead
			continue
		}
		switch p.Key {
		case "DRIVER version", "KMD version":
			first(&r.driver, value)
		case "CUDA version", "CUDA UMD version":
			first(&r.cuda, value)
		}
	}
	return r
}

// markLost notes a card that an error line names. The card is known by its address alone: the index in the line is
// taken only when no other card has it.
func (r *report) markLost(l gpu) {
	if i := slices.IndexFunc(r.gpus, func(g gpu) bool { return g.pci != "" && g.pci == l.pci }); i >= 0 {
		first(&r.gpus[i].dead, l.dead)
		return
	}
	if l.index != nil && slices.ContainsFunc(r.gpus, func(g gpu) bool { return g.index != nil && *g.index == *l.index }) {
		l.index = nil
	}
	r.add(l)
}
