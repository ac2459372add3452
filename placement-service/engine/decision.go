package engine

import (
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Decision is the answer to a request: every group placed, or a refusal and nothing placed.
type Decision struct {
	Placed bool        `json:"placed"`
	Groups []GroupPlan `json:"groups,omitempty"` // in the order of the request; empty unless Placed
	Gang   []Member    `json:"gang,omitempty"`   // of a placed gang, in the order of ranks
	// Switches are the cards whose form has to change before the request fits. Nothing is placed then.
	Switches []Switch `json:"switches,omitempty"`
	Refusal  *Refusal `json:"refusal,omitempty"` // nil when Placed
	Scores   []Score  `json:"scores,omitempty"`  // of the chosen places, for the audit
	Faults   []Fault  `json:"faults,omitempty"`  // plugins that failed meanwhile
	// Suggestions are changes with which a refused request would start now; Decide looks for none.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
}

// GroupPlan is where one group may run and what its tasks take there. All allocations of a group share one
// specification, so that the blocks are the same for each.
type GroupPlan struct {
	Name       string      `json:"name"`
	Nodes      []string    `json:"nodes,omitempty"` // ids of the nodes that may be used, sorted; empty when loose
	Tasks      []TaskShape `json:"tasks"`           // tasks with an ask, in the order of the group
	Placements []Placement `json:"placements,omitempty"`
}

// TaskShape is what one task takes in every allocation.
type TaskShape struct {
	Task   string    `json:"task"`
	Ask    accel.Ask `json:"ask"`
	QoS    accel.QoS `json:"qos"` // asked for, or the weakest of what the allowed cards give
	Blocks []Block   `json:"blocks"`
	// RoundedMiB is the memory of each share as it will be made, and RoundedBy the mode that makes no other size; zero where
	// every size is made.
	RoundedMiB uint64     `json:"rounded_mib,omitempty"`
	RoundedBy  accel.Mode `json:"rounded_by,omitempty"`
}

// Block is one device block: count instances of one device group among those allowed.
type Block struct {
	Device string  `json:"device"` // Nomad device id: type, vendor/type or vendor/type/name
	Count  int     `json:"count"`
	Allow  []Allow `json:"allow"` // never empty; a group must satisfy all of them
}

// Allow lists values of which a device group must have one.
type Allow struct {
	Attribute string   `json:"attribute"` // target, such as "${device.attr.uuid}"
	Values    []string `json:"values"`    // sorted
	// Measure means that the one value is an amount with a unit, to be compared as such and not as text.
	Measure bool `json:"measure,omitempty"`
}

// Placement is one allocation.
type Placement struct {
	NodeID string          `json:"node_id"`
	Tasks  []TaskPlacement `json:"tasks"`
}

// TaskPlacement is what one task of one allocation takes.
type TaskPlacement struct {
	Task   string  `json:"task"`
	Claims []Claim `json:"claims"`
}

// Claim is a number of instances of one pool of the placement's node.
type Claim struct {
	Group string `json:"group"`
	Units int    `json:"units"`
	// Cards are the UUIDs of the cards where the plan names them, which it does where their links matter.
	Cards []string `json:"cards,omitempty"`
}

// Switch is a card that has to be offered in another form.
type Switch struct {
	NodeID   string     `json:"node_id"`
	CardUUID string     `json:"card_uuid"`
	To       accel.Form `json:"to"`
}

// Score is what one chosen place was worth, 0–100 for each plugin before its weight.
type Score struct {
	Group   string             `json:"group"`
	NodeID  string             `json:"node_id"`
	Total   float64            `json:"total"`
	Plugins map[string]float64 `json:"plugins"`
}

// Refusal is why a request does not fit.
type Refusal struct {
	Code     Code   `json:"code"`
	Sentence string `json:"sentence"`        // need, best card and gap, for people
	Group    string `json:"group,omitempty"` // the task group that does not fit
	Task     string `json:"task,omitempty"`
	// Never means that the request cannot fit even when everything ends: it is to be refused, not to wait.
	Never  bool          `json:"never,omitempty"`
	Counts []ReasonCount `json:"counts,omitempty"` // every node has exactly one reason; in the order of the checks
	Need   string        `json:"need,omitempty"`
	Best   string        `json:"best,omitempty"` // empty when no card comes near
	Gap    string        `json:"gap,omitempty"`
}

// ReasonCount is how many nodes fail for one reason.
type ReasonCount struct {
	Code    Code   `json:"code"`
	Nodes   int    `json:"nodes"`
	Example string `json:"example,omitempty"` // one of the nodes, with what it lacks
}

// Code is a stable reason code.
type Code string

// Reason codes, in the order in which a node is checked: a later one is nearer to fitting.
const (
	CodeNoNodes        Code = "no_nodes"        // the cluster has no nodes
	CodeOffline        Code = "offline"         // down, draining or not eligible
	CodeTenant         Code = "tenant"          // kept for other tenants
	CodeDatacenter     Code = "datacenter"      // in no datacenter of the job
	CodeNodePool       Code = "node_pool"       // in another node pool
	CodeConstraint     Code = "constraint"      // a constraint of the job does not hold
	CodeDriverMissing  Code = "driver_missing"  // a task driver is not there or not healthy
	CodeRuntimeMissing Code = "runtime_missing" // the driver there cannot run the task: no Docker, or no plain processes
	CodeNoCards        Code = "no_cards"        // the node offers no accelerator
	CodeBrand          Code = "brand"           // no card of an accepted brand
	CodeModel          Code = "model"           // no card of an accepted model
	CodeForm           Code = "form"            // cards are offered in a form that does not serve the ask
	CodeQoS            Code = "qos"             // cards cannot isolate as asked
	CodeShareTenant    Code = "share_tenant"    // what is free is beside shares of another tenant
	CodeLoad           Code = "load"            // what has room is busier, fuller or hotter than its limit
	CodeMemory         Code = "memory"          // no card has enough free memory
	CodeCount          Code = "count"           // too few free cards
	CodeModelsDiffer   Code = "models_differ"   // enough free cards, but of different models
	CodeCPU            Code = "cpu"             // too little processor beside the cards
	CodeNodeMemory     Code = "node_memory"     // too little main memory beside the cards
	CodeDisk           Code = "disk"            // too little disk for the group's ephemeral disk
	CodeDistinctHosts  Code = "distinct_hosts"  // the node has an allocation of the job already
	CodeAntiAffinity   Code = "anti_affinity"   // its failure domain has as many allocations as may be there, or it is in none
	CodeOneNode        Code = "one_node"        // the group's tasks fit one by one, but not together on one node
	CodeOneSpec        Code = "one_spec"        // fits alone, but not under one specification for all allocations
	CodeFormSwitch     Code = "form_switch"     // a card has to change its form first
	CodeGangIncomplete Code = "gang_incomplete" // some members of the gang would fit, and none starts without the others
	CodeGangLevel      Code = "gang_level"      // no node says in which domain of the level it lies
	CodePluginFailed   Code = "plugin_failed"   // a plugin that filters panicked
)

// codes lists the reasons of a node in the order in which they are checked.
var codes = []Code{
	CodeOffline, CodeTenant, CodeDatacenter, CodeNodePool, CodeConstraint, CodeDriverMissing, CodeRuntimeMissing, CodeNoCards, CodeBrand, CodeModel, CodeForm,
	CodeQoS, CodeShareTenant, CodeLoad, CodeMemory, CodeCount, CodeModelsDiffer, CodeCPU, CodeNodeMemory, CodeDisk, CodeDistinctHosts, CodeAntiAffinity,
	CodeOneNode, CodeOneSpec,
}

// rank is the place of a code in that order. A code of somebody's own plugin comes after the built-in ones.
func rank(c Code) int {
	if i := slices.Index(codes, c); i >= 0 {
		return i
	}
	return len(codes)
}
