package engine

import (
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Request is what one job asks for: those of its groups that ask for accelerators.
type Request struct {
	JobID       string     `json:"job_id"`
	Namespace   string     `json:"namespace"`
	Tenant      string     `json:"tenant,omitempty"` // from the caller's identity, never from the job
	Priority    int        `json:"priority,omitempty"`
	Datacenters []string   `json:"datacenters,omitempty"` // may hold * as in Nomad; any when empty
	NodePool    string     `json:"node_pool,omitempty"`   // "default" when empty, "all" for every pool
	Groups      []GroupAsk `json:"groups,omitempty"`
	// DistinctHosts keeps all allocations of the job on different nodes.
	DistinctHosts bool `json:"distinct_hosts,omitempty"`
	// Loose is set for jobs that become allocations without passing here again (system, periodic and
	// parameterised jobs), and says which: their plan names no node and no card, only what a card must be like.
	Loose string `json:"loose,omitempty"`
	// Gang is how the groups that belong to a gang are placed together; nil when there are none.
	Gang *GangAsk `json:"gang,omitempty"`
}

// GroupAsk is one task group. CPU and memory are sums over all of its tasks, per allocation; the disk is the group's.
type GroupAsk struct {
	Name        string       `json:"name"`
	Count       int          `json:"count"`
	CPUMHz      int          `json:"cpu_mhz"`
	MemoryMiB   int          `json:"memory_mib"`
	DiskMiB     int          `json:"disk_mib,omitempty"`
	Constraints []Constraint `json:"constraints,omitempty"` // of the job, the group and its tasks together
	// DistinctHosts keeps the group's allocations on different nodes: the constraint of that name, or a static port.
	DistinctHosts bool `json:"distinct_hosts,omitempty"`
	// Apart bounds how many of the group's allocations share a failure domain, and Spread prefers them in different ones.
	Apart  []Apart   `json:"apart,omitempty"`
	Spread []Spread  `json:"spread,omitempty"`
	Tasks  []TaskAsk `json:"tasks"` // every task of the group, in order
	// Gang makes each allocation of the group a member of the request's gang.
	Gang bool `json:"gang,omitempty"`
	// Keep is the running plan. Its blocks are used again when they have room for Count, since a change of a device
	// block restarts every allocation of the group; its placements, where given, are kept as they are.
	Keep *GroupPlan `json:"keep,omitempty"`
}

// Constraint is a node constraint as a job states it, targets in ${…}.
type Constraint struct {
	L       string `json:"l"`
	R       string `json:"r"`
	Operand string `json:"op"`
}

// Apart keeps allocations out of each other's failure domain: the nodes with one value of an attribute. A node that does
// not have the attribute is in none, and serves none of them.
type Apart struct {
	Attribute string `json:"attribute"`        // target, such as "${meta.rack}"
	Most      int    `json:"most"`             // allocations for each value, at least 1
	OfJob     bool   `json:"of_job,omitempty"` // counts those of all groups of the request
}

// Spread prefers the failure domain with the fewest allocations of the group. Nodes that do not have the attribute are
// the last choice.
type Spread struct {
	Attribute string `json:"attribute"` // target, such as "${meta.rack}"
	Weight    int    `json:"weight"`    // 1–100: what it counts beside the scores of the plugins
}

// TaskAsk is one task. Ask is nil for a task that asks for no accelerator.
type TaskAsk struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
	// Runtime is what the task needs its node's driver to run: "docker" or "process". Empty for nothing, which is so for
	// every driver but ours.
	Runtime string     `json:"runtime,omitempty"`
	Ask     *accel.Ask `json:"ask,omitempty"`
}
