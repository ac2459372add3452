package client

import (
	"time"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// AllocStats implements Backend. A task without a sample yet is left out: unknown is not zero.
func (c *Client) AllocStats(allocID, task string) (*api.AllocResourceUsage, error) {
	ar, err := c.runner(allocID)
	if err != nil {
		return nil, err
	}
	tasks, err := ar.selected(task)
	if err != nil {
		return nil, err
	}
	alloc, _ := ar.desired()
	out := &api.AllocResourceUsage{
		Timestamp: time.Now().UnixNano(), Tasks: map[string]*api.TaskResourceUsage{},
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{}, CpuStats: &api.CpuStats{}, DeviceStats: []*api.DeviceGroupStats{}},
	}
	for _, t := range tasks {
		s := t.stats.Load()
		if s == nil {
			continue
		}
		usage := resourceUsage(s.GetAggResourceUsage())
		if r := taskResources(alloc, t.task.Name); r != nil {
			usage.DeviceStats = c.deviceStats(r.Devices)
		}
		pids := map[string]*api.ResourceUsage{}
		for pid, u := range s.GetResourceUsageByPid() {
			pids[pid] = resourceUsage(u)
		}
		out.Tasks[t.task.Name] = &api.TaskResourceUsage{ResourceUsage: usage, Timestamp: s.GetTimestamp().AsTime().UnixNano(), Pids: pids}
		addUsage(out.ResourceUsage, usage)
	}
	return out, nil
}

func resourceUsage(u *driverpb.TaskResourceUsage) *api.ResourceUsage {
	cpu, mem := u.GetCpu(), u.GetMemory()
	out := &api.ResourceUsage{
		CpuStats: &api.CpuStats{
			SystemMode: cpu.GetSystemMode(), UserMode: cpu.GetUserMode(), TotalTicks: cpu.GetTotalTicks(),
			ThrottledPeriods: cpu.GetThrottledPeriods(), ThrottledTime: cpu.GetThrottledTime(), Percent: cpu.GetPercent(), Measured: []string{},
		},
		MemoryStats: &api.MemoryStats{
			RSS: mem.GetRss(), Cache: mem.GetCache(), Swap: mem.GetSwap(), Usage: mem.GetUsage(), MaxUsage: mem.GetMaxUsage(),
			KernelUsage: mem.GetKernelUsage(), KernelMaxUsage: mem.GetKernelMaxUsage(), Measured: []string{},
		},
		DeviceStats: []*api.DeviceGroupStats{},
	}
	cpuNames := map[driverpb.CPUUsage_Fields]string{
		driverpb.CPUUsage_SYSTEM_MODE: "System Mode", driverpb.CPUUsage_USER_MODE: "User Mode", driverpb.CPUUsage_TOTAL_TICKS: "Total Ticks",
		driverpb.CPUUsage_THROTTLED_PERIODS: "Throttled Periods", driverpb.CPUUsage_THROTTLED_TIME: "Throttled Time", driverpb.CPUUsage_PERCENT: "Percent",
	}
	memNames := map[driverpb.MemoryUsage_Fields]string{
		driverpb.MemoryUsage_RSS: "RSS", driverpb.MemoryUsage_CACHE: "Cache", driverpb.MemoryUsage_MAX_USAGE: "Max Usage",
		driverpb.MemoryUsage_KERNEL_USAGE: "Kernel Usage", driverpb.MemoryUsage_KERNEL_MAX_USAGE: "Kernel Max Usage",
		driverpb.MemoryUsage_USAGE: "Usage", driverpb.MemoryUsage_SWAP: "Swap",
	}
	for _, f := range cpu.GetMeasuredFields() {
		out.CpuStats.Measured = append(out.CpuStats.Measured, cpuNames[f])
	}
	for _, f := range mem.GetMeasuredFields() {
		out.MemoryStats.Measured = append(out.MemoryStats.Measured, memNames[f])
	}
	return out
}

