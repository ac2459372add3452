// Package constraint answers whether a node or a device group satisfies the constraints and affinities of a job,
// by the rules of Nomad's scheduler: text rules for node attributes, typed rules with units for device attributes.
// It compares values only: choosing a node, counting instances and distinct_hosts or distinct_property, which
// need the other allocations, do not belong here.
package constraint
