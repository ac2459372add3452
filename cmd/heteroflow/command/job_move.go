package command

import (
	"context"

	"github.com/heteroflow/heteroflow/api/client"
)

func jobMoveCommand(env Env) *command {
	c := newCommand(env, "Say which jobs would have to move for one that waits, or have them moved", "JOB")
	c.about = `
JOB is the id of a job that waits for room. Only jobs that say heteroflow_movable = "true" in their meta are moved, each as a
whole and none twice within an hour: they are stopped and start again where room is held for them. What is not done in time
is rolled back.`
	conn, out := c.withConnection(), c.withOutput()
	apply := c.flags.Bool("apply", false, "have them moved")
	c.predict[""] = c.predictJobs(conn)
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		moves, raw, err := c.moves(ctx, service, conn, args[0], *apply)
		if err != nil {
			return err
		}
		return c.print(out, moves, raw, func() error {
			if len(moves.Moves) == 0 {
				return c.printf("No moves would start it: %s.\n", text(moves.Refusal))
			}
			t := table{{"Allocation", "Job", "Tenant", "From", "To"}}
			for _, m := range moves.Moves {
				t.row(out.id(m.AllocID), m.JobID, m.Tenant, m.FromNode, m.ToNode)
			}
			return c.printf("%s", t)
		})
	}
	return c
}

// moves are those that are made, or that would be.
func (c *command) moves(ctx context.Context, service *client.ClientWithResponses, conn *connection, job string, apply bool) (*client.Moves, []byte, error) {
	namespace := given(c.namespace(conn))
	if apply {
		answer, err := service.MakeMovesWithResponse(ctx, job, &client.MakeMovesParams{Namespace: namespace})
		return made(conn, answer, err)
	}
	answer, err := service.ListMovesWithResponse(ctx, job, &client.ListMovesParams{Namespace: namespace})
	return read(conn, answer, err)
}
