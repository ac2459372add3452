package constraint

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func group() *api.NodeDeviceResource {
	integer := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	yes := true
	return &api.NodeDeviceResource{
		Vendor: "nvidia", Type: "vgpu", Name: "A100-1a2b3c4d",
		Instances: []*api.NodeDevice{{ID: "ca.0"}, {ID: "ca.1"}, {ID: "ca.2"}},
		Attributes: map[string]*api.Attribute{
			"memory": integer(81920, "MiB"), "index": integer(3, ""), "uuid": text("GPU-1"), "driver_version": text("535.104.05"),
			"mig": {BoolVal: &yes},
		},
	}
}

func TestGroup(t *testing.T) {
	t.Parallel()
	cases := []struct {
		left, operand, right string
		want                 bool
	}{
		{"${device.attr.memory}", ">=", "20 GiB", true},
		{"${device.attr.memory}", "=", "80GiB", true},
		{"${device.attr.memory}", ">", "85 GB", true},
		{"${device.attr.memory}", ">", "86 GB", false},
		{"${device.attr.memory}", "!=", "40", false}, // a number without unit is not comparable
		{"${device.attr.memory}", "<", "40", false},
		{"${device.attr.memory}", ">", "1 W", false},
		{"${device.attr.index}", "=", "3", true},
		{"${device.attr.index}", "<", "3.5", true},
		{"${device.attr.index}", "version", ">= 2", true},
		{"${device.attr.uuid}", "=", "GPU-1", true},
		{"${device.attr.uuid}", "!=", "12345678", false},
		{"${device.attr.uuid}", "set_contains_any", "GPU-0,GPU-1", true},
		{"${device.attr.uuid}", "regexp", "^GPU", true},
		{"${device.attr.index}", "set_contains", "3", false},
		{"${device.attr.mig}", "=", "true", true},
		{"${device.attr.mig}", "<", "true", false},
		{"${device.attr.driver_version}", "version", ">= 535", true},
		{"${device.attr.none}", "is_set", "", false},
		{"${device.attr.none}", "is_not_set", "", true},
		{"${device.attr.none}", "!=", "x", true},
		{"${device.attr.none}", "!=", "${device.attr.neither}", false},
		{"${device.attr.none}", "=", "x", false},
		{"${device.model}", "=", "A100-1a2b3c4d", true},
		{"${device.vendor}", "=", "amd", false},
		{"${device.type}", "is", "vgpu", true},
		{"${device.ids}", "set_contains", "ca.0,ca.2", true},
		{"${device.ids}", "set_contains_any", "cb.0,ca.1", true},
		{"${node.unique.id}", "is_set", "", false}, // node targets do not resolve in a device block
		{"${device.model}", "distinct_hosts", "true", false},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s %s %s", c.left, c.operand, c.right), func(t *testing.T) {
			t.Parallel()
			asked := []*api.Constraint{{LTarget: c.left, Operand: c.operand, RTarget: c.right}}
			ok, failed := Group(group(), asked)
			if ok != c.want || (!ok && failed != asked[0]) {
				t.Errorf("Group = %v, %v, want %v", ok, failed, c.want)
			}
		})
	}
}

func TestDeviceNamed(t *testing.T) {
	t.Parallel()
	odd := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "A100/MIG"}
	for name, want := range map[string]bool{
		"gpu": true, "nvidia/gpu": true, "nvidia/gpu/A100/MIG": true,
		"nvidia": false, "amd/gpu": false, "nvidia/gpu/A100": false, "": false,
	} {
		if got := DeviceNamed(odd, name); got != want {
			t.Errorf("DeviceNamed(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestInstances(t *testing.T) {
	t.Parallel()
	ids := []string{"ca.0", "ca.1", "ca.2"}
	got := Instances(ids, []*api.Constraint{
		{LTarget: "${device.attr.memory}", Operand: ">", RTarget: "1 GiB"},
		{LTarget: "${device.ids}", Operand: "set_contains_any", RTarget: "ca.2,ca.0,cb.1"},
	})
	if !slices.Equal(got, []string{"ca.0", "ca.2"}) {
		t.Errorf("Instances = %v", got)
	}
	if got := Instances(ids, nil); !slices.Equal(got, ids) {
		t.Errorf("Instances without constraint = %v", got)
	}
}

func TestGroupAffinity(t *testing.T) {
	t.Parallel()
	score := GroupAffinity(group(), []*api.Affinity{{LTarget: "${device.attr.uuid}", Operand: "=", RTarget: "GPU-1"}})
	if score != 1 {
		t.Errorf("GroupAffinity = %v, want 1", score)
	}
}

func TestParseAttribute(t *testing.T) {
	t.Parallel()
	for literal, want := range map[string]string{
		"40 GiB": "int GiB", "40": "int", "1.5kW": "float kW", "12345e12": "float", "0x1p3": "float", "nan": "float",
		"true": "bool", "F": "bool", "0": "int", "GPU-1": "text", "1a2b": "text", "GiB": "text", "1 parsec": "text", "": "none",
	} {
		a, got := ParseAttribute(literal), "none"
		switch {
		case a == nil:
		case a.IntVal != nil:
			got = "int"
		case a.FloatVal != nil:
			got = "float"
		case a.BoolVal != nil:
			got = "bool"
		default:
			got = "text"
		}
		if a != nil && a.Unit != "" {
			got += " " + a.Unit
		}
		if got != want {
			t.Errorf("ParseAttribute(%q) = %s, want %s", literal, got, want)
		}
	}
}

func FuzzCheckDevice(f *testing.F) {
	f.Add("20 GiB", ">=", "20480 MiB")
	f.Add("nan", "<", "1")
	f.Add("1e400", "=", "inf")
	f.Fuzz(func(t *testing.T, left, operand, right string) {
		l, r := ParseAttribute(left), ParseAttribute(right)
		if CheckDevice("=", l, r) && CheckDevice("!=", l, r) {
			t.Errorf("%q and %q are equal and different", left, right)
		}
		if CheckDevice("<", l, r) != CheckDevice(">", r, l) {
			t.Errorf("%q < %q is not %q > %q", left, right, right, left)
		}
		CheckDevice(operand, l, r)
		Check(operand, left, right, true, true)
	})
}
