package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func jobStatusCommand(env Env) *command {
	c := newCommand(env, "List jobs, or show one with its allocations and cards", "[JOB]")
	c.about = `JOB is the id of a job or the beginning of one.`
	conn, out := c.withConnection(), c.withOutput()
	c.predict[""] = c.predictJobs(conn)
	c.run = func(ctx context.Context, args []string) error {
		nomad, err := c.nomad(conn)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return c.listJobs(ctx, nomad, conn, out)
		}
		job, err := c.findJob(ctx, nomad, conn, args[0])
		if err != nil {
			return err
		}
		return c.print(out, job, nil, func() error { return c.showJob(ctx, nomad, conn, out, job) })
	}
	return c
}

func (c *command) listJobs(ctx context.Context, nomad *api.Client, conn *connection, out *output) error {
	jobs, _, err := nomad.Jobs().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nomadError(conn, err)
	}
	return c.print(out, jobs, nil, func() error {
		if len(jobs) == 0 {
			c.tell("No running jobs")
			return nil
		}
		t := table{{"ID", "Type", "Priority", "Status", "Submit Date"}}
		for _, j := range jobs {
			submitted := time.Unix(0, j.SubmitTime)
			status := j.Status
			if j.Stop {
				status += " (stopped)"
			}
			t.row(j.ID, j.Type, strconv.Itoa(j.Priority), status, moment(&submitted))
		}
		return c.printf("%s", t)
	})
}

// findJob finds a job by its id or the beginning of one.
func (c *command) findJob(ctx context.Context, nomad *api.Client, conn *connection, id string) (*api.Job, error) {
	jobs, _, err := nomad.Jobs().List((&api.QueryOptions{Prefix: id}).WithContext(ctx))
	if err != nil {
		return nil, nomadError(conn, err)
	}
	var names []string
	for _, j := range jobs {
		names = append(names, j.ID)
	}
	switch {
	case slices.Contains(names, id):
	case len(names) == 0:
		return nil, fmt.Errorf("no job with id or prefix %q in namespace %s: \"heteroflow job status\" lists them", id, c.namespace(conn))
	case len(names) > 1:
		return nil, fmt.Errorf("prefix %q fits several jobs: %s", id, strings.Join(names, ", "))
	default:
		id = names[0]
	}
	job, _, err := nomad.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, nomadError(conn, err)
	}
	return job, nil
}

func (c *command) showJob(ctx context.Context, nomad *api.Client, conn *connection, out *output, job *api.Job) error {
	q := (&api.QueryOptions{Namespace: text(job.Namespace)}).WithContext(ctx)
	allocs, _, err := nomad.Jobs().Allocations(*job.ID, false, q)
	if err != nil {
		return nomadError(conn, err)
	}
	summary, _, err := nomad.Jobs().Summary(*job.ID, q)
	if err != nil && nomadStatus(err) != http.StatusNotFound { // a job that waits has no summary yet
		return nomadError(conn, err)
	}
	ours := c.placedJob(ctx, conn, job)
	head := facts("ID", *job.ID, "Name", text(job.Name), "Submit Date", submitDate(job), "Type", text(job.Type),
		"Priority", number(job.Priority), "Datacenters", strings.Join(job.Datacenters, ","), "Namespace", text(job.Namespace),
		"Node Pool", text(job.NodePool), "Status", text(job.Status), "Reason", cmp.Or(reasonOf(ours), text(job.StatusDescription)))
	if err := c.printf("%s", head); err != nil {
		return err
	}
	if summary != nil {
		if err := c.printf("%s%s", section("Summary"), summaryTable(summary)); err != nil {
			return err
		}
	}
	if ours != nil && len(ours.Placements) > 0 {
		if err := c.printf("%s%s", section("Accelerators"), placementTable(out, ours.Placements)); err != nil {
			return err
		}
	}
	if err := c.printf("%s%s", section("Allocations"), allocTable(out, allocs)); err != nil {
		return err
	}
	failures := failuresOf(allocs)
	if len(failures) == 0 {
		return nil
	}
	return c.printf("%s%s", section("What Went Wrong"), failureTable(out, failures))
}

// placedJob asks the placement service what it knows of a job; nil when it knows nothing, or is a plain Nomad.
func (c *command) placedJob(ctx context.Context, conn *connection, job *api.Job) *client.Job {
	service, err := c.service(conn)
	if err != nil {
		return nil
	}
	answer, err := service.GetJobWithResponse(ctx, *job.ID, &client.GetJobParams{Namespace: job.Namespace})
	if err != nil {
		return nil
	}
	return answer.JSON200
}

func reasonOf(job *client.Job) string {
	if job == nil {
		return ""
	}
	reason := text(job.Reason)
	if job.QueuePosition != nil {
		reason = strings.TrimSpace(fmt.Sprintf("%s (number %d in the queue)", reason, *job.QueuePosition))
	}
	return reason
}

func submitDate(job *api.Job) string {
	if job.SubmitTime == nil {
		return ""
	}
	at := time.Unix(0, *job.SubmitTime)
	return moment(&at)
}

func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func summaryTable(summary *api.JobSummary) table {
	t := table{{"Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"}}
	for _, name := range slices.Sorted(maps.Keys(summary.Summary)) {
		s := summary.Summary[name]
		t.row(name, strconv.Itoa(s.Queued), strconv.Itoa(s.Starting), strconv.Itoa(s.Running), strconv.Itoa(s.Failed),
			strconv.Itoa(s.Complete), strconv.Itoa(s.Lost), strconv.Itoa(s.Unknown))
	}
	return t
}

func allocTable(out *output, allocs []*api.AllocationListStub) string {
	if len(allocs) == 0 {
		return "No allocations placed\n"
	}
	slices.SortFunc(allocs, func(a, b *api.AllocationListStub) int { return int(b.CreateIndex) - int(a.CreateIndex) })
	t := table{{"ID", "Node", "Task Group", "Version", "Desired", "Status", "Created"}}
	for _, a := range allocs {
		created := time.Unix(0, a.CreateTime)
		t.row(out.id(a.ID), cmp.Or(a.NodeName, out.id(a.NodeID)), a.TaskGroup, strconv.FormatUint(a.JobVersion, 10), a.DesiredStatus, a.ClientStatus, moment(&created))
	}
	return t.String()
}

func placementTable(out *output, placements []client.Placement) table {
	t := table{{"Task", "Node", "Device", "Units", "Memory", "Alloc"}}
	for _, p := range placements {
		memory := ""
		if p.MemoryMiB != nil {
			memory = accel.FormatMiB(uint64(*p.MemoryMiB))
		}
		t.row(p.TaskGroup+"."+p.Task, cmp.Or(p.NodeName, out.id(p.NodeID)), p.Group, strconv.Itoa(p.Units), dash(memory), dash(out.id(text(p.AllocID))))
	}
	return t
}
