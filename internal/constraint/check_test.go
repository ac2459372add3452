package constraint

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const none = "\x00"
	cases := map[string]struct {
		left, operand, right string
		want                 bool
	}{
		"equal text":                              {"linux", "=", "linux", true},
		"empty operand is equality":               {"linux", "", "linux", true},
		"is":                                      {"linux", "is", "windows", false},
		"equality of two missing sides is false":  {none, "=", none, false},
		"different text":                          {"a", "!=", "b", true},
		"missing differs from present":            {none, "!=", "b", true},
		"not, equal":                              {"a", "not", "a", false},
		"integers are not compared as text":       {"9", "<", "10", true},
		"floats":                                  {"1.5", ">=", "1.25", true},
		"an integer and a float":                  {"2", ">", "1.9", true},
		"text":                                    {"abc", "<", "abd", true},
		"a missing side is never less":            {none, "<", "1", false},
		"regexp":                                  {"5.10.0-amd64", "regexp", "^5[.]", true},
		"regexp that does not compile":            {"x", "regexp", "(", false},
		"version":                                 {"1.8.7", "version", ">= 1.7, < 2.0", true},
		"version without pre-releases":            {"1.8.0-beta1", "version", ">= 1.7", false},
		"semver with pre-releases":                {"1.8.0-beta1", "semver", ">= 1.7.0", true},
		"semver orders pre-releases":              {"1.8.0-beta1", "semver", ">= 1.8.0", false},
		"semver refuses the pessimistic operator": {"1.8.0", "semver", "~> 1.7", false},
		"version that is none":                    {"one", "version", ">= 1", false},
		"set holds all":                           {"a, b,c", "set_contains", "c,a", true},
		"set lacks one":                           {"a,b", "set_contains_all", "a,d", false},
		"set holds any":                           {"a,b", "set_contains_any", "d,b", true},
		"set holds none":                          {"a,b", "set_contains_any", "c,d", false},
		"is set":                                  {"", "is_set", none, true},
		"is not set":                              {none, "is_not_set", none, true},
		"distinct hosts is for the scheduler":     {none, "distinct_hosts", "true", true},
		"unknown operand":                         {"a", "like", "a", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Check(c.operand, c.left, c.right, c.left != none, c.right != none); got != c.want {
				t.Errorf("Check(%q %s %q) = %v, want %v", c.left, c.operand, c.right, got, c.want)
			}
		})
	}
}

func TestNode(t *testing.T) {
	t.Parallel()
	node := &api.Node{
		ID: "n1", Name: "gpu-1", Datacenter: "dc1", NodePool: "default",
		Attributes: map[string]string{"kernel.name": "linux", "nomad.service_discovery": "true"},
		Meta:       map[string]string{"rack": "r7"},
	}
	cases := map[string]struct {
		constraints []*api.Constraint
		wantFailed  int // index, −1 when all hold
	}{
		"no constraints": {nil, -1},
		"every kind of target": {[]*api.Constraint{
			{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"},
			{LTarget: "${meta.rack}", Operand: "regexp", RTarget: "r[0-9]"},
			{LTarget: "${node.unique.id}", Operand: "set_contains_any", RTarget: "n0,n1"},
			{LTarget: "${node.unique.name}", Operand: "=", RTarget: "gpu-1"},
			{LTarget: "${node.datacenter}", Operand: "=", RTarget: "dc1"},
			{LTarget: "${node.pool}", Operand: "=", RTarget: "default"},
			{LTarget: "${node.class}", Operand: "=", RTarget: ""},
		}, -1},
		"the first that fails is named": {[]*api.Constraint{
			{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"},
			{LTarget: "${node.unique.id}", Operand: "set_contains_any", RTarget: "n10,n2"},
			{LTarget: "${attr.none}", Operand: "=", RTarget: "x"},
		}, 1},
		"an unknown target has no value": {[]*api.Constraint{{LTarget: "${node.nothing}", Operand: "is_set"}}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, failed := Node(node, c.constraints)
			if ok != (c.wantFailed < 0) || (!ok && failed != c.constraints[c.wantFailed]) {
				t.Errorf("Node = %v, %v", ok, failed)
			}
		})
	}
}

func TestNodeAffinity(t *testing.T) {
	t.Parallel()
	node := &api.Node{Datacenter: "dc1"}
	weight := func(w int8) *int8 { return &w }
	here := &api.Affinity{LTarget: "${node.datacenter}", Operand: "=", RTarget: "dc1"}
	away := &api.Affinity{LTarget: "${node.datacenter}", Operand: "=", RTarget: "dc1", Weight: weight(-50)}
	elsewhere := &api.Affinity{LTarget: "${node.datacenter}", Operand: "=", RTarget: "dc2", Weight: weight(100)}
	for name, c := range map[string]struct {
		affinities []*api.Affinity
		want       float64
	}{
		"none":                   {nil, 0},
		"matches":                {[]*api.Affinity{here}, 1},
		"avoided":                {[]*api.Affinity{away}, -1},
		"half match, half not":   {[]*api.Affinity{here, {LTarget: "x", Operand: "=", RTarget: "y"}}, 0.5},
		"heavier one is missing": {[]*api.Affinity{here, elsewhere}, 50.0 / 150},
	} {
		if got := NodeAffinity(node, c.affinities); got != c.want {
			t.Errorf("%s: NodeAffinity = %v, want %v", name, got, c.want)
		}
	}
}
