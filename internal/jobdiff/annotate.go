package jobdiff

import "github.com/hashicorp/nomad/api"

// What a change does to allocations, in the words of Nomad's plan.
const (
	forcesCreate      = "forces create"
	forcesDestroy     = "forces destroy"
	forcesInPlace     = "forces in-place update"
	forcesDestructive = "forces create/destroy update"
)

// Annotate writes what the scheduler would do into a difference: how many allocations of each group are ignored,
// created, destroyed or updated, and which change forces that.
func Annotate(diff *api.JobDiff, desired map[string]*api.DesiredUpdates) {
	for _, group := range diff.TaskGroups {
		updates := desired[group.Name]
		if updates == nil {
			continue
		}
		group.Updates = counts(updates)
		for _, f := range group.Fields {
			if f.Name == "Count" {
				annotateCount(f)
			}
		}
		for _, task := range group.Tasks {
			annotateTask(task, group.Type, updates)
		}
	}
}

func counts(u *api.DesiredUpdates) map[string]uint64 {
	out := map[string]uint64{}
	for name, n := range map[string]uint64{
		"ignore": u.Ignore, "create": u.Place, "migrate": u.Migrate, "destroy": u.Stop, "canary": u.Canary,
		"in-place update": u.InPlaceUpdate, "create/destroy update": u.DestructiveUpdate, "preemptions": u.Preemptions,
	} {
		if n != 0 {
			out[name] = n
		}
	}
	return out
}

func annotateCount(f *api.FieldDiff) {
	before, after := number(f.Old), number(f.New)
	switch {
	case before < after:
		f.Annotations = []string{forcesCreate}
	case before > after:
		f.Annotations = []string{forcesDestroy}
	}
}

// number reads a count; a missing one is 0. Counts come from integers, so nothing else appears.
func number(text string) (n int) {
	for _, digit := range text {
		n = n*10 + int(digit-'0')
	}
	return n
}

func annotateTask(task *api.TaskDiff, groupType string, updates *api.DesiredUpdates) {
	switch {
	case task.Type == None:
	case groupType == Added:
		task.Annotations = []string{forcesCreate}
	case groupType == Deleted:
		task.Annotations = []string{forcesDestroy}
	case updates.InPlaceUpdate > 0 && updates.DestructiveUpdate == 0:
		task.Annotations = []string{forcesInPlace}
	default:
		task.Annotations = []string{forcesDestructive}
	}
}
