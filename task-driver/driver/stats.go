package driver

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/cgroup"
)

// reading is the CPU use of one thing between two looks; percent 100 is one core.
type reading struct{ user, system, percent float64 }

// meter turns counters that only grow into a rate. It belongs to one statistics stream.
type meter struct {
	mhz  float64 // of one core; 0 when unknown
	seen map[string]counter
	use  func(context.Context) (cgroup.Use, error) // of a container, found at the first look
}

type counter struct {
	at                  time.Time
	total, user, system float64 // seconds; the total is counted finer than its parts
}

// newMeter makes a meter. The speed of a core follows from what Nomad says of the task: its MHz and the part of the
// node they are.
func newMeter(cfg *driverpb.TaskConfig) *meter {
	m := &meter{seen: map[string]counter{}}
	linux := cfg.GetResources().GetLinuxResources()
	if p := linux.GetPercentTicks(); p > 0 {
		m.mhz = float64(linux.GetCpuShares()) / p / float64(cpus())
	}
	return m
}

// read notes a counter and returns the rate since the last look, nothing on the first.
func (m *meter) read(key string, now time.Time, total, user, system float64) reading {
	last, ok := m.seen[key]
	m.seen[key] = counter{now, total, user, system}
	wall := now.Sub(last.at).Seconds()
	if !ok || wall <= 0 || total < last.total || user < last.user || system < last.system {
		return reading{}
	}
	return reading{user: (user - last.user) / wall * 100, system: (system - last.system) / wall * 100, percent: (total - last.total) / wall * 100}
}

// keep forgets what is gone.
func (m *meter) keep(alive map[string]*driverpb.TaskResourceUsage) {
	for key := range m.seen {
		if alive[key] == nil {
			delete(m.seen, key)
		}
	}
}

// sum adds the rates of all processes. A process that ended between two looks takes its last use with it.
func (m *meter) sum(all map[string]*driverpb.TaskResourceUsage) reading {
	var r reading
	for _, u := range all {
		r.user += u.GetCpu().GetUserMode()
		r.system += u.GetCpu().GetSystemMode()
		r.percent += u.GetCpu().GetPercent()
	}
	return r
}

func cpuUsage(r reading, mhz float64) *driverpb.CPUUsage {
	u := &driverpb.CPUUsage{
		UserMode: r.user, SystemMode: r.system, Percent: r.percent,
		MeasuredFields: []driverpb.CPUUsage_Fields{driverpb.CPUUsage_SYSTEM_MODE, driverpb.CPUUsage_USER_MODE, driverpb.CPUUsage_PERCENT},
	}
	if mhz > 0 {
		u.TotalTicks = r.percent / 100 * mhz
		u.MeasuredFields = append(u.MeasuredFields, driverpb.CPUUsage_TOTAL_TICKS)
	}
	return u
}

func usageOf(r reading, rss uint64, mhz float64) *driverpb.TaskResourceUsage {
	return &driverpb.TaskResourceUsage{
		Cpu: cpuUsage(r, mhz),
		Memory: &driverpb.MemoryUsage{
			Rss: rss, Usage: rss, MeasuredFields: []driverpb.MemoryUsage_Fields{driverpb.MemoryUsage_RSS, driverpb.MemoryUsage_USAGE},
		},
	}
}

func taskStats(id string, at time.Time, sum *driverpb.TaskResourceUsage, byPID map[string]*driverpb.TaskResourceUsage) *driverpb.TaskStats {
	return &driverpb.TaskStats{Id: id, Timestamp: timestamppb.New(at), AggResourceUsage: sum, ResourceUsageByPid: byPID}
}

// Stats sends samples until the task or ctx ends. A sample that cannot be read is left out, not sent as zero. All tasks
// that are sampled at the same interval are sampled at the same moments, so that the driver wakes once for all of them.
func (d *Driver) Stats(ctx context.Context, id string, every time.Duration, send func(*driverpb.TaskStats) error) error {
	t, err := d.asked(id)
	if err != nil {
		return err
	}
	if every <= 0 {
		every = time.Second
	}
	m := newMeter(t.cfg)
	timer := time.NewTimer(untilNext(time.Now(), every))
	defer timer.Stop()
	for {
		sample, err := t.runtime.stats(ctx, t, m)
		switch {
		case t.hasEnded() || ctx.Err() != nil:
			return nil
		case err != nil:
			d.log.Debug("statistics not read", "task_id", id, "error", err)
		default:
			if err := send(sample); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.ended:
			return nil
		case now := <-timer.C:
			timer.Reset(untilNext(now, every))
		}
	}
}

// untilNext is the time to the next multiple of the interval that is at least half of it away: a rate over less would be
// coarse.
func untilNext(now time.Time, every time.Duration) time.Duration {
	wait := now.Truncate(every).Add(every).Sub(now)
	if wait < every/2 {
		wait += every
	}
	return wait
}
