package command

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

func jobStopCommand(env Env) *command {
	c := newCommand(env, "Stop a job, or take it out of the queue", "JOB")
	conn, out := c.withConnection(), c.withOutput()
	purge := c.flags.Bool("purge", false, "also forget the job")
	detach := c.flags.Bool("detach", false, "return at once")
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
		write := (&api.WriteOptions{Namespace: text(job.Namespace)}).WithContext(ctx)
		evalID, _, err := nomad.Jobs().DeregisterOpts(*job.ID, &api.DeregisterOptions{Purge: *purge}, write)
		if err != nil {
			return nomadError(conn, err)
		}
		progress := c.env.Stdout
		if out.machine() {
			progress = c.env.Stderr
			if err := c.print(out, map[string]string{"EvalID": evalID}, nil, nil); err != nil {
				return err
			}
		}
		if evalID == "" {
			return nil
		}
		return c.afterSubmit(ctx, nomad, out, progress, *job.ID, evalID, *detach)
	}
	return c
}
