// Package jobdiff compares two versions of a job in the shape that `nomad job plan` prints: what was added, deleted
// and edited, for the job, its groups, its tasks and what they contain. It compares jobs as they are; defaults are
// the caller's to fill in, and what a change does to running allocations comes from the scheduler, see Annotate.
package jobdiff

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// The types of a difference.
const (
	None    = "None"
	Added   = "Added"
	Deleted = "Deleted"
	Edited  = "Edited"
)

// Diff compares two versions of a job. Either may be nil: a job that is new or gone. Both are expected
// canonicalized. What only the server writes, such as indexes and the version, is left out.
func Diff(before, after *api.Job) *api.JobDiff {
	diff := &api.JobDiff{Type: kindOf(before == nil, after == nil)}
	for _, job := range []*api.Job{before, after} {
		if job != nil && job.ID != nil {
			diff.ID = *job.ID
		}
	}
	diff.Fields, diff.Objects = parts(reflect.ValueOf(before), reflect.ValueOf(after), false)
	diff.TaskGroups = groups(groupsOf(before), groupsOf(after))
	changed := len(diff.Fields)+len(diff.Objects) > 0 ||
		slices.ContainsFunc(diff.TaskGroups, func(g *api.TaskGroupDiff) bool { return g.Type != None })
	diff.Type = settleKind(diff.Type, changed)
	return diff
}

// kindOf is the type of a difference where one side is missing, and Edited where both are there.
func kindOf(noBefore, noAfter bool) string {
	switch {
	case noBefore && noAfter:
		return None
	case noBefore:
		return Added
	case noAfter:
		return Deleted
	}
	return Edited
}

func settleKind(kind string, changed bool) string {
	if kind == Edited && !changed {
		return None
	}
	return kind
}

func groupsOf(job *api.Job) []*api.TaskGroup {
	if job == nil {
		return nil
	}
	return job.TaskGroups
}

func groups(before, after []*api.TaskGroup) []*api.TaskGroupDiff {
	name := func(g *api.TaskGroup) string {
		if g.Name == nil {
			return ""
		}
		return *g.Name
	}
	var out []*api.TaskGroupDiff
	pair(before, after, name, func(key string, old, new *api.TaskGroup) {
		diff := &api.TaskGroupDiff{Name: key, Type: kindOf(old == nil, new == nil)}
		diff.Fields, diff.Objects = parts(reflect.ValueOf(old), reflect.ValueOf(new), false)
		diff.Tasks = tasks(tasksOf(old), tasksOf(new))
		changed := len(diff.Fields)+len(diff.Objects) > 0 ||
			slices.ContainsFunc(diff.Tasks, func(t *api.TaskDiff) bool { return t.Type != None })
		diff.Type = settleKind(diff.Type, changed)
		out = append(out, diff)
	})
	slices.SortStableFunc(out, func(a, b *api.TaskGroupDiff) int { return rankThenName(a.Type, a.Name, b.Type, b.Name) })
	return out
}

func tasksOf(group *api.TaskGroup) []*api.Task {
	if group == nil {
		return nil
	}
	return group.Tasks
}

func tasks(before, after []*api.Task) []*api.TaskDiff {
	var out []*api.TaskDiff
	pair(before, after, func(t *api.Task) string { return t.Name }, func(key string, old, new *api.Task) {
		diff := &api.TaskDiff{Name: key, Type: kindOf(old == nil, new == nil)}
		diff.Fields, diff.Objects = parts(reflect.ValueOf(old), reflect.ValueOf(new), false)
		diff.Type = settleKind(diff.Type, len(diff.Fields)+len(diff.Objects) > 0)
		out = append(out, diff)
	})
	slices.SortStableFunc(out, func(a, b *api.TaskDiff) int { return rankThenName(a.Type, a.Name, b.Type, b.Name) })
	return out
}

// rankThenName puts what was edited first, then what was added, deleted and left alone, each by name.
func rankThenName(typeA, nameA, typeB, nameB string) int {
	rank := map[string]int{Edited: 0, Added: 1, Deleted: 2, None: 3}
	return cmp.Or(cmp.Compare(rank[typeA], rank[typeB]), cmp.Compare(nameA, nameB))
}

// pair calls f for every key of either side with the elements of that key, nil where a side has none. Of several
// elements with one key the last counts.
func pair[T any](before, after []*T, key func(*T) string, f func(key string, old, new *T)) {
	olds, news := map[string]*T{}, map[string]*T{}
	var keys []string
	note := func(side map[string]*T, list []*T) {
		for _, element := range list {
			if element == nil {
				continue
			}
			side[key(element)] = element
			keys = append(keys, key(element))
		}
	}
	note(olds, before)
	note(news, after)
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		f(k, olds[k], news[k])
	}
}