// addUsage adds a task to the allocation's sum. What any task measured counts as measured.
func addUsage(sum, u *api.ResourceUsage) {
	s, c := sum.CpuStats, u.CpuStats
	s.SystemMode += c.SystemMode
	s.UserMode += c.UserMode
	s.TotalTicks += c.TotalTicks
	s.ThrottledPeriods += c.ThrottledPeriods
	s.ThrottledTime += c.ThrottledTime
	s.Percent += c.Percent
	s.Measured = union(s.Measured, c.Measured)
	m, n := sum.MemoryStats, u.MemoryStats
	m.RSS += n.RSS
	m.Cache += n.Cache
	m.Swap += n.Swap
	m.Usage += n.Usage
	m.MaxUsage += n.MaxUsage
	m.KernelUsage += n.KernelUsage
	m.KernelMaxUsage += n.KernelMaxUsage
	m.Measured = union(m.Measured, n.Measured)
	sum.DeviceStats = append(sum.DeviceStats, u.DeviceStats...)
}

func union(a, b []string) []string {
	seen := map[string]bool{}
	out := []string{}
	for _, list := range [][]string{a, b} {
		for _, s := range list {
			if !seen[s] {
				seen[s] = true
				out = append(out, s)
			}
		}
	}
	return out
}

// deviceStats picks the samples of allocated instances.
func (c *Client) deviceStats(devices []*api.AllocatedDeviceResource) []*api.DeviceGroupStats {
	out := []*api.DeviceGroupStats{}
	for _, d := range devices {
		for _, g := range c.allDeviceStats() {
			if g.Vendor != d.Vendor || g.Type != d.Type || g.Name != d.Name {
				continue
			}
			picked := &api.DeviceGroupStats{Vendor: g.Vendor, Type: g.Type, Name: g.Name, InstanceStats: map[string]*api.DeviceStats{}}
			for _, id := range d.DeviceIDs {
				if s := g.InstanceStats[id]; s != nil {
					picked.InstanceStats[id] = s
				}
			}
			out = append(out, picked)
		}
	}
	return out
}

func (c *Client) allDeviceStats() []*api.DeviceGroupStats {
	out := []*api.DeviceGroupStats{}
	for _, d := range c.devices {
		_, stats := d.state()
		for _, g := range stats {
			out = append(out, groupStats(g))
		}
	}
	return out
}

func groupStats(g *devicepb.DeviceGroupStats) *api.DeviceGroupStats {
	out := &api.DeviceGroupStats{Vendor: g.GetVendor(), Type: g.GetType(), Name: g.GetName(), InstanceStats: map[string]*api.DeviceStats{}}
	for id, s := range g.GetInstanceStats() {
		if s.GetTimestamp().IsValid() {
			out.InstanceStats[id] = &api.DeviceStats{Summary: statValue(s.GetSummary()), Stats: statObject(s.GetStats()), Timestamp: s.GetTimestamp().AsTime()}
		}
	}
	return out
}

func statObject(o *structspb.StatObject) *api.StatObject {
	if o == nil {
		return nil
	}
	out := &api.StatObject{Nested: map[string]*api.StatObject{}, Attributes: map[string]*api.StatValue{}}
	for k, v := range o.GetNested() {
		out.Nested[k] = statObject(v)
	}
	for k, v := range o.GetAttributes() {
		out.Attributes[k] = statValue(v)
	}
	return out
}

func statValue(v *structspb.StatValue) *api.StatValue {
	if v == nil {
		return nil
	}
	out := &api.StatValue{Unit: v.GetUnit(), Desc: v.GetDesc()}
	float := func(w *wrapperspb.DoubleValue) *float64 {
		if w == nil {
			return nil
		}
		return &w.Value
	}
	whole := func(w *wrapperspb.Int64Value) *int64 {
		if w == nil {
			return nil
		}
		return &w.Value
	}
	out.FloatNumeratorVal, out.FloatDenominatorVal = float(v.GetFloatNumeratorVal()), float(v.GetFloatDenominatorVal())
	out.IntNumeratorVal, out.IntDenominatorVal = whole(v.GetIntNumeratorVal()), whole(v.GetIntDenominatorVal())
	if v.GetStringVal() != nil {
		out.StringVal = &v.StringVal.Value
	}
	if v.GetBoolVal() != nil {
		out.BoolVal = &v.BoolVal.Value
	}
	return out
}
