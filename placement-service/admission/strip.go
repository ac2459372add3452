package admission

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// mark stands first in every list that is injected. It is the name of no node and no card, so that it changes nothing
// for Nomad, and it survives whatever Nomad does with a job, so that a job read back is known for what it is. It also
// keeps a list of one value from being read as a number, which Nomad would never match.
const mark = "heteroflow"

// countMark stands in the injected list of an elastic gang's nodes, with the count that its user wrote: the group's own
// count is how many run. It is no node's id either. The gang grows and shrinks in place, since a change of a constraint
// leaves alone what runs.
const countMark = "count="

const (
	operandAny = "set_contains_any"
	nodeTarget = "${node.unique.id}"
)

// marked reports whether a constraint, of a node or in a device block, was injected.
func marked(c map[string]any) bool {
	first, _, _ := strings.Cut(getString(c, "RTarget"), ",")
	return getString(c, "Operand") == operandAny && first == mark
}

func ownConstraint(c map[string]any) bool { return marked(c) && getString(c, "LTarget") == nodeTarget }

// ownCount is the count that its user wrote of a group that runs with another one.
func ownCount(g map[string]any) (json.Number, bool) {
	for _, c := range objects(g, "Constraints") {
		if !ownConstraint(c) {
			continue
		}
		for value := range strings.SplitSeq(getString(c, "RTarget"), ",") {
			if text, is := strings.CutPrefix(value, countMark); is {
				if n, err := strconv.Atoi(text); err == nil && n > 0 {
					return json.Number(strconv.Itoa(n)), true
				}
			}
		}
	}
	return "", false
}

func ownDevice(d map[string]any) bool { return slices.ContainsFunc(objects(d, "Constraints"), marked) }

// Strip takes out what Inject and Apply wrote: the user's own job. It also takes out any grant that stands in the
// config of a task of our driver, whoever wrote it, since only the placement service grants; so pass every job
// through it, also one without an ask.
func Strip(job Tree) Tree {
	out := cloneTree(job)
	for _, g := range objects(out, "TaskGroups") {
		stripGroup(g)
	}
	return out
}

func stripGroup(g map[string]any) {
	if count, elastic := ownCount(g); elastic {
		set(g, "Count", count)
	}
	without(g, "Constraints", ownConstraint)
	for _, t := range objects(g, "Tasks") {
		if config := getMap(t, "Config"); getString(t, "Driver") == Driver {
			delete(config, "grant")
		}
		resources := getMap(t, "Resources")
		if without(resources, "Devices", ownDevice) && len(resources) == 0 {
			unset(t, "Resources")
		}
	}
}

// without takes the objects that are ours out of a list field, and the field when nothing is left of it. It reports
// whether there were any.
func without(m map[string]any, name string, ours func(map[string]any) bool) bool {
	var rest []any
	list := getList(m, name)
	for _, v := range list {
		if o, ok := v.(map[string]any); !ok || !ours(o) {
			rest = append(rest, v)
		}
	}
	if len(rest) == len(list) {
		return false
	}
	if len(rest) == 0 {
		unset(m, name)
	} else {
		set(m, name, rest)
	}
	return true
}

// Injected names what was injected into a job: two jobs of one spec with one name run under the same decision. What
// Nomad adds to a job that it stores does not change it.
func Injected(job Tree) string {
	var all []any
	for _, g := range objects(job, "TaskGroups") {
		one := []any{getString(g, "Name"), constraintsOf(g, ownConstraint)}
		if _, elastic := ownCount(g); elastic {
			count, _ := integer(get(g, "Count"))
			one = append(one, count)
		}
		for _, t := range objects(g, "Tasks") {
			one = append(one, getString(t, "Name"))
			if getString(t, "Driver") == Driver {
				one = append(one, getString(getMap(t, "Config"), "grant"))
			}
			for _, d := range objects(getMap(t, "Resources"), "Devices") {
				if ownDevice(d) {
					count, _ := integer(get(d, "Count"))
					one = append(one, []any{getString(d, "Name"), count, constraintsOf(d, func(map[string]any) bool { return true })})
				}
			}
		}
		all = append(all, one)
	}
	return sum(all)
}

func constraintsOf(m map[string]any, which func(map[string]any) bool) []any {
	var out []any
	for _, c := range objects(m, "Constraints") {
		if which(c) {
			out = append(out, []string{getString(c, "LTarget"), getString(c, "RTarget"), getString(c, "Operand")})
		}
	}
	return out
}
