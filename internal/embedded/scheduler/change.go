package scheduler

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Fields of a group, and of a task, that change without a restart. All others restart it.
// Source: job specification docs and recorded behaviour, fact table 4.11.
var (
	inPlaceGroup = []string{
		"Count", "Constraints", "Affinities", "Spreads", "Update", "Migrate", "ReschedulePolicy", "RestartPolicy", "Scaling",
		"Services", "ShutdownDelay", "StopAfterClientDisconnect", "MaxClientDisconnect", "Disconnect", "PreventRescheduleOnLost", "Tasks",
	}
	inPlaceTask = []string{
		"Constraints", "Affinities", "Services", "RestartPolicy", "ScalingPolicies", "KillTimeout", "KillSignal", "ShutdownDelay",
		"Leader", "LogConfig", "Lifecycle", "Actions",
	}
)

// Fields of a job that the server sets, or that say nothing of what is to run.
var serverFields = []string{
	"Stop", "Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex",
	"NomadTokenID", "VersionTag",
}

// Destructive reports whether a group has to be restarted to go from one version of a job to another.
func Destructive(from, to *api.Job, group string) bool {
	a, b := find(from, group), find(to, group)
	if a == nil || b == nil {
		return true
	}
	// Nomad compares device blocks by their id: blocks of one id in one task always look changed when they differ.
	for _, t := range b.Tasks {
		if t.Resources != nil && differingDoubles(t.Resources.Devices) {
			return true
		}
	}
	if !same(tree(from.Meta), tree(to.Meta)) || !same(strip(tree(a), inPlaceGroup), strip(tree(b), inPlaceGroup)) || len(a.Tasks) != len(b.Tasks) {
		return true
	}
	for i, t := range a.Tasks {
		if !same(strip(tree(t), inPlaceTask), strip(tree(b.Tasks[i]), inPlaceTask)) {
			return true
		}
	}
	return false
}

func differingDoubles(devices []*api.RequestedDevice) bool {
	seen := map[string]*api.RequestedDevice{}
	for _, d := range devices {
		if other, ok := seen[d.Name]; ok && !same(tree(other), tree(d)) {
			return true
		}
		seen[d.Name] = d
	}
	return false
}

// SpecChanged reports whether two versions of a job differ in anything a user can write.
func SpecChanged(from, to *api.Job) bool {
	return !same(strip(tree(from), serverFields), strip(tree(to), serverFields))
}

func find(j *api.Job, group string) *api.TaskGroup {
	i := slices.IndexFunc(j.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == group })
	if i < 0 {
		return nil
	}
	return j.TaskGroups[i]
}

// tree is a value as JSON has it, without nulls and empty lists and maps: to Nomad those are the same as unset.
func tree(v any) any {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // api types always encode
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil {
		panic(err)
	}
	return prune(out)
}

func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x = prune(x); x == nil {
				delete(v, k)
			} else {
				v[k] = x
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i, x := range v {
			v[i] = prune(x)
		}
	}
	return v
}

func strip(v any, fields []string) any {
	if m, ok := v.(map[string]any); ok {
		for _, f := range fields {
			delete(m, f)
		}
	}
	return v
}

func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
