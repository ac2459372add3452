package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

func jobRunCommand(env Env) *command {
	c := newCommand(env, "Submit a job, and watch until it is placed", "FILE")
	c.about = `
FILE holds a job in HCL or JSON; "-" is standard input. The job is placed by the placement service.

The exit code is 0 when everything was placed, 2 when something waits for room, and 1 when the job was
refused. With -json or -t the answer to the submission is printed, and the progress goes to standard error.`
	conn, file, out := c.withConnection(), c.withJobFile(), c.withOutput()
	detach := c.flags.Bool("detach", false, "return as soon as the job is submitted")
	index := c.flags.Int64("check-index", -1, "submit only if the job's modify `index` is this; 0: only if the job is new")
	wait := c.flags.Duration("wait", 0, "when something waits for room, wait so long for it to be placed, such as 30s")
	show := c.flags.Bool("output", false, "print the job as JSON, and submit nothing")
	c.run = func(ctx context.Context, args []string) error {
		nomad, err := c.nomad(conn)
		if err != nil {
			return err
		}
		src, err := file.read(c, nomad, conn, args[0])
		if err != nil {
			return err
		}
		if *show {
			return c.printJSON(map[string]any{"Job": src.job}, nil)
		}
		options := &api.RegisterOptions{Submission: src.submission}
		if *index >= 0 {
			options.EnforceIndex, options.ModifyIndex = true, uint64(*index)
		}
		write := &api.WriteOptions{Namespace: namespaceOf(c, conn, src.job)}
		response, _, err := nomad.Jobs().RegisterOpts(src.job, options, write.WithContext(ctx))
		if err != nil {
			return nomadError(conn, err)
		}
		if response.Warnings != "" {
			c.tell("%s", response.Warnings)
		}
		progress := c.env.Stdout
		if out.machine() {
			progress = c.env.Stderr
			if err := c.print(out, response, nil, nil); err != nil {
				return err
			}
		}
		err = c.afterSubmit(ctx, nomad, out, progress, *src.job.ID, response.EvalID, *detach)
		var coded *codeError
		if *wait > 0 && errors.As(err, &coded) && coded.code == exitOther {
			return c.awaitRoom(ctx, nomad, conn, progress, *src.job.ID, write.Namespace, *wait, err)
		}
		return err
	}
	return c
}

// awaitRoom looks until nothing of the job is queued any more. Else it gives the answer that there was before.
func (c *command) awaitRoom(ctx context.Context, nomad *api.Client, conn *connection, progress io.Writer, id, namespace string, wait time.Duration, before error) error {
	fmt.Fprintf(progress, "==> Waiting up to %s for room\n", wait)
	deadline := time.Now().Add(wait)
	q := (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
	for time.Now().Before(deadline) {
		summary, _, err := nomad.Jobs().Summary(id, q)
		if err != nil && nomadStatus(err) != http.StatusNotFound {
			return nomadError(conn, err)
		}
		if err == nil && placed(summary) {
			_, err := fmt.Fprintln(progress, "==> Everything is placed")
			return err
		}
		if !clock.Sleep(ctx, clock.System(), lookEvery) {
			return ctx.Err()
		}
	}
	return before
}

// placed reports whether nothing of a job is queued.
func placed(summary *api.JobSummary) bool {
	going := 0
	for _, group := range summary.Summary {
		if group.Queued > 0 {
			return false
		}
		going += group.Starting + group.Running + group.Complete
	}
	return going > 0
}

// namespaceOf is the namespace of a call about a job: the flag or the environment, else what the job says.
func namespaceOf(c *command, conn *connection, job *api.Job) string {
	return cmp.Or(*conn.namespace, c.env.Getenv("NOMAD_NAMESPACE"), text(job.Namespace), api.DefaultNamespace)
}

// afterSubmit watches the evaluation of a change.
func (c *command) afterSubmit(ctx context.Context, nomad *api.Client, out *output, progress io.Writer, jobID, evalID string, detach bool) error {
	switch {
	case evalID == "": // periodic and parameterized jobs have none until they are started
		_, err := fmt.Fprintf(progress, "Job %q registered; it has no evaluation until it is started\n", jobID)
		return err
	case detach:
		_, err := fmt.Fprintf(progress, "Evaluation ID: %s\n", evalID)
		return err
	}
	m := &monitor{nomad: nomad, out: progress, short: out.id}
	eval, err := m.run(ctx, evalID)
	if err != nil {
		return err
	}
	switch {
	case eval.Status != "complete":
		return fmt.Errorf("evaluation %s is %s: %s", out.id(eval.ID), eval.Status, cmp.Or(eval.StatusDescription, "no reason was given"))
	case len(eval.FailedTGAllocs) > 0:
		return &codeError{code: exitOther, text: fmt.Sprintf("\nThe job waits. Why, and what would be needed: heteroflow explain %s", jobID)}
	}
	return nil
}
