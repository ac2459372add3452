package nvidia

import (
	"regexp"
	"strings"
)

var (
	listedGPU = regexp.MustCompile(`^GPU (\d+): (.*?)\s*\(UUID: ([^)]+)\)\s*$`)
	listedMIG = regexp.MustCompile(`^\s+MIG (\S+)\s+Device\s+(\d+):\s*\(UUID: ([^)]+)\)\s*$`)
)

// parseList reads `nvidia-smi -L`: the only form that names the profiles of partitions.
func parseList(out string) (report, bool) {
	var r report
	for line := range lines(out) {
		if m := listedGPU.FindStringSubmatch(line); m != nil {
			g := gpu{index: whole(m[1]), name: text(m[2]), uuid: text(m[3])}
			if strings.TrimSpace(m[2]) == "ERR!" {
				g.dead = reasonERR
			}
			if len(r.gpus) == maxBoards {
				break
			}
			r.gpus = append(r.gpus, g)
			continue
		}
		m := listedMIG.FindStringSubmatch(line)
		if m == nil || len(r.gpus) == 0 {
			continue
		}
		last := &r.gpus[len(r.gpus)-1]
		if device := whole(m[2]); device != nil {
			last.split(mig{profile: m[1], device: *device, uuid: text(m[3])})
		}
	}
	return r, len(r.gpus) > 0
}
