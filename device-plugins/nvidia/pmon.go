package nvidia

import (
	"regexp"
	"slices"
	"strings"
)

var (
	pmonHead = regexp.MustCompile(`^# gpu\s+pid\s+type\b`)
	pmonLine = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+(C|G|C\+G|M\+C)\s`)
)

// parsePmon reads `nvidia-smi pmon`: the compute processes of each board, each once however often it was looked at.
func parsePmon(out string) report {
	r := report{processesKnown: true}
	for line := range lines(out) {
		m := pmonLine.FindStringSubmatch(line)
		if m == nil || !strings.Contains(m[3], "C") {
			continue
		}
		index, pid := whole(m[1]), whole(m[2])
		if index == nil || pid == nil || slices.ContainsFunc(r.processes, func(p process) bool { return p.pid == *pid && *p.index == *index }) {
			continue
		}
		if r.processes = append(r.processes, process{index: index, pid: *pid}); len(r.processes) == maxProcesses {
			break
		}
	}
	return r
}
