package engine

import (
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Plugin is one part of the pipeline. A plugin is a FilterPlugin, a RoomPlugin, a ScorePlugin or several of them; it
// is a pure function of the candidate and keeps nothing.
type Plugin interface {
	// Name is the stable name by which the plugin is switched and weighted.
	Name() string
}

// FilterPlugin refuses pools for what they are. It is asked once for each task and pool of a decision.
type FilterPlugin interface {
	Plugin
	// Filter answers with the reason why the pool cannot serve the task, empty when it can.
	Filter(c *Candidate) Code
}

// RoomPlugin refuses pools for what is free. It is asked again whenever something was taken.
type RoomPlugin interface {
	Plugin
	// Room answers with the reason why there is no room, empty when there is.
	Room(c *Candidate) Code
}

// ScorePlugin says how good a pool is for a task, 0–100.
type ScorePlugin interface {
	Plugin
	Score(c *Candidate) float64
}

// Candidate is one task held against one pool of one node. Plugins read it and change nothing.
type Candidate struct {
	Request *Request
	Group   *GroupAsk
	Task    *TaskAsk
	Node    *Node
	Pool    *Pool

	Units         int    // instances the task would take from the pool, for all allocations that must be there; 0 in Filter
	Allocations   int    // how many allocations that is, at least 1; 0 in Filter
	FreeUnits     int    // instances free now, what this decision took so far left out
	FreeCPUMHz    int    // of the node
	FreeMemoryMiB int    // of the node
	FreeDiskMiB   int    // of the node; says nothing when the node's DiskMiB is 0
	NodeUsedMiB   uint64 // card memory of the node that is taken
	NodeTotalMiB  uint64 // card memory of the node
	Here          int    // allocations of the job that this decision put on the node

	models map[string]bool // what Ask.AcceptsModel said, by model
	work   *work           // that asks; nil outside of a decision
	node   int             // number in the snapshot
	pool   int             // number in the snapshot
}

// AcceptsModel is Task.Ask.AcceptsModel, remembered for the decision.
func (c *Candidate) AcceptsModel(model string) bool {
	if len(c.Task.Ask.Models) == 0 {
		return true
	}
	ok, known := c.models[model]
	if !known {
		ok = c.Task.Ask.AcceptsModel(model)
		if c.models != nil {
			c.models[model] = ok
		}
	}
	return ok
}

// registry lists the built-in plugins in the order in which they are asked. A new one is one more line.
func registry(cfg Config) []registered {
	return append([]registered{
		{gpuFilter{}, PluginSetting{Name: "gpu_filter", Enabled: true}},
		{shareTenant{}, PluginSetting{Name: "share_tenant", Enabled: true}},
		{loadLimit{limits: cfg.limits()}, PluginSetting{Name: LoadPlugin, Enabled: false, Limits: DefaultLimits()}},
		{resourceFilter{}, PluginSetting{Name: "resource_filter", Enabled: true}},
		{potentialScore{learnt: cfg.Learnt, level: cfg.Level}, PluginSetting{Name: "potential", Enabled: true, Weight: 1}},
		{binpack{}, PluginSetting{Name: "binpack", Enabled: false, Weight: 1}},
		{spread{}, PluginSetting{Name: "spread", Enabled: false, Weight: 1}},
	}, linkPlugins()...)
}

type registered struct {
	plugin  Plugin
	setting PluginSetting
}

// DefaultPlugins lists the built-in plugins with their default settings, in the order in which they are asked.
func DefaultPlugins() []PluginSetting {
	var out []PluginSetting
	for _, r := range registry(Config{}) {
		out = append(out, r.setting)
	}
	return out
}

// tier is the strongest isolation a share of the pool has. A card that is taken whole has no neighbours.
func tier(p *Pool) accel.QoS { return accel.QoSOf(p.Form, p.Modes) }

// strength orders qualities of service; 0 is none asked for.
func strength(q accel.QoS) int {
	switch q {
	case accel.Gold:
		return 3
	case accel.Silver:
		return 2
	case accel.Bronze:
		return 1
	}
	return 0
}
