package command

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// failure is why a task of an allocation does not run.
type failure struct{ alloc, task, event, message string }

// ends are the events that say why a task ended or did not begin. Those that follow, such as "Not Restarting", say only
// what Nomad did about it.
var ends = []string{
	api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation, api.TaskArtifactDownloadFailed,
	api.TaskDriverMessage, api.TaskTerminated, "Task hook failed",
}

// rpcPrefix is what the plugin protocol puts before a driver's own words.
var rpcPrefix = regexp.MustCompile(`^(rpc error: code = \w+ desc = )+`)

// failuresOf tells why tasks of the newest version of a job do not run; the same words are told once.
func failuresOf(allocs []*api.AllocationListStub) (out []failure) {
	var newest uint64
	for _, a := range allocs {
		newest = max(newest, a.JobVersion)
	}
	for _, a := range allocs {
		if a.JobVersion != newest || a.ClientStatus != api.AllocClientStatusFailed && a.ClientStatus != api.AllocClientStatusPending {
			continue
		}
		for task, state := range a.TaskStates {
			f, found := failureOf(task, state)
			known := slices.ContainsFunc(out, func(o failure) bool { return o.task == f.task && o.message == f.message })
			if found && !known {
				f.alloc = a.ID
				out = append(out, f)
			}
		}
	}
	return out
}

// failureOf finds the last word on why a task does not run; nothing for one that runs or ended well.
func failureOf(task string, state *api.TaskState) (failure, bool) {
	if state == nil || state.State == "running" || state.State == "dead" && !state.Failed {
		return failure{}, false
	}
	for _, e := range slices.Backward(state.Events) {
		if slices.Contains(ends, e.Type) {
			said := cmp.Or(e.DisplayMessage, e.Message, e.DriverError, e.SetupError)
			return failure{task: task, event: e.Type, message: oneLine(rpcPrefix.ReplaceAllString(said, ""))}, true
		}
	}
	return failure{}, false
}

func failureTable(out *output, failures []failure) table {
	t := table{{"Alloc", "Task", "Event", "Why"}}
	for _, f := range failures {
		t.row(out.id(f.alloc), f.task, f.event, f.message)
	}
	return t
}
