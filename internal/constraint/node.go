package constraint

import (
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Key is the name inside a ${…} target, such as "attr.kernel.name". It reports false for a literal.
func Key(target string) (string, bool) {
	if strings.HasPrefix(target, "${") && strings.HasSuffix(target, "}") {
		return target[2 : len(target)-1], true
	}
	return "", false
}

// Resolve gives the value of one side of a constraint: a literal stands for itself, a ${…} target is looked up by
// its key.
func Resolve(target string, lookup func(key string) (string, bool)) (string, bool) {
	key, ok := Key(target)
	if !ok {
		return target, true
	}
	return lookup(key)
}

// NodeTarget resolves one side of a constraint on a node.
func NodeTarget(node *api.Node, target string) (string, bool) {
	return Resolve(target, func(key string) (string, bool) { return nodeValue(node, key) })
}

func nodeValue(node *api.Node, key string) (string, bool) {
	switch key {
	case "node.unique.id":
		return node.ID, true
	case "node.unique.name":
		return node.Name, true
	case "node.datacenter":
		return node.Datacenter, true
	case "node.class":
		return node.NodeClass, true
	case "node.pool":
		return node.NodePool, true
	}
	if name, ok := strings.CutPrefix(key, "attr."); ok {
		v, found := node.Attributes[name]
		return v, found
	}
	if name, ok := strings.CutPrefix(key, "meta."); ok {
		v, found := node.Meta[name]
		return v, found
	}
	return "", false
}

// Node reports whether a node satisfies every constraint, and the first one it does not.
func Node(node *api.Node, constraints []*api.Constraint) (ok bool, failed *api.Constraint) {
	return All(constraints, func(key string) (string, bool) { return nodeValue(node, key) })
}

// All is Node for a node that is known by its resolved keys, such as "attr.cpu.arch" and "node.unique.id".
func All(constraints []*api.Constraint, lookup func(key string) (string, bool)) (ok bool, failed *api.Constraint) {
	for _, c := range constraints {
		left, leftFound := Resolve(c.LTarget, lookup)
		right, rightFound := Resolve(c.RTarget, lookup)
		if !Check(c.Operand, left, right, leftFound, rightFound) {
			return false, c
		}
	}
	return true, nil
}

// NodeAffinity scores a node for affinities: the sum of the weights of those that match over the sum of all
// weights without their sign, so −1 to 1, and 0 without affinities.
func NodeAffinity(node *api.Node, affinities []*api.Affinity) float64 {
	return affinityScore(affinities, func(a *api.Affinity) bool {
		left, leftFound := NodeTarget(node, a.LTarget)
		right, rightFound := NodeTarget(node, a.RTarget)
		return Check(a.Operand, left, right, leftFound, rightFound)
	})
}

// DefaultAffinityWeight is the weight of an affinity that states none.
const DefaultAffinityWeight = 50

func affinityScore(affinities []*api.Affinity, matches func(*api.Affinity) bool) float64 {
	var matched, total float64
	for _, a := range affinities {
		weight := float64(DefaultAffinityWeight)
		if a.Weight != nil {
			weight = float64(*a.Weight)
		}
		if weight < 0 {
			total -= weight
		} else {
			total += weight
		}
		if matches(a) {
			matched += weight
		}
	}
	if total == 0 {
		return 0
	}
	return matched / total
}
