package nvidia

import (
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// lostLine is the line by which the tool names a card it cannot talk to. It stands alone or between valid rows, and
// the address comes in three spellings: "GPU 0000:05:00.0", "GPU0000:02:00.0", "GPU0: 0000:24:00.0".
var lostLine = regexp.MustCompile(`device handle for GPU\s*(?:(\d+):\s+)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\s*:\s*([^.\n]*)`)

// maxLost bounds the lost cards that are taken of one text: no machine has so many.
const maxLost = 128

// parse reads whatever nvidia-smi printed. It goes by the content and not by the arguments of the call, since an old
// or a wrapped tool may print another form than the one asked for. ok is false when nothing in it is known.
func parse(out string) (r report, ok bool) {
	out = strings.ReplaceAll(out, "\r\n", "\n")
	var lost []gpu
	var kept []string
	told := map[string]bool{}
	for _, line := range strings.Split(out, "\n") {
		var m []string
		if strings.Contains(line, "device handle for GPU") {
			m = lostLine.FindStringSubmatch(line)
		}
		switch {
		case m != nil && (told[m[2]] || len(lost) == maxLost):
		case m != nil:
			// Only the address names the card: the number before it counts calls, not cards, in some versions.
			lost = append(lost, gpu{index: whole(m[1]), pci: pciAddress(m[2]), dead: "nvidia-smi: " + strings.TrimSpace(m[3])})
			told[m[2]] = true
		case strings.Contains(line, "couldn't communicate with the NVIDIA driver"),
			strings.Contains(line, "Failed to initialize NVML"):
			r.noDriver = true
		case strings.Contains(line, "No devices were found"):
			r.noDevices = true
		default:
			kept = append(kept, line)
		}
	}
	rest := strings.Join(kept, "\n")
	content := report{}
	switch {
	case strings.Contains(rest, "<nvidia_smi_log"):
		content, ok = parseXML(rest)
	case strings.Contains(rest, "NVSMI LOG"):
		content, ok = parseQuery(rest)
	case strings.Contains(rest, "| NVIDIA-SMI"):
		content, ok = parseTable(rest)
	case pmonHead.MatchString(rest):
		content, ok = parsePmon(rest), true
	case listedGPU.MatchString(rest):
		content, ok = parseList(rest)
	case versionHead.MatchString(rest):
		content = parseVersion(rest)
	default:
		content, ok = parseCSV(rest)
	}
	content.noDriver, content.noDevices = r.noDriver, r.noDevices
	for _, l := range lost {
		content.markLost(l)
	}
	return content, ok || len(lost) > 0 || r.noDriver || r.noDevices
}

var versionHead = regexp.MustCompile(`(?m)^NVIDIA-SMI version\s*:`)

// parseVersion reads `nvidia-smi --version`: it tells no card. Newer drivers call theirs the kernel mode driver's.
func parseVersion(out string) report {
	var r report
	for _, p := range toolout.Pairs(out) {
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
	r.gpus = append(r.gpus, l)
}
