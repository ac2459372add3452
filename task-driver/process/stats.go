package process

import (
	"os"

	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// ticksPerSecond is the unit of times in /proc, fixed at 100 for user space on every Linux architecture Go runs on.
const ticksPerSecond = 100

// Usage is what one process has used so far.
type Usage struct {
	PID           int
	UserSeconds   float64
	SystemSeconds float64
	RSSBytes      uint64
}

// Usages is what the processes of a task's session have used.
func Usages(stats []supervisor.Stat) []Usage {
	all := make([]Usage, 0, len(stats))
	for _, s := range stats {
		all = append(all, Usage{
			PID:           s.PID,
			UserSeconds:   float64(s.UserTicks) / ticksPerSecond,
			SystemSeconds: float64(s.SystemTicks) / ticksPerSecond,
			RSSBytes:      s.RSSPages * uint64(os.Getpagesize()),
		})
	}
	return all
}
