package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

func jobLogsCommand(env Env) *command {
	c := newCommand(env, "Print what a job's task wrote", "JOB")
	c.about = `Without -alloc the newest running allocation of the job is taken, else the newest.`
	conn := c.withConnection()
	alloc := c.flags.String("alloc", "", "`id` of an allocation, or the beginning of one")
	task := c.flags.String("task", "", "`name` of the task, needed when the group has several")
	stderr := c.flags.Bool("stderr", false, "standard error instead of standard output")
	follow := c.flags.Bool("f", false, "follow: print on as the task writes")
	tail := c.flags.Int64("c", 0, "only the last `bytes`")
	c.predict[""] = c.predictJobs(conn)
	c.run = func(ctx context.Context, args []string) error {
		nomad, err := c.nomad(conn)
		if err != nil {
			return err
		}
		job, err := c.findJob(ctx, nomad, conn, args[0])
		if err != nil {
			return err
		}
		chosen, name, err := chooseTask(ctx, nomad, job, *alloc, *task)
		if err != nil {
			return err
		}
		if err := started(chosen, name); err != nil {
			return err
		}
		params := map[string]string{"task": name, "type": "stdout", "follow": strconv.FormatBool(*follow), "plain": "true", "origin": "start", "offset": "0"}
		if *stderr {
			params["type"] = "stderr"
		}
		if *tail > 0 {
			params["origin"], params["offset"] = "end", strconv.FormatInt(*tail, 10)
		}
		q := (&api.QueryOptions{Namespace: text(job.Namespace), Params: params}).WithContext(ctx)
		// The server passes this on to the node. Nomad's own client would rather ask the node itself, which need not be reachable.
		stream, err := nomad.Raw().Response("/v1/client/fs/logs/"+url.PathEscape(chosen.ID), q)
		if err != nil {
			return nomadError(conn, err)
		}
		defer stream.Close()
		if _, err := io.Copy(c.env.Stdout, stream); err != nil && ctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("read the log of %s: %w", name, err)
		}
		return nil
	}
	return c
}

// chooseTask finds the allocation and the task whose log is wanted.
func chooseTask(ctx context.Context, nomad *api.Client, job *api.Job, alloc, task string) (chosen *api.AllocationListStub, name string, err error) {
	q := (&api.QueryOptions{Namespace: text(job.Namespace)}).WithContext(ctx)
	stubs, _, err := nomad.Jobs().Allocations(*job.ID, true, q)
	if err != nil {
		return nil, "", fmt.Errorf("list allocations of %s: %w", *job.ID, err)
	}
	stubs = slices.DeleteFunc(stubs, func(s *api.AllocationListStub) bool { return !strings.HasPrefix(s.ID, alloc) })
	if len(stubs) == 0 {
		if alloc != "" {
			return nil, "", fmt.Errorf("job %s has no allocation %q: \"heteroflow job status %s\" lists them", *job.ID, alloc, *job.ID)
		}
		return nil, "", fmt.Errorf("job %s has no allocation yet: \"heteroflow explain %s\" says why", *job.ID, *job.ID)
	}
	best := slices.MaxFunc(stubs, func(a, b *api.AllocationListStub) int {
		if running := btoi(a.ClientStatus == "running") - btoi(b.ClientStatus == "running"); running != 0 {
			return running
		}
		return int(a.CreateIndex) - int(b.CreateIndex)
	})
	if task != "" {
		return best, task, nil
	}
	tasks := slices.Sorted(maps.Keys(best.TaskStates))
	if len(tasks) == 0 {
		for _, g := range job.TaskGroups {
			if text(g.Name) != best.TaskGroup {
				continue
			}
			for _, t := range g.Tasks {
				tasks = append(tasks, t.Name)
			}
		}
	}
	if len(tasks) != 1 {
		return nil, "", &usageError{fmt.Sprintf("the group %s has the tasks %s: choose with -task", best.TaskGroup, strings.Join(tasks, ", "))}
	}
	return best, tasks[0], nil
}

// started refuses to read the log of a task that ended before it began: it wrote none, and the driver says why.
func started(alloc *api.AllocationListStub, task string) error {
	state := alloc.TaskStates[task]
	if state == nil || state.State != "dead" || !state.StartedAt.IsZero() {
		return nil
	}
	f, found := failureOf(task, state)
	if !found {
		return fmt.Errorf("task %s of allocation %s ended before it began, and wrote nothing", task, alloc.ID[:8])
	}
	return fmt.Errorf("task %s of allocation %s was not started, and wrote nothing: %s", task, alloc.ID[:8], f.message)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
