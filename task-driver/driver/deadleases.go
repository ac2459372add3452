package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/grant"
)

// dropDeadLeases frees the cards of tasks whose driver died during their start or their destroy, which Nomad asks for once: as
// long as a lease stands, its cards keep their form. What is given back of a task is its share first, so that a lease goes only
// when the ledger has nothing of the task any more. A task that has ended and is brought back later gets its lease anew.
func (d *Driver) dropDeadLeases(ctx context.Context) error {
	s, _ := d.current()
	leases, problem := grant.Leases(s.leasesDir()) // before the tasks, so that one that has begun since is not missed
	if len(leases) == 0 {
		return problem
	}
	live, seen, err := d.liveTasks(ctx)
	if err != nil || !seen {
		return errors.Join(problem, err)
	}
	entries, err := d.shares().Entries()
	if err != nil {
		return errors.Join(problem, err)
	}
	held := map[string]bool{}
	for _, e := range entries {
		held[e.Ask.TaskID] = true
	}
	problems := []error{problem}
	for _, l := range leases {
		if l.Maker == "" || live.Tasks[l.TaskID] || held[l.TaskID] || d.known(l.TaskID) || l.Maker != d.maker && makerRuns(l.Maker) {
			continue
		}
		d.log.Info("the lease of a task that does not run is removed", "task_id", l.TaskID)
		if err := grant.RemoveLease(s.leasesDir(), l.TaskID); err != nil {
			problems = append(problems, fmt.Errorf("task %s: %w", l.TaskID, err))
		}
	}
	return errors.Join(problems...)
}
