package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// sorted are the allocations of one group by what is to become of them.
type sorted struct {
	keep    []*api.Allocation // run on, or hold their place: failed for good, or batch work that is done
	migrate []*api.Allocation // leave their node
	lost    []*api.Allocation // their node is gone
	replace []*api.Allocation // failed, to be replaced now
	later   []*api.Allocation // failed, to be replaced later; hold their place until then
	delays  map[string]delay
}

// reconcile works on service and batch jobs.
func (r *run) reconcile() {
	byGroup := map[string][]*api.Allocation{}
	for _, a := range r.Allocs {
		byGroup[a.TaskGroup] = append(byGroup[a.TaskGroup], a)
	}
	for _, g := range r.Job.TaskGroups {
		r.group(g, byGroup[*g.Name])
		delete(byGroup, *g.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(byGroup)) {
		for _, a := range byGroup[name] {
			if a.DesiredStatus == api.AllocDesiredStatusRun && !ended(a) {
				r.stop(a, NotNeeded)
				r.updates(name).Stop++
			}
		}
	}
}

func (r *run) batch() bool { return *r.Job.Type == api.JobTypeBatch }

// sort decides for each allocation of a group whether it can stay.
func (r *run) sort(g *api.TaskGroup, allocs []*api.Allocation) sorted {
	s := sorted{delays: map[string]delay{}}
	for _, a := range allocs {
		switch {
		case a.DesiredStatus != api.AllocDesiredStatusRun, a.ClientStatus == api.AllocClientStatusLost:
			continue
		case r.batch() && ended(a) && !sameVersion(a, r.Job):
			continue // the new version of a batch job runs again
		case a.ClientStatus == api.AllocClientStatusComplete:
			if r.batch() {
				s.keep = append(s.keep, a)
			}
		case a.ClientStatus == api.AllocClientStatusFailed:
			r.sortFailed(&s, g, a)
		case r.down(a.NodeID):
			s.lost = append(s.lost, a)
		case r.draining(a.NodeID) || isTrue(a.DesiredTransition.Migrate):
			s.migrate = append(s.migrate, a)
		default:
			s.keep = append(s.keep, a)
		}
	}
	return s
}

func (r *run) sortFailed(s *sorted, g *api.TaskGroup, a *api.Allocation) {
	if a.NextAllocation != "" {
		return
	}
	if !sameVersion(a, r.Job) && Destructive(a.Job, r.Job, *g.Name) {
		s.keep = append(s.keep, a) // a changed job is a new chance: it is updated like what runs
		return
	}
	d := rescheduleDelay(g.ReschedulePolicy, a)
	switch {
	case isTrue(a.DesiredTransition.ForceReschedule), d.allowed && !d.at.After(r.Now), d.allowed && a.FollowupEvalID != "" && a.FollowupEvalID == r.Eval.ID:
		s.replace = append(s.replace, a)
	case d.allowed:
		s.later = append(s.later, a)
		s.delays[a.ID] = d
	default:
		s.keep = append(s.keep, a)
	}
}

func (r *run) group(g *api.TaskGroup, allocs []*api.Allocation) {
	s := r.sort(g, allocs)
	u := r.updates(*g.Name)
	count := *g.Count
	taken := names{}
	for _, list := range [][]*api.Allocation{s.keep, s.later, s.migrate, s.lost, s.replace} {
		for _, a := range list {
			taken[index(a.Name)]++
		}
	}

	// Fewer wanted: the ones that are leaving anyway go first, then the highest names.
	excess := len(s.keep) + len(s.later) + len(s.migrate) + len(s.lost) + len(s.replace) - count
	for _, list := range []*[]*api.Allocation{&s.lost, &s.migrate, &s.replace, &s.later, &s.keep} {
		excess = r.trim(list, excess, taken, u)
	}

	for _, a := range s.later {
		r.delay(a, s.delays[a.ID])
	}
	destructive := r.change(g, s.keep, u)
	u.Ignore += uint64(len(s.later))

	r.track(g, allocs, destructive)

	var wanted []want
	for _, a := range s.lost {
		r.stop(a, Lost)
		u.Stop++
		wanted = append(wanted, want{name: a.Name, previous: a})
	}
	for _, a := range s.migrate {
		r.stop(a, Migrating)
		u.Migrate++
		wanted = append(wanted, want{name: a.Name, previous: a, migrate: true})
	}
	for _, a := range s.replace {
		r.stop(a, Rescheduled)
		u.Stop++
		u.RescheduleNow++
		wanted = append(wanted, want{name: a.Name, previous: a, reschedule: true})
	}
	missing := count - len(s.keep) - len(s.later) - len(s.migrate) - len(s.lost) - len(s.replace)
	limit := r.parallel(g)
	if r.rolling(g) != nil {
		limit = max(0, limit-max(0, missing)) // what is new is on its way to health first
	}
	for i, a := range destructive {
		if i >= limit {
			u.Ignore++
			continue
		}
		r.stop(a, Updating)
		u.DestructiveUpdate++
		wanted = append(wanted, want{name: a.Name, previous: a, update: true})
	}
	r.placeAll(g, wanted, u)
	r.placeNew(g, max(0, missing), taken, u)
}

// trim stops up to excess allocations of a list, highest names first, doubles before others.
func (r *run) trim(list *[]*api.Allocation, excess int, taken names, u *api.DesiredUpdates) int {
	if excess <= 0 {
		return 0
	}
	order := slices.Clone(*list)
	slices.SortStableFunc(order, func(a, b *api.Allocation) int {
		return cmp.Or(
			cmp.Compare(min(taken[index(b.Name)], 2), min(taken[index(a.Name)], 2)),
			cmp.Compare(index(b.Name), index(a.Name)))
	})
	gone := map[string]bool{}
	for _, a := range order[:min(excess, len(order))] {
		if !ended(a) {
			r.stop(a, NotNeeded)
			u.Stop++
		}
		gone[a.ID] = true
		taken[index(a.Name)]--
	}
	*list = slices.DeleteFunc(*list, func(a *api.Allocation) bool { return gone[a.ID] })
	return excess - len(gone)
}

// change moves running allocations to the job's version where that needs no restart, and returns the others.
func (r *run) change(g *api.TaskGroup, keep []*api.Allocation, u *api.DesiredUpdates) (destructive []*api.Allocation) {
	for _, a := range keep {
		switch {
		case sameVersion(a, r.Job), a.ClientStatus == api.AllocClientStatusComplete:
			u.Ignore++
		case Destructive(a.Job, r.Job, *g.Name):
			destructive = append(destructive, a)
		case ended(a):
			u.Ignore++
		case !r.stillFits(g, a):
			destructive = append(destructive, a)
		default:
			u.InPlaceUpdate++
			next := *a
			next.Job, next.EvalID = r.Job, r.Eval.ID
			r.plan.InPlace = append(r.plan.InPlace, &next)
		}
	}
	slices.SortStableFunc(destructive, func(a, b *api.Allocation) int { return cmp.Compare(index(a.Name), index(b.Name)) })
	return destructive
}

func (r *run) stillFits(g *api.TaskGroup, a *api.Allocation) bool {
	n := r.Node(a.NodeID)
	return n != nil && filterNode(r.Job, g, n) == ""
}

// names counts the allocations of each index of a group.
type names map[int]int

// next is the lowest free index from one on.
func (n names) next(from int) int {
	for n[from] > 0 {
		from++
	}
	return from
}

// AllocName is the name of the i-th allocation of a group.
func AllocName(j *api.Job, group string, i int) string {
	return fmt.Sprintf("%s.%s[%d]", *j.ID, group, i)
}

func index(name string) int {
	_, tail, _ := strings.Cut(api.AllocSuffix(name), "[")
	i, err := strconv.Atoi(strings.TrimSuffix(tail, "]"))
	if err != nil {
		return 0
	}
	return i
}
