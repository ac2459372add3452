package constraint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Device group targets beside ${device.attr.…}.
const (
	deviceModel  = "device.model"
	deviceVendor = "device.vendor"
	deviceType   = "device.type"
	deviceIDs    = "device.ids"
)

// DeviceNamed reports whether a group is one that the name of a device block asks for: a type, vendor/type or
// vendor/type/name. The name may contain slashes; comparison is exact.
func DeviceNamed(group *api.NodeDeviceResource, name string) bool {
	parts := strings.SplitN(name, "/", 3)
	switch len(parts) {
	case 1:
		return group.Type == parts[0]
	case 2:
		return group.Vendor == parts[0] && group.Type == parts[1]
	default:
		return group.Vendor == parts[0] && group.Type == parts[1] && group.Name == parts[2]
	}
}

// Group reports whether a device group satisfies every constraint of a device block, and the first it does not.
func Group(group *api.NodeDeviceResource, constraints []*api.Constraint) (ok bool, failed *api.Constraint) {
	for _, c := range constraints {
		if !CheckDevice(c.Operand, deviceTarget(group, c.LTarget), deviceTarget(group, c.RTarget)) {
			return false, c
		}
	}
	return true, nil
}

// GroupAffinity scores a device group for the affinities of a device block, −1 to 1, 0 without affinities.
func GroupAffinity(group *api.NodeDeviceResource, affinities []*api.Affinity) float64 {
	return affinityScore(affinities, func(a *api.Affinity) bool {
		return CheckDevice(a.Operand, deviceTarget(group, a.LTarget), deviceTarget(group, a.RTarget))
	})
}

// Instances keeps the ids that the constraints on ${device.ids} allow, in the order given. Without such a
// constraint that is all of them.
func Instances(ids []string, constraints []*api.Constraint) []string {
	allowed := func(id string) bool {
		for _, c := range constraints {
			if key, _ := Key(c.LTarget); key != deviceIDs {
				continue
			}
			one := &api.NodeDeviceResource{Instances: []*api.NodeDevice{{ID: id}}}
			if !CheckDevice(c.Operand, deviceTarget(one, c.LTarget), deviceTarget(one, c.RTarget)) {
				return false
			}
		}
		return true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !allowed(id) })
}

// deviceTarget resolves one side of a device constraint: nil when the group has no such attribute. Node targets
// do not resolve here.
func deviceTarget(group *api.NodeDeviceResource, target string) *api.Attribute {
	key, ok := Key(target)
	if !ok {
		return ParseAttribute(target)
	}
	switch key {
	case deviceModel:
		return text(group.Name)
	case deviceVendor:
		return text(group.Vendor)
	case deviceType:
		return text(group.Type)
	case deviceIDs:
		ids := make([]string, len(group.Instances))
		for i, instance := range group.Instances {
			ids[i] = instance.ID
		}
		return text(strings.Join(ids, ","))
	}
	if name, ok := strings.CutPrefix(key, "device.attr."); ok {
		return group.Attributes[name]
	}
	return nil
}

func text(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }

// CheckDevice compares two device attributes; nil is a side without a value. Numbers are compared after
// conversion of their units, a number with a unit never equals one without, and text never equals a number:
// such pairs satisfy no operand at all, not even "!=".
func CheckDevice(operand string, left, right *api.Attribute) bool {
	switch operand {
	case "!=", "not":
		if left == nil || right == nil {
			return left != right
		}
		c, comparable := compareAttributes(left, right)
		return comparable && c != 0
	case api.ConstraintAttributeIsSet:
		return left != nil
	case api.ConstraintAttributeIsNotSet:
		return left == nil
	}
	if left == nil || right == nil {
		return false
	}
	if operand == "" || operand == "=" || operand == "==" || operand == "is" {
		c, comparable := compareAttributes(left, right)
		return comparable && c == 0
	}
	if test, known := order(operand); known {
		c, comparable := compareAttributes(left, right)
		return comparable && left.BoolVal == nil && test(c)
	}
	l, r := left.StringVal, right.StringVal
	if operand == api.ConstraintVersion || operand == api.ConstraintSemver {
		if left.IntVal != nil && left.Unit == "" {
			number := left.String()
			l = &number
		}
	}
	return l != nil && r != nil && checkText(operand, *l, *r)
}

// compareAttributes compares two values of one kind; it reports false for pairs that have no common measure.
func compareAttributes(left, right *api.Attribute) (result int, comparable bool) {
	switch {
	case left.StringVal != nil && right.StringVal != nil:
		return cmp.Compare(*left.StringVal, *right.StringVal), true
	case left.BoolVal != nil && right.BoolVal != nil:
		if *left.BoolVal == *right.BoolVal {
			return 0, true
		}
		return 1, true
	}
	l, leftBase, ok := measure(left)
	if !ok {
		return 0, false
	}
	r, rightBase, ok := measure(right)
	if !ok || leftBase != rightBase {
		return 0, false
	}
	return l.Cmp(r), true
}
