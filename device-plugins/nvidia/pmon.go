package nvidia

import (
	"regexp"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

var pmonHead = regexp.MustCompile(`^# gpu\s+pid\s+type\b`)

// parsePmon reads `nvidia-smi pmon`: the compute processes of each board, each once however often it was looked at.
func parsePmon(out string) report {
	r := report{processesKnown: true}
	type run struct{ index, pid int }
	seen := map[run]bool{}
	var words []string
	for line := range lines(out) {
		words = toolout.AppendWords(words[:0], line)
		if len(words) < 4 || words[2] != "C" && words[2] != "C+G" && words[2] != "M+C" {
			continue
		}
		index, pid := whole(words[0]), whole(words[1])
		if index == nil || pid == nil || seen[run{*index, *pid}] {
			continue
		}
		seen[run{*index, *pid}] = true
		if r.processes = append(r.processes, process{index: index, pid: *pid}); len(r.processes) == maxProcesses {
			break
		}
	}
	return r
}
