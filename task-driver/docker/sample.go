package docker

import (
	"time"

	"github.com/heteroflow/heteroflow/task-driver/cgroup"
)

// stats is the part of the daemon's statistics that is read. The whole is several kilobytes, once a second and task: what
// is not named here is skipped and not kept.
type stats struct {
	Read time.Time `json:"read"`
	CPU  struct {
		Usage struct {
			Total  uint64 `json:"total_usage"`
			User   uint64 `json:"usage_in_usermode"`
			Kernel uint64 `json:"usage_in_kernelmode"`
		} `json:"cpu_usage"`
		Throttled struct {
			Periods uint64 `json:"throttled_periods"`
			TimeNS  uint64 `json:"throttled_time"`
		} `json:"throttling_data"`
	} `json:"cpu_stats"`
	Memory struct {
		Usage uint64 `json:"usage"`
		Max   uint64 `json:"max_usage"` // cgroup v1
		Parts struct {
			Cache  *uint64 `json:"cache"` // cgroup v1, as the two below
			RSS    *uint64 `json:"rss"`
			Swap   *uint64 `json:"swap"`
			File   *uint64 `json:"file"` // cgroup v2, as the next
			Anon   *uint64 `json:"anon"`
			Kernel *uint64 `json:"kernel"`
		} `json:"stats"`
	} `json:"memory_stats"`
}

// use is the statistics as the daemon read them from the container's control group.
func (s stats) use() cgroup.Use {
	parts := s.Memory.Parts
	out := cgroup.Use{
		At: s.Read.UTC(), CPUTotalNS: s.CPU.Usage.Total, CPUUserNS: s.CPU.Usage.User, CPUSysNS: s.CPU.Usage.Kernel,
		ThrottledPeriods: s.CPU.Throttled.Periods, ThrottledNS: s.CPU.Throttled.TimeNS,
		MemoryUsage: s.Memory.Usage, MemoryCache: first(parts.Cache, parts.File), MemoryRSS: first(parts.RSS, parts.Anon),
		MemorySwap: parts.Swap, KernelUsage: parts.Kernel,
	}
	if s.Memory.Max > 0 {
		out.MemoryMax = &s.Memory.Max
	}
	return out
}

// first is the first number that was told; nil when none was.
func first(all ...*uint64) *uint64 {
	for _, v := range all {
		if v != nil {
			return v
		}
	}
	return nil
}
