package engine

import (
	"strings"

	"github.com/heteroflow/heteroflow/internal/constraint"
)

// nodeCode says why a node does not come into question for the group, whatever cards it has.
func (w *work) nodeCode(i int) Code {
	n := &w.snap.Nodes[i]
	switch {
	case !n.Ready:
		return CodeOffline
	case !n.serves(w.req.Tenant):
		return CodeTenant
	case !inDatacenter(n.Datacenter, w.req.Datacenters):
		return CodeDatacenter
	case !inNodePool(n.pool(), w.req.NodePool):
		return CodeNodePool
	case failedConstraint(n, w.ask.Constraints) != nil:
		return CodeConstraint
	case missingDriver(n, w.ask.Tasks) != "":
		return CodeDriverMissing
	case missingRuntime(n, w.ask.Tasks) != "":
		return CodeRuntimeMissing
	}
	return ""
}

func inDatacenter(dc string, accepted []string) bool {
	for _, pattern := range accepted {
		if pattern == dc || pattern == "*" || strings.Contains(pattern, "*") && matchStars(pattern, dc) {
			return true
		}
	}
	return len(accepted) == 0
}

// matchStars matches a pattern in which * stands for any text, the only wildcard of a job's datacenters.
func matchStars(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(s, part)
		if at < 0 {
			return false
		}
		s = s[at+len(part):]
	}
	return strings.HasSuffix(s, last)
}

func inNodePool(pool, wanted string) bool {
	switch wanted {
	case "":
		return pool == "default"
	case "all":
		return true
	}
	return pool == wanted
}

// failedConstraint is the first constraint that the node does not satisfy, nil when it satisfies all.
func failedConstraint(n *Node, constraints []Constraint) *Constraint {
	for i := range constraints {
		c := &constraints[i]
		left, leftFound := constraint.Resolve(c.L, n.value)
		right, rightFound := constraint.Resolve(c.R, n.value)
		if !constraint.Check(c.Operand, left, right, leftFound, rightFound) {
			return c
		}
	}
	return nil
}

// missingDriver is the first task driver that the node does not have, empty when it has all.
func missingDriver(n *Node, tasks []TaskAsk) string {
	for i := range tasks {
		if d := tasks[i].Driver; d != "" && !n.Drivers[d] {
			return d
		}
	}
	return ""
}

// missingRuntime is the first runtime that a task needs and the node's driver does not have, empty when it has all or
// does not say.
func missingRuntime(n *Node, tasks []TaskAsk) string {
	if len(n.Runtimes) == 0 {
		return ""
	}
	for i := range tasks {
		if r := tasks[i].Runtime; r != "" && !n.Runtimes[r] {
			return r
		}
	}
	return ""
}
